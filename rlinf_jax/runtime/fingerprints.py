"""What a measured profile depends on, as one short word.

A stage on a mesh is known by its lowered program, one on the host by the code
of its function: another loss, another number of updates or another precision is
measured anew, a comment or another line number is not.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax

from rlinf_jax.flow import calls
from rlinf_jax.runtime import graphs, machines, programs

# What was measured otherwise by an older release is measured anew.
FORMAT = "2"
# Settings by which one program is compiled to code that takes another time.
SETTINGS = (
  "jax_default_matmul_precision",
  "jax_disable_most_optimizations",
  "jax_enable_x64",
)
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def of(graph: graphs.Graph, machine: machines.Machine) -> str:
  """Returns what a profile of this flow on this machine depends on.

  Args:
    graph: the macro flow.
    machine: its devices.
  """
  found = hashlib.sha256()
  for fact in _facts(graph, machine):
    found.update(fact.encode())
    found.update(b"\0")
  return found.hexdigest()[:16]


def _facts(graph: graphs.Graph, machine: machines.Machine) -> Iterator[str]:
  yield FORMAT
  yield jax.__version__
  for name in SETTINGS:
    yield f"{name}={jax.config.values.get(name)}"
  yield os.environ.get("XLA_FLAGS", "")
  yield str([str(d.device_kind) for d in machine.devices])
  yield str(machine.cluster.num_devices)
  for s in graph.workflow.stages:
    yield str((s.name, s.items, s.quantum, graph.place[s.name]))
  yield from _program(graph.traced.program)


def _program(program: programs.Program) -> Iterator[str]:
  """Yields what its nodes, and the glue before them, compute."""
  for node in program.nodes:
    yield str((node.name, node.inputs, node.outputs))
    yield str([str(program.avals[v]) for v in node.inputs])
    if node.glue is not None:
      yield _text(node.glue.jaxpr)
    if isinstance(node, programs.LoopNode):
      yield str((node.length, node.num_consts, node.num_carry))
      yield from _program(node.body)
    else:
      yield str((node.axes, node.out_axis, node.call.mapped))
      yield str((node.spec.quantum, node.spec.groups))
      avals = tuple(program.avals[v] for v in node.inputs)
      yield _stage(node.call, calls.as_avals(avals))
  if program.glue is not None:
    yield _text(program.glue.jaxpr)


def _stage(call: calls.Call, avals: tuple[Any, ...]) -> str:
  if call.spec.place == "mesh":
    return _text(calls.traced(call, avals))
  return "\n".join(_code(call.fn))


def _text(jaxpr: Any) -> str:
  """Returns a jaxpr as text that is the same in another process."""
  return _ADDRESS.sub("", str(jaxpr))


def _code(fn: Callable[..., Any]) -> Iterator[str]:
  """Yields the code of a Python function, and of what it is made of."""
  if isinstance(fn, functools.partial):
    yield from _code(fn.func)
    yield _ADDRESS.sub("", repr((fn.args, fn.keywords)))
  elif hasattr(fn, "fn"):  # runs in a process that can be killed
    yield from _code(fn.fn)
  elif hasattr(fn, "__code__"):
    yield from _bytes(fn.__code__)
  else:
    yield type(fn).__qualname__
    yield from _bytes(getattr(type(fn).__call__, "__code__", None))


def _bytes(code: types.CodeType | None) -> Iterator[str]:
  if code is None:  # written in C
    return
  yield code.co_code.hex()
  yield str(code.co_names)
  for constant in code.co_consts:
    if isinstance(constant, types.CodeType):
      yield from _bytes(constant)
    elif isinstance(constant, frozenset):
      yield str(sorted(map(repr, constant)))  # in another order elsewhere
    else:
      yield repr(constant)

"""What values of a macro flow are called, for people.

After the parameters of the functions that take them: "state.learner.params".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from rlinf_jax.runtime import programs


def of_leaves(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[str, ...]:
  """Returns a name for each leaf of a function's positional arguments."""
  parameters = _parameters(fn, len(args))
  paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(args)[0]]
  return tuple(
    ".".join(
      [parameters[path[0].idx]]
      + [jax.tree_util.keystr((key,), simple=True) for key in path[1:]]
    )
    for path in paths
  )


def of_inputs(node: programs.Node) -> list[tuple[str, ...]]:
  """Returns what the stage, or the stages of a loop, call each input."""
  if isinstance(node, programs.StageNode):
    leaves: Any = range(len(node.inputs))
    args = jax.tree.unflatten(node.call.in_tree, leaves)
    return [(name,) for name in of_leaves(node.call.fn, args)]
  found: dict[int, list[str]] = {v: [] for v in node.body.inputs}
  for inner in node.body.nodes:
    for v, called in read_by(node.body, inner).items():
      if v in found:
        found[v] += called
  return [tuple(dict.fromkeys(found[v])) for v in node.body.inputs]


def read_by(
  program: programs.Program, node: programs.Node
) -> dict[int, tuple[str, ...]]:
  """Returns what a node reads, as `programs.sources`, by what it calls it."""
  found: dict[int, list[str]] = {}
  for value, called in zip(node.inputs, of_inputs(node)):
    for v in programs.sources(program, [value]):
      found.setdefault(v, []).extend(called)
  return {v: tuple(dict.fromkeys(called)) for v, called in found.items()}


def joined(names: Iterable[str]) -> str:
  """Returns names of leaves as one: of each argument what they have in common.

  "params.w" and "params.b" are "params"; "params.w" alone stays.
  """
  parts: dict[str, list[str]] = {}
  for name in names:
    first, *rest = name.split(".")
    if first not in parts:
      parts[first] = rest
    else:
      shared = zip(parts[first], rest)
      same = [a == b for a, b in shared]
      length = same.index(False) if False in same else len(same)
      parts[first] = rest[:length]
  return ", ".join(".".join([first, *rest]) for first, rest in parts.items())


def _parameters(fn: Callable[..., Any], count: int) -> list[str]:
  """Returns the names of a function's first parameters, or their numbers."""
  numbers = [str(i) for i in range(count)]
  try:
    found = inspect.signature(fn).parameters.values()
  except (TypeError, ValueError):  # written in C
    return numbers
  positional = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
  )
  names = [p.name for p in found if p.kind in positional][:count]
  return names + numbers[len(names) :]

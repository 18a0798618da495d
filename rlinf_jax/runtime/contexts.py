"""What all iterations of an executor share."""

from __future__ import annotations

import functools

from rlinf_jax.runtime import (
  executables,
  graphs,
  ledgers,
  machines,
  programs,
  tasks,
  values,
)


class Context:
  """What all iterations of an executor share.

  Args:
    graph: the macro flow.
    machine: its devices.
    ledger: of what is resident.
    compiled: stages that are compiled already, and where others are kept.
  """

  def __init__(
    self,
    graph: graphs.Graph,
    machine: machines.Machine,
    ledger: ledgers.Ledger,
    *,
    compiled: executables.Executables,
  ) -> None:
    self.graph, self.machine, self.ledger = graph, machine, ledger
    self.program = graph.traced.program
    self.compiled = compiled
    self.board = values.Board()
    self.constants = {
      v: values.Value(self.board, ledger, what=f"constant {v}")
      for v in self.program.constants
    }
    for v, constant in self.program.constants.items():
      self.constants[v].put(constant)
    self.made_state = _made_state(graph)
    # Asked for by every task of every iteration.
    self.place_of = functools.lru_cache(maxsize=4096)(self._place_of)

  def place(self, task: tasks.Task) -> executables.Place:
    """Returns the devices that a task has."""
    return executables.place_of(self.machine.jax_devices(task.devices))

  def _place_of(self, task: tasks.Task) -> executables.Place | None:
    """Returns as many of a task's devices as it uses; None on the host."""
    node = task.inner or task.node
    if isinstance(node, programs.LoopNode):
      return executables.for_loop(self.place(task), node)
    assert node is not None
    if node.spec.place != "mesh":
      return None
    if node.is_barrier:
      return self.place(task)
    return executables.for_items(
      self.place(task), task.items[1] - task.items[0], node.spec.quantum
    )


def _made_state(graph: graphs.Graph) -> dict[str, dict[int, bool]]:
  """Returns the state leaves that each stage makes.

  True where nobody else reads them: once it has made the next value, the one
  that it was made from is not needed any more.
  """
  program = graph.traced.program
  readers: dict[int, set[str]] = {}
  for node in program.nodes:
    for v in programs.sources(program, node.inputs):
      readers.setdefault(v, set()).add(node.name)
  given_out = programs.sources(program, program.outputs)
  found: dict[str, dict[int, bool]] = {}
  for i in range(graph.traced.num_state):
    before, maker = program.inputs[i], program.maker.get(program.outputs[i])
    if maker is not None:
      name = program.nodes[maker].name
      is_alone = readers.get(before, set()) <= {name}
      found.setdefault(name, {})[i] = is_alone and before not in given_out
  return found

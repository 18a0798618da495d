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

"""State that is brought back while the stage before still computes.

A plan swaps a stage's state in when the devices are free, as if nothing else
could run meanwhile. A copy and a computation can overlap, though, where both
fit: then the copy starts with the computation before it, and the plan's own
swap finds what it would have brought.
"""

from __future__ import annotations

from rlinf_jax.runtime import executables, ledgers, machines, tasks
from scheduler import plans

Following = tuple[int, int]  # task, iterations later


class Prefetching:
  """Which swaps can start early, and whether there is room for them.

  Args:
    plan: what runs when and where.
    machine: on what.
    ledger: of what is resident.
    compiled: knows what a stage needs besides.
  """

  def __init__(
    self,
    plan: tasks.TaskPlan,
    machine: machines.Machine,
    ledger: ledgers.Ledger,
    compiled: executables.Executables,
  ) -> None:
    self._machine, self._ledger, self._compiled = machine, ledger, compiled
    self._following = _following(plan)

  def behind(self, task: int) -> tuple[Following, ...]:
    """Returns the swaps that can start when a task does."""
    return self._following.get(task, ())

  def has_room(self, task: tasks.Task, num_bytes: int) -> bool:
    """Returns whether a task's devices can hold so many bytes more.

    Beside what lies there and what the task makes and needs meanwhile.

    Args:
      task: that computes.
      num_bytes: of each of its devices.
    """
    limit = self._ledger.budget_bytes
    if limit is None:
      limit = self._machine.cluster.classes[0].memory_bytes
    name = task.stage
    if task.kind == "loop" and task.node is not None:
      name = task.node.name  # as which the whole of it is compiled
    needs = max(
      (c.num_bytes for c in self._compiled.compilations if c.stage == name),
      default=0,
    )
    return all(
      self._ledger.resident_bytes(device) + needs + num_bytes <= limit
      for device in self._machine.jax_devices(task.devices)
    )


def _following(plan: tasks.TaskPlan) -> dict[int, tuple[Following, ...]]:
  """Returns the swaps into devices after the last task that computes there."""
  task_of = {a: t for t, task in enumerate(plan.tasks) for a in task.activities}
  found: dict[int, dict[Following, None]] = {}
  for order in plan.plan.orders:
    for i, slot in enumerate(order):
      swap = plan.tasks[task_of[slot.activity]]
      if swap.kind != "swap_in":
        continue
      before = _last_computing(plan, order, i, task_of)
      if before is not None and plan.tasks[before[0]].devices == swap.devices:
        t, lag = before
        found.setdefault(t, {})[task_of[slot.activity], lag] = None
  return {t: tuple(swaps) for t, swaps in found.items()}


def _last_computing(
  plan: tasks.TaskPlan,
  order: tuple[plans.Slot, ...],
  position: int,
  task_of: dict[int, int],
) -> Following | None:
  """Returns the task that computes before a slot, and how much earlier."""
  arcs = list(plans.cycle_arcs(order))
  lag = 0
  for back in range(1, len(order)):
    at = position - back
    lag += arcs[at].lag
    t = task_of[order[at].activity]
    if plan.tasks[t].kind in ("compute", "loop"):
      return (t, lag) if lag >= 0 else None
    if plan.tasks[t].kind not in ("swap_in", "swap_out"):
      return None
  return None

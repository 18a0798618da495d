"""A macro flow as one program, where a plan has it all on the same devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rlinf_jax import flow
from rlinf_jax.runtime import executables, executor, ledgers, meshes, transport
from scheduler import timelines


class OneProgram:
  """A macro flow, fused; call it as the flow.

  Args:
    fn: the macro flow.
    devices: on which all of it runs.
    donate: whether the state's buffers may be reused.
    budget_bytes: per device; a program that takes more is not run. None: no
      limit.
  """

  def __init__(
    self,
    fn: Callable[..., Any],
    devices: tuple[jax.Device, ...],
    *,
    donate: bool,
    budget_bytes: int | None = None,
  ) -> None:
    mesh = None if len(devices) == 1 else meshes.mesh_of(devices)
    self._program = flow.fuse(fn, mesh=mesh, donate=(0,) if donate else ())
    self._place = executables.place_of(devices)
    self._starts_ns: list[int] = []
    self._name = getattr(fn, "__name__", "flow")
    self._budget_bytes = budget_bytes

  def __call__(self, *args: Any) -> Any:
    placed = self._placed(args)
    self._check_memory(placed)
    self._starts_ns.append(time.perf_counter_ns())
    return self._program(*placed)

  def warm_up(self, state: Any, *inputs: Any) -> None:
    """Compiles ahead, by an iteration whose results nobody sees.

    On several devices by two: the second one's state lies where the first has
    left it. (What `lower().compile()` compiles, a call compiles again.)

    Raises:
      StageError: it takes more than the budget.
    """
    placed = self._placed((jax.tree.map(jnp.copy, state), *inputs))
    self._check_memory(placed)
    out = self._program(*placed)
    if len(self._place.devices) > 1:
      out = self._program(*self._placed((state_of(out, state), *inputs)))
    jax.block_until_ready(out)

  def forget(self) -> None:
    """Begins the timeline anew."""
    self._starts_ns.clear()

  def timeline(self) -> timelines.Timeline:
    """Returns the calls: each lasts until the next one; the last is left out.

    So that nothing has to be waited for: a program may still be running when
    the next one is asked for.
    """
    zero_ns = self._starts_ns[0] if self._starts_ns else 0
    name = ",".join(str(device.id) for device in self._place.devices)
    return timelines.Timeline(
      source="measured",
      label="one program",
      events=tuple(
        timelines.Event(
          kind="compute",
          stage="all stages",
          iteration=i,
          resources=(name,),
          start_ns=start - zero_ns,
          stop_ns=stop - zero_ns,
        )
        for i, (start, stop) in enumerate(
          zip(self._starts_ns, self._starts_ns[1:])
        )
      ),
    )

  def _check_memory(self, args: Any) -> None:
    """Compiles the program, the first time, to see what it takes.

    Only where there is a budget: the program is compiled once more to be run.
    """
    if self._budget_bytes is None:
      return
    analysis = self._program.lower(*args).compile().memory_analysis()
    budget_bytes, self._budget_bytes = self._budget_bytes, None
    if analysis is None:
      return
    parts = {
      "arguments": analysis.argument_size_in_bytes,
      "results": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
      "temporaries": analysis.temp_size_in_bytes,
    }
    if sum(parts.values()) <= budget_bytes:
      return
    self._budget_bytes = budget_bytes
    listed = ", ".join(f"{name} {n:,}" for name, n in parts.items())
    error = ledgers.OverBudgetError(
      f"as one program it takes {sum(parts.values()):,} bytes on each of"
      f" {len(self._place.devices)} devices, of a budget of {budget_bytes:,}:"
      f" {listed}. Use more devices, or a plan with smaller granules or swapped"
      " states"
    )
    raise executor.StageError(
      f"flow '{self._name}' does not fit: {error}"
    ) from error

  def _placed(self, args: Any) -> Any:
    """Brings to the devices what is not there yet, all in one copy."""
    devices, whole = set(self._place.devices), self._place.replicated()

    def layout(x: Any) -> jax.sharding.Sharding:
      is_there = isinstance(x, jax.Array) and x.sharding.device_set == devices
      return x.sharding if is_there else whole

    return transport.send(args, jax.tree.map(layout, args))


def state_of(out: Any, state: Any) -> Any:
  """Returns the state in what a macro flow returned: all of it, or the first.

  Args:
    out: what it returned.
    state: what it was given.
  """
  given: Any = jax.tree.structure(state)
  returned: Any = jax.tree.structure(out)
  return out if returned == given else out[0]

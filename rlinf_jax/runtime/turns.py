"""Loops that run stage by stage, in lanes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from rlinf_jax.flow import granules
from rlinf_jax.runtime import (
  contexts,
  executables,
  programs,
  tasks,
  transport,
  values,
)


class LoopState:
  """A loop that runs stage by stage, in lanes.

  What every turn reads alike, and the inputs of all turns, are brought to a
  stage's devices once; a turn then takes its own piece inside its program.

  Args:
    context: see `contexts.Context`.
    node: the loop.
    outer: the iteration's values.
  """

  def __init__(
    self,
    context: contexts.Context,
    node: programs.LoopNode,
    outer: dict[int, values.Value],
  ) -> None:
    self._context, self._node, self._outer = context, node, outer
    self._axes = context.graph.divisions[node.name].axes
    body = node.body
    first = node.num_consts + node.num_carry
    self._carry = body.inputs[node.num_consts : first]
    self._consts = dict(zip(body.inputs, node.inputs[: node.num_consts]))
    self._stacked = dict(zip(body.inputs[first:], node.inputs[first:]))
    self._lanes: dict[tuple[int, int], _Lane] = {}
    self._lock = threading.Lock()

  def run(self, task: tasks.Task) -> Any:
    """Runs one stage of one turn of one lane."""
    assert task.inner is not None
    inner, body = task.inner, self._node.body
    with self._lock:
      lane = self._lanes.setdefault(task.items, _Lane(*task.items))
    if inner is body.nodes[0]:
      self._begin_turn(lane, task.turn)
    if inner.spec.place == "mesh":
      out = self._run_on_mesh(lane, inner, task)
    else:
      out = self._run_on_host(lane, inner, task.turn)
    lane.known.update(zip(inner.outputs, out))
    if inner is body.nodes[-1]:
      out = [*out, *self._end_turn(lane, task)]
    return out

  def _run_on_mesh(
    self, lane: _Lane, inner: programs.StageNode, task: tasks.Task
  ) -> list[Any]:
    place = self._context.place_of(task)
    assert place is not None
    needs = _needs(inner)
    stacked = tuple(v for v in needs if v in self._stacked)
    key = ("turn", self._node.name, inner.name, place, lane.size)
    run = self._context.compiled.custom(
      key,
      _turn_fn(inner, needs, stacked, self._axes, lane.size),
      place,
      inner.name,
    )
    given = [self._placed(lane, v, inner.name, place) for v in needs]
    return run(np.int32(task.turn), np.int32(lane.start), *given)

  def _run_on_host(
    self, lane: _Lane, inner: programs.StageNode, turn: int
  ) -> list[Any]:
    at = {v: self._on_host(lane, v, turn) for v in _needs(inner)}
    if inner.glue is not None:
      made = self._context.compiled.glue(inner.glue)(
        *[at[v] for v in inner.glue.inputs]
      )
      at |= dict(zip(inner.glue.outputs, made))
    return inner.call.on_host(*[at[v] for v in inner.inputs])

  def _placed(
    self, lane: _Lane, v: int, stage: str, place: executables.Place
  ) -> Any:
    """Returns a value on a place: of xs all turns, of others this turn's."""
    axis = self._axes.get(v)
    if v in lane.known:
      return transport.send(lane.known[v], place.sharding(axis, lane.size))
    if (stage, v, place) not in lane.placed:
      lane.placed[stage, v, place] = self._from_outside(lane, v, axis, place)
    return lane.placed[stage, v, place]

  def _from_outside(
    self, lane: _Lane, v: int, axis: int | None, place: executables.Place
  ) -> Any:
    if v in self._consts:
      return self._outer[self._consts[v]].whole(place.replicated())
    if v in self._stacked:
      return self._outer[self._stacked[v]].whole(place.replicated())
    if v in self._carry:
      return self._first_carry(lane, v, place.sharding(axis, lane.size))
    return transport.send(self._node.body.constants[v], place.replicated())

  def _first_carry(self, lane: _Lane, v: int, layout: Any) -> Any:
    i = self._node.num_consts + self._carry.index(v)
    axis = self._axes[v]
    outer = self._outer[self._node.inputs[i]]
    lane.known[v] = outer.read(lane.start, lane.stop, axis, layout)
    return lane.known[v]

  def _on_host(self, lane: _Lane, v: int, turn: int) -> Any:
    """Returns a turn's value as a NumPy array."""
    body = self._node.body
    if v in lane.known:
      return np.asarray(lane.known[v])
    if v in body.constants:
      return np.asarray(body.constants[v])
    if v in self._carry:
      return self._first_carry(lane, v, None)
    if v in self._consts:
      return self._outer[self._consts[v]].whole(None)
    row = self._outer[self._stacked[v]].whole(None)[turn]
    axis = self._axes.get(v)
    if axis is None:
      return row
    return row[(slice(None),) * axis + (slice(lane.start, lane.stop),)]

  def _begin_turn(self, lane: _Lane, turn: int) -> None:
    outputs = self._node.body.outputs[: self._node.num_carry]
    handed_on = [lane.known[v] for v in outputs] if turn else []
    lane.known.clear()
    lane.known.update(zip(self._carry, handed_on))

  def _end_turn(self, lane: _Lane, task: tasks.Task) -> list[Any]:
    node, body = self._node, self._node.body
    assert task.inner is not None
    glue = body.glue
    wanted = [*(glue.inputs if glue else ()), *body.outputs]
    made = set(glue.outputs) if glue else set()
    for v in wanted:
      if v in made or v in lane.known:
        continue
      lane.known[v] = self._turns_own(lane, v, task)
    if glue is not None:
      given = [lane.known[v] for v in glue.inputs]
      if task.inner.spec.place == "mesh":
        place = self._context.place(task)
        given = transport.send(given, place.replicated())
      out = self._context.compiled.glue(glue)(*given)
      lane.known.update(zip(glue.outputs, out))
    ys = [lane.known[v] for v in body.outputs[node.num_carry :]]
    lane.ys.append(ys)
    return ys if task.turn + 1 < node.length else self._finish(lane)

  def _turns_own(self, lane: _Lane, v: int, task: tasks.Task) -> Any:
    """Returns a turn's value of what no stage has made."""
    if v in self._stacked:
      return self._on_host(lane, v, task.turn)
    place = self._context.place(task)
    return self._from_outside(lane, v, self._axes.get(v), place)

  def _finish(self, lane: _Lane) -> list[Any]:
    node, body = self._node, self._node.body
    out = [lane.known[v] for v in body.outputs[: node.num_carry]]
    out += [_stack(list(y_t)) for y_t in zip(*lane.ys)]
    for v, x in zip(node.outputs, out):
      self._outer[v].add(lane.start, lane.stop, x)
    return out


class _Lane:
  """What a lane of a loop holds between its stages."""

  def __init__(self, start: int, stop: int) -> None:
    self.start, self.stop = start, stop
    self.known: dict[int, Any] = {}  # of this turn
    # Of all turns, by stage and by the place that it runs on.
    self.placed: dict[tuple[str, int, executables.Place], Any] = {}
    self.ys: list[list[Any]] = []

  @property
  def size(self) -> int:
    return self.stop - self.start


def _needs(node: programs.StageNode) -> list[int]:
  made = set(node.glue.outputs) if node.glue else set()
  reads = [*(node.glue.inputs if node.glue else ())]
  reads += [v for v in node.inputs if v not in made]
  return list(dict.fromkeys(reads))


def _turn_fn(
  node: programs.StageNode,
  needs: Sequence[int],
  stacked: Sequence[int],
  axes: dict[int, int],
  size: int,
) -> Callable[..., list[Any]]:
  """Returns (turn, first item, *needs) -> a stage's results.

  One program serves all lanes of a size; it computes the glue before the stage
  too.
  """

  def run(turn: Any, start: Any, *leaves: Any) -> list[Any]:
    known = dict(zip(needs, leaves))
    for v in stacked:
      row = jax.lax.dynamic_index_in_dim(known[v], turn, 0, keepdims=False)
      if v in axes:
        row = jax.lax.dynamic_slice_in_dim(row, start, size, axes[v])
      known[v] = row
    if node.glue is not None:
      glue = jex_core.jaxpr_as_fun(node.glue.jaxpr)
      made = glue(*[known[v] for v in node.glue.inputs])
      known |= dict(zip(node.glue.outputs, made))
    given = [known[v] for v in node.inputs]
    return granules.run_granule(node.call, node.axes, node.out_axis, given)

  return run


def _stack(rows: list[Any]) -> Any:
  """Stacks the rows of all turns where the last of them is.

  The first turn's come from outside the loop, and may lie elsewhere.
  """
  if isinstance(rows[-1], np.ndarray):
    return np.stack([np.asarray(row) for row in rows])
  return _stack_on_device(*transport.send(rows, rows[-1].sharding))


@jax.jit
def _stack_on_device(*rows: Any) -> Any:
  return jnp.stack(rows)

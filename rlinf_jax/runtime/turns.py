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

MaybePlace = executables.Place | None  # None is the host


class LoopState:
  """A loop that runs stage by stage, in lanes.

  Stages of one lane may be in different turns, on different threads: a
  simulator goes on while what it has made is still being judged. So each turn
  has values of its own, until every stage has ended it.

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
    self._handed_on = dict(zip(self._carry, body.outputs[: node.num_carry]))
    self._consts = dict(zip(body.inputs, node.inputs[: node.num_consts]))
    self._stacked = dict(zip(body.inputs[first:], node.inputs[first:]))
    self._lanes: dict[tuple[int, int], _Lane] = {}
    self._lock = threading.Lock()

  def release(self) -> None:
    """Forgets what lanes hold, which hand nothing on any more."""
    for lane in self._lanes.values():
      with lane.lock:
        lane.handed_on.update(range(len(self._node.outputs)))
        for i in list(lane.rows):
          self._forget_rows(lane, i)

  def run(self, task: tasks.Task) -> Any:
    """Runs one stage of one turn of one lane."""
    assert task.inner is not None
    inner, turn = task.inner, task.turn
    with self._lock:
      if task.items not in self._lanes:
        self._lanes[task.items] = _Lane(*task.items, self._node)
      lane = self._lanes[task.items]
    place = self._context.place_of(task)
    if place is None:
      out = self._run_on_host(lane, inner, turn)
    else:
      out = self._run_on_mesh(lane, inner, turn, place)
    with lane.lock:
      lane.turns.setdefault(turn, {}).update(zip(inner.outputs, out))
      lane.num_ended[inner.name] = turn + 1
      results = self._hand_on(lane, place)
      self._forget_ended(lane, place)
    return [*out, *results]

  def _run_on_mesh(
    self,
    lane: _Lane,
    inner: programs.StageNode,
    turn: int,
    place: executables.Place,
  ) -> list[Any]:
    needs = _needs(inner)
    stacked = tuple(v for v in needs if v in self._stacked)
    key = ("turn", self._node.name, inner.name, place, lane.size)
    run = self._context.compiled.custom(
      key,
      _turn_fn(inner, needs, stacked, self._axes, lane.size),
      place,
      inner.name,
    )
    given = [self._on_place(lane, v, turn, inner.name, place) for v in needs]
    return run(np.int32(turn), np.int32(lane.start), *given)

  def _run_on_host(
    self, lane: _Lane, inner: programs.StageNode, turn: int
  ) -> list[Any]:
    at = {
      v: np.asarray(self._of_turn(lane, v, turn, None)) for v in _needs(inner)
    }
    if inner.glue is not None:
      made = self._context.compiled.glue(inner.glue)(
        *[at[v] for v in inner.glue.inputs]
      )
      at |= dict(zip(inner.glue.outputs, made))
    return inner.call.on_host(*[at[v] for v in inner.inputs])

  def _on_place(
    self, lane: _Lane, v: int, turn: int, stage: str, place: executables.Place
  ) -> Any:
    """Returns a value on a place: of xs all turns, of others this turn's."""
    if not self._is_outside(v):
      layout = place.sharding(self._axes.get(v), lane.size)
      return transport.send(self._of_turn(lane, v, turn, place), layout)
    if (stage, v, place) not in lane.placed:
      whole = self._node.body.constants.get(v)
      if whole is None:
        outer = self._consts.get(v, self._stacked.get(v))
        assert outer is not None
        whole = self._outer[outer].whole(place.replicated())
      lane.placed[stage, v, place] = transport.send(whole, place.replicated())
    return lane.placed[stage, v, place]

  def _of_turn(self, lane: _Lane, v: int, turn: int, place: MaybePlace) -> Any:
    """Returns a turn's value, wherever it lies.

    Args:
      lane: whose.
      v: the value, which this turn's stages have made already, or turns before.
      turn: from 0.
      place: where glue is computed, and where what comes from outside goes.
    """
    with lane.lock:
      known = lane.turns.setdefault(turn, {})
      if v in known:
        return known[v]
      if v in self._handed_on:
        if turn:
          found = self._of_turn(lane, self._handed_on[v], turn - 1, place)
        else:
          found = self._first_carry(lane, v, place)
      elif self._is_outside(v):
        return self._from_outside(lane, v, turn, place)
      else:
        found = self._through_glue(lane, v, turn, place)
      known[v] = found
      return found

  def _is_outside(self, v: int) -> bool:
    return (
      v in self._consts or v in self._stacked or v in self._node.body.constants
    )

  def _from_outside(
    self, lane: _Lane, v: int, turn: int, place: MaybePlace
  ) -> Any:
    if v in self._node.body.constants:
      return self._node.body.constants[v]
    if v in self._consts:
      layout = None if place is None else place.replicated()
      return self._outer[self._consts[v]].whole(layout)
    row = self._outer[self._stacked[v]].whole(None)[turn]
    axis = self._axes.get(v)
    if axis is None:
      return row
    return row[(slice(None),) * axis + (slice(lane.start, lane.stop),)]

  def _first_carry(self, lane: _Lane, v: int, place: MaybePlace) -> Any:
    axis = self._axes[v]
    layout = None if place is None else place.sharding(axis, lane.size)
    i = self._node.num_consts + self._carry.index(v)
    outer = self._outer[self._node.inputs[i]]
    return outer.read(lane.start, lane.stop, axis, layout)

  def _through_glue(
    self, lane: _Lane, v: int, turn: int, place: MaybePlace
  ) -> Any:
    """Returns what glue behind a turn's stages makes; all of it, if it can."""
    glue = self._node.body.glue
    assert glue is not None
    if turn >= min(lane.num_ended.values()):
      glue = glue.parts[v]  # a stage that makes what v does not need still runs
    given = [self._of_turn(lane, u, turn, place) for u in glue.inputs]
    given = transport.send(given, None if place is None else place.replicated())
    out = self._context.compiled.glue(glue)(*given)
    made = dict(zip(glue.outputs, out))
    lane.turns[turn].update(made)
    return made[v]

  def _hand_on(self, lane: _Lane, place: MaybePlace) -> list[Any]:
    """Gives what is known by now to those behind the loop; returns it."""
    node, made = self._node, []
    for i, v in enumerate(node.body.outputs):
      if i in lane.handed_on:
        continue
      num_turns = min(lane.num_ended[name] for name in node.makers[i])
      rows = lane.rows.setdefault(i, [])
      if i >= node.num_carry:
        for turn in range(len(rows), num_turns):
          rows.append(self._of_turn(lane, v, turn, place))
          self._context.ledger.add(rows[-1], f"turns of {node.name}")
          made.append(rows[-1])
      if num_turns == node.length:
        lane.handed_on.add(i)
        if i < node.num_carry:
          whole = self._of_turn(lane, v, node.length - 1, place)
        else:
          whole = _stack(rows)
        self._outer[node.outputs[i]].add(lane.start, lane.stop, whole)
        self._forget_rows(lane, i)
        made.append(whole)
    return made

  def _forget_rows(self, lane: _Lane, i: int) -> None:
    for row in lane.rows.pop(i):
      self._context.ledger.remove(row)

  def _forget_ended(self, lane: _Lane, place: MaybePlace) -> None:
    """Forgets turns that every stage has ended, but what they hand on."""
    while lane.first_turn < min(lane.num_ended.values()):
      if lane.first_turn + 1 < self._node.length:
        for v in self._carry:
          self._of_turn(lane, v, lane.first_turn + 1, place)
      del lane.turns[lane.first_turn]
      lane.first_turn += 1
    if lane.first_turn == self._node.length:
      lane.placed.clear()


class _Lane:
  """What a lane of a loop holds between its stages."""

  def __init__(self, start: int, stop: int, node: programs.LoopNode) -> None:
    self.start, self.stop = start, stop
    self.lock = threading.RLock()
    self.turns: dict[int, dict[int, Any]] = {}  # values of each turn
    self.first_turn = 0  # of those
    self.num_ended = {inner.name: 0 for inner in node.body.nodes}
    # Of all turns, by stage and by the place that it runs on.
    self.placed: dict[tuple[str, int, executables.Place], Any] = {}
    # What each turn has given, of each stacked output that is not whole yet.
    self.rows: dict[int, list[Any]] = {}
    self.handed_on: set[int] = set()  # outputs, by position

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
    return granules.run_granule(
      node.call, node.axes, node.out_axis, given, is_whole=False
    )

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

"""The order of prompts: permutations, and nothing lost or repeated."""

from __future__ import annotations

import collections
import dataclasses
import json
import random

import pytest

from rlinf_jax import data


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 17, 64, 100, 1000])
@pytest.mark.parametrize("seed", [None, 0, 7])
def test_every_epoch_has_each_prompt_once(size, seed):
  for epoch in range(3):
    positions = range(epoch * size, (epoch + 1) * size)
    indices = [data.index_at(p, size=size, seed=seed) for p in positions]
    assert sorted(indices) == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own():
  orders = {
    tuple(data.index_at(e * 20 + i, size=20, seed=seed) for i in range(20))
    for e in range(10)
    for seed in range(10)
  }
  assert len(orders) == 100


def test_without_a_seed_the_order_is_that_of_the_data_set():
  indices = [data.index_at(p, size=3, seed=None) for p in range(7)]
  assert indices == [0, 1, 2, 0, 1, 2, 0]


def test_each_prompt_comes_first_equally_often():
  counts = collections.Counter(
    data.index_at(0, size=5, seed=seed) for seed in range(2000)
  )
  # 400 each; the deviation of a binomial is sqrt(2000 * 0.2 * 0.8) = 17.9
  assert all(320 < counts[i] < 480 for i in range(5))


def test_the_order_stays_what_it_was():
  # A run that is resumed after an update must go on in the same order.
  indices = [data.index_at(p, size=10, seed=1) for p in range(10)]
  assert indices == [5, 8, 4, 7, 0, 3, 1, 9, 6, 2]


def test_a_huge_data_set_is_permuted_without_its_size_in_memory():
  indices = {data.index_at(p, size=10**12, seed=0) for p in range(100)}
  assert len(indices) == 100
  assert all(0 <= i < 10**12 for i in indices)


@pytest.mark.parametrize(("position", "size"), [(-1, 3), (0, 0)])
def test_there_is_no_such_position(position, size):
  with pytest.raises(ValueError, match=f"position={position}, size={size}"):
    data.index_at(position, size=size, seed=0)


def test_a_cursor_by_hand():
  taken, cursor = data.take(data.Cursor(), 3)
  assert taken == (0, 1, 2)
  cursor = data.finish(cursor, [1])
  taken, cursor = data.take(cursor, 2)
  assert taken == (3, 4)
  cursor = data.finish(cursor, [4])
  assert cursor == data.Cursor(next_position=5, under_way=(0, 2, 3))
  # After a resume what was under way comes first.
  cursor = data.reopen(cursor)
  taken, cursor = data.take(cursor, 2)
  assert taken == (0, 2)
  taken, cursor = data.take(cursor, 2)
  assert taken == (3, 5)
  assert cursor == data.Cursor(next_position=6, under_way=(0, 2, 3, 5))


def test_a_cursor_survives_json():
  cursor = data.Cursor(next_position=9, waiting=(1, 4), under_way=(7,))
  text = json.dumps(dataclasses.asdict(cursor))
  assert data.Cursor.from_json(json.loads(text)) == cursor


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_or_repeated_however_often_a_run_dies(seed):
  draw = random.Random(seed)
  learnt = []  # what the saved state has learnt from
  saved = data.Cursor()
  for _ in range(10):  # lives of the run
    cursor, since = data.reopen(saved), []
    for _ in range(draw.randrange(20)):
      if cursor.under_way and draw.random() < 0.6:
        num = draw.randint(1, len(cursor.under_way))
        done = draw.sample(cursor.under_way, num)
        cursor = data.finish(cursor, done)
        since += done
      else:
        _, cursor = data.take(cursor, draw.randint(0, 5))
      if draw.random() < 0.3:
        learnt, since, saved = learnt + since, [], cursor
  cursor = data.reopen(saved)
  rest = cursor.waiting
  assert sorted([*learnt, *rest]) == list(range(saved.next_position))


@pytest.mark.parametrize("positions", [[5], [0, 0], [0, 5]])
def test_only_what_is_under_way_can_be_finished(positions):
  _, cursor = data.take(data.Cursor(), 3)
  with pytest.raises(ValueError, match="those under way, \\[0, 1, 2\\]"):
    data.finish(cursor, positions)

"""Data sets that are computed, not stored."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import overload

from rlinf_jax import types

TaskFn = Callable[[int, int], types.Prompt]
"""(index, seed) -> prompt, a pure function."""


class Procedural(Sequence[types.Prompt]):
  """The prompts task_fn(0, seed), ..., task_fn(size - 1, seed).

  Different seeds give different prompts, so one task makes data for training
  and for evaluation. Where a task knows few prompts in all, as addition of two
  digits does, the two will share some.

  Args:
    task_fn: such as `arithmetic`, or `functools.partial(arithmetic,
      max_digits=3)`.
    size: how many prompts there are.
    seed: of all of them.

  Raises:
    ValueError: size is less than 1.
  """

  def __init__(self, task_fn: TaskFn, *, size: int, seed: int = 0):
    if size < 1:
      raise ValueError(
        f"Given size={size}, expected at least 1: how many prompts the data "
        "set has before they come again."
      )
    self._task_fn = task_fn
    self._size = size
    self._seed = seed

  def __len__(self) -> int:
    return self._size

  @overload
  def __getitem__(self, index: int) -> types.Prompt: ...

  @overload
  def __getitem__(self, index: slice) -> Sequence[types.Prompt]: ...

  def __getitem__(
    self, index: int | slice
  ) -> types.Prompt | Sequence[types.Prompt]:
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(self._size))]
    if not -self._size <= index < self._size:
      raise IndexError(f"Given index {index}, expected one of {self._size}.")
    return self._task_fn(index % self._size, self._seed)


def generator(task: str, index: int, seed: int) -> random.Random:
  """Returns the generator of random numbers of one prompt."""
  return random.Random(f"{task} {seed} {index}")

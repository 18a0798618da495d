"""Numbers to sort."""

from __future__ import annotations

from rlinf_jax import types
from rlinf_jax.data import procedural


def sorting(
  index: int,
  seed: int,
  *,
  min_items: int = 3,
  max_items: int = 6,
  max_value: int = 99,
) -> types.Prompt:
  """Returns numbers to sort from the least to the greatest: "sort 7 31 4=".

  Args:
    index: of the prompt.
    seed: of the data set.
    min_items: how many numbers at least.
    max_items: how many at most; uniform in between, so lengths vary.
    max_value: numbers are uniform in [0, max_value], and may repeat.

  Returns:
    A prompt with an answer like "4 7 31", and as metadata "task" and "items".

  Raises:
    ValueError: not 1 <= min_items <= max_items, or max_value is negative.
  """
  if not 1 <= min_items <= max_items or max_value < 0:
    raise ValueError(
      f"Given min_items={min_items}, max_items={max_items}, "
      f"max_value={max_value}; expected 1 <= min_items <= max_items and "
      "max_value >= 0."
    )
  draw = procedural.generator("sorting", index, seed)
  num_items = draw.randint(min_items, max_items)
  items = [draw.randint(0, max_value) for _ in range(num_items)]
  return types.Prompt(
    text=f"sort {' '.join(map(str, items))}=",
    answer=" ".join(map(str, sorted(items))),
    metadata={"task": "sorting", "items": items},
  )

"""The numbers game of "Countdown": make a number out of others."""

from __future__ import annotations

import random

from rlinf_jax import types
from rlinf_jax.data import procedural

# A number, the expression that gives it, and how tightly that binds.
_Term = tuple[int, str, int]
_SUM, _PRODUCT, _NUMBER = 0, 1, 2


def countdown(
  index: int,
  seed: int,
  *,
  num_items: int = 4,
  max_value: int = 99,
  max_target: int = 999,
) -> types.Prompt:
  """Returns numbers to combine into another: "make 36 from 3 9 4 5=".

  Each number is to be used once, with +, -, *, / and brackets. There is a
  solution, whose intermediate results are whole and positive.

  Args:
    index: of the prompt.
    seed: of the data set.
    num_items: how many numbers.
    max_value: numbers are uniform in [1, max_value].
    max_target: the number to make is in [1, max_target].

  Returns:
    A prompt with a solution (one of several, as a rule) as its answer, and as
    metadata "task", "items" and "target", which `rewards.countdown` checks.

  Raises:
    ValueError: a setting is out of range.
  """
  if num_items < 2 or not 1 <= max_value <= max_target:
    raise ValueError(
      f"Given num_items={num_items}, max_value={max_value}, "
      f"max_target={max_target}; expected num_items >= 2 and 1 <= max_value "
      "<= max_target."
    )
  draw = procedural.generator("countdown", index, seed)
  # To subtract, or to divide equals, never leads out of range: this ends.
  while True:
    items = [draw.randint(1, max_value) for _ in range(num_items)]
    target, solution = _combined(items, draw)
    if target <= max_target:
      break
  return types.Prompt(
    text=f"make {target} from {' '.join(map(str, items))}=",
    answer=solution,
    metadata={"task": "countdown", "items": items, "target": target},
  )


def _combined(items: list[int], draw: random.Random) -> tuple[int, str]:
  """Returns what the items give when combined at random, and how."""
  terms: list[_Term] = [(item, str(item), _NUMBER) for item in items]
  while len(terms) > 1:
    draw.shuffle(terms)
    a, b = sorted((terms.pop(), terms.pop()), reverse=True)
    terms.append(draw.choice(_results(a, b)))
  value, text, _ = terms[0]
  return value, text


def _results(a: _Term, b: _Term) -> list[_Term]:
  """Returns what two terms give, the first being no less than the second."""
  results = [
    (a[0] + b[0], f"{a[1]}+{b[1]}", _SUM),
    (a[0] * b[0], f"{_in(a, _PRODUCT)}*{_in(b, _PRODUCT)}", _PRODUCT),
  ]
  if a[0] > b[0]:
    results.append((a[0] - b[0], f"{a[1]}-{_in(b, _PRODUCT)}", _SUM))
  if a[0] % b[0] == 0:
    text = f"{_in(a, _PRODUCT)}/{_in(b, _NUMBER)}"
    results.append((a[0] // b[0], text, _PRODUCT))
  return results


def _in(term: _Term, binding: int) -> str:
  """Returns a term's expression, in brackets if it binds more loosely."""
  return term[1] if term[2] >= binding else f"({term[1]})"

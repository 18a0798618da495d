"""Arithmetic on whole numbers."""

from __future__ import annotations

import random

from rlinf_jax import types
from rlinf_jax.data import procedural

_OPERATIONS = {
  "+": lambda a, b: a + b,
  "-": lambda a, b: a - b,
  "*": lambda a, b: a * b,
}


def arithmetic(
  index: int,
  seed: int,
  *,
  min_digits: int = 1,
  max_digits: int = 2,
  operators: str = "+",
  num_terms: int = 2,
) -> types.Prompt:
  """Returns a sum (or difference, or product) to compute, such as "37+5=".

  Args:
    index: of the prompt.
    seed: of the data set.
    min_digits: of each number. How many digits it has is drawn first, so that
      short numbers are not rare; 0 has one.
    max_digits: likewise.
    operators: some of "+-*", each as likely as the others.
    num_terms: how many numbers; products are computed before sums.

  Returns:
    A prompt with the answer in decimal, and as metadata "task", "terms" and
    "operators".

  Raises:
    ValueError: a setting is out of range.
  """
  if not 1 <= min_digits <= max_digits or num_terms < 2:
    raise ValueError(
      f"Given min_digits={min_digits}, max_digits={max_digits}, "
      f"num_terms={num_terms}; expected 1 <= min_digits <= max_digits and at "
      "least 2 terms."
    )
  if not operators or set(operators) - set(_OPERATIONS):
    raise ValueError(
      f"Given operators={operators!r}, expected some of '+-*' in one string."
    )
  draw = procedural.generator("arithmetic", index, seed)
  terms = [
    _number(draw, draw.randint(min_digits, max_digits))
    for _ in range(num_terms)
  ]
  chosen = [draw.choice(operators) for _ in range(num_terms - 1)]
  text = str(terms[0])
  for operator, term in zip(chosen, terms[1:]):
    text += f"{operator}{term}"
  return types.Prompt(
    text=f"{text}=",
    answer=str(_value(terms, chosen)),
    metadata={"task": "arithmetic", "terms": terms, "operators": chosen},
  )


def _number(draw: random.Random, num_digits: int) -> int:
  least = 10 ** (num_digits - 1) if num_digits > 1 else 0
  return draw.randrange(least, 10**num_digits)


def _value(terms: list[int], operators: list[str]) -> int:
  sums, signs = [terms[0]], ["+"]
  for operator, term in zip(operators, terms[1:]):
    if operator == "*":
      sums[-1] *= term
    else:
      sums.append(term)
      signs.append(operator)
  value = 0
  for sign, term in zip(signs, sums):
    value = _OPERATIONS[sign](value, term)
  return value

"""Whether a response is mathematically equal to the reference, by math-verify.

Loaded by the processes of `scorers` alone: sympy, which it computes with, may
hang on what a model wrote, and math-verify's own time limits are signals, which
only a main thread gets.
"""

from __future__ import annotations

import logging
from typing import Any

try:
  import math_verify
except ModuleNotFoundError as error:
  raise ImportError(
    "Checking mathematics needs math-verify, which is not installed: pip "
    "install -e '.[reasoning]'."
  ) from error

# What it cannot compare is wrong, and no news.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def score(completion: Any) -> float:
  """Returns 1 where the last answer in a response equals the reference, else 0.

  Args:
    completion: with a `response` in LaTeX or plain text, and an `answer` in
      LaTeX, with or without dollar signs.

  Raises:
    ValueError: the reference is no mathematics.
  """
  reference = completion.answer
  if "$" not in reference and "\\boxed" not in reference:
    reference = f"${reference}$"
  expected = math_verify.parse(reference, parsing_timeout=None)
  if not expected:
    raise ValueError(
      f"The answer {completion.answer!r:.60} of the prompt "
      f"{completion.prompt!r:.60} is no mathematics that math-verify reads."
    )
  found = math_verify.parse(completion.response, parsing_timeout=None)
  return float(math_verify.verify(expected, found, timeout_seconds=None))

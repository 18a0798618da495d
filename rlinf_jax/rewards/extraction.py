"""Finding the answer in a response."""

from __future__ import annotations

import re
from collections.abc import Callable

ExtractFn = Callable[[str], str | None]
"""response -> the answer in it; None where there is none."""

_NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
_BOXED = "\\boxed{"


def whole(response: str) -> str:
  """Returns the response without the white space around it."""
  return response.strip()


def last_number(response: str) -> str | None:
  """Returns the last decimal number, without commas between thousands."""
  numbers = _NUMBER.findall(response)
  return numbers[-1].replace(",", "") if numbers else None


def tagged(response: str, *, tag: str = "answer") -> str | None:
  """Returns what stands between the last <answer> and the </answer> after."""
  _, opened, rest = response.rpartition(f"<{tag}>")
  inside, closed, _ = rest.partition(f"</{tag}>")
  return inside.strip() if opened and closed else None


def boxed(response: str) -> str | None:
  r"""Returns what is in the last \boxed{...}, whose braces must balance."""
  start = response.rfind(_BOXED)
  if start < 0:
    return None
  start += len(_BOXED)
  depth = 1
  for end in range(start, len(response)):
    depth += {"{": 1, "}": -1}.get(response[end], 0)
    if depth == 0:
      return response[start:end].strip()
  return None

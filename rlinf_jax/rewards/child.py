"""A process that computes rewards; run as a program, by `scorers`.

It imports nothing but the standard library and the file with the reward
function, and starts in the time that these take. One JSON object a line: first
what to load, then one completion after another; each is answered by one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import os
import pathlib
import resource
import signal
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
  """Answers until the input ends."""
  # The kernel kills this process with its parent, also while it hangs.
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  # What is printed goes to stderr; the answers have a channel of their own.
  answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
  requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
  os.dup2(2, 1)
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

  def answer(**content: Any) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()

  settings = json.loads(requests.readline())
  limit = settings["memory_bytes"]
  _, hard = resource.getrlimit(resource.RLIMIT_AS)
  if hard != resource.RLIM_INFINITY:
    limit = min(limit, hard)
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
  try:
    reward_fn = _load(settings["path"], settings["name"])
  except Exception as error:  # noqa: BLE001  a user's file may raise anything
    answer(
      error=traceback.format_exc(), is_import=isinstance(error, ImportError)
    )
    return
  answer()
  for line in requests:
    completion = types.SimpleNamespace(**json.loads(line))
    try:
      reward = reward_fn(completion)
    except MemoryError:
      # What fills the memory may be what an earlier call left behind.
      answer(raised=traceback.format_exc(), is_last=True)
      return
    except Exception:  # noqa: BLE001  a user's function may raise anything
      answer(raised=traceback.format_exc())
    else:
      if is_finite(reward):
        answer(reward=float(reward))
      else:
        answer(refused=repr(reward))


def is_finite(value: Any) -> bool:
  """Whether a value is a number, of whatever library, and finite."""
  try:
    return math.isfinite(value)
  except (TypeError, OverflowError):
    return False


def _load(path: str, name: str) -> Callable[[Any], Any]:
  module_name = f"rewards_of_{pathlib.Path(path).stem}"
  spec = importlib.util.spec_from_file_location(module_name, path)
  if spec is None or spec.loader is None:
    raise ImportError(f"{path} is no Python source.")
  module = importlib.util.module_from_spec(spec)
  # Dataclasses look their module up by name while they are being defined.
  sys.modules[module_name] = module
  spec.loader.exec_module(module)
  if not callable(getattr(module, name, None)):
    found = [k for k, v in vars(module).items() if callable(v) and k[:1] != "_"]
    raise ImportError(
      f"{path} has no function {name!r}; it has {', '.join(found) or 'none'}."
    )
  return getattr(module, name)


if __name__ == "__main__":
  main()

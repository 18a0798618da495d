"""What reasoning-gym itself says a response to one of its tasks is worth.

Loaded by the processes of `scorers` alone.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from typing import Any

try:
  import reasoning_gym
except ModuleNotFoundError as error:
  raise ImportError(
    "Scoring its tasks needs reasoning-gym, which is not installed: pip "
    "install -e '.[reasoning-gym]'."
  ) from error

_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)


def score(completion: Any) -> float:
  """Returns the task's own score, in [0, 1].

  Args:
    completion: with the metadata that `data.reasoning_gym` gives; of the
      response, what stands in the last <answer> counts, or all of it.
  """
  known = completion.metadata["gym"]
  found = _ANSWER.findall(completion.response)
  text = found[-1] if found else completion.response
  entry = {
    "question": completion.prompt,
    "answer": completion.answer,
    "metadata": ast.literal_eval(known["entry"]),
  }
  task = _task(known["name"], json.dumps(known["config"]))
  return float(task.score_answer(answer=text.strip(), entry=entry))


@functools.cache
def _task(name: str, config: str) -> Any:
  return reasoning_gym.create_dataset(name, size=1, **json.loads(config))

"""Judgements in the folder of a run: as JSON, and as a table of samples."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from rlinf_jax import types
from rlinf_jax.reporting import statistics
from rlinf_jax.training import tasks


def write(path: pathlib.Path, judgement: tasks.Judgement) -> None:
  """Writes a judgement as JSON; `read` gives it back, without metadata."""
  record = dataclasses.asdict(judgement)
  for completion, _ in record["samples"]:
    del completion["metadata"]  # of which JSON may not know everything
  content = json.dumps(record, indent=2)
  path.write_text(content + "\n", encoding="utf-8")


def read(path: pathlib.Path) -> tasks.Judgement:
  """Returns the judgement that was written."""
  found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
  return tasks.Judgement(
    rewards=statistics.Summary(**found["rewards"]),
    accuracy=statistics.Interval(**found["accuracy"]),
    samples=tuple(
      (types.Completion(**completion), reward)
      for completion, reward in found["samples"]
    ),
    digest=found.get("digest", ""),
  )


def write_samples(
  path: pathlib.Path, before: tasks.Judgement, after: tasks.Judgement
) -> None:
  """Writes the same prompts' greedy answers before and after, as Markdown."""
  lines = [
    "| prompt | reference | before | reward | after | reward |",
    "| --- | --- | --- | --- | --- | --- |",
  ]
  for (old, old_reward), (new, new_reward) in zip(
    before.samples, after.samples
  ):
    cells = [old.prompt, old.answer, old.response, f"{old_reward:g}"]
    cells += [new.response, f"{new_reward:g}"]
    lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
  path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(text: str) -> str:
  return text.replace("|", "\\|").replace("\n", "<br>")

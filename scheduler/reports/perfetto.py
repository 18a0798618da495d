"""Timelines as the JSON that Chrome's and Perfetto's viewers open."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from scheduler.reports import rows
from scheduler.timelines import Timeline

_DEVICES, _LINKS = 1, 2


def write_perfetto(timeline: Timeline, path: str | pathlib.Path) -> None:
  """Writes a timeline for ui.perfetto.dev or chrome://tracing.

  Devices are one process, links another, each resource a thread of it; memory
  is a counter. Times are microseconds.
  """
  document = {
    "displayTimeUnit": "ms",
    "otherData": {"label": timeline.label, "source": timeline.source},
    "traceEvents": _events(timeline),
  }
  text = json.dumps(document, separators=(",", ":"))
  pathlib.Path(path).write_text(text, encoding="utf-8")


def _events(timeline: Timeline) -> list[dict[str, Any]]:
  found = []
  for pid, name in ((_DEVICES, "devices"), (_LINKS, "links")):
    found.append(_name("process_name", pid, 0, f"{name}, {timeline.source}"))
    found.append(_metadata("process_sort_index", pid, 0, {"sort_index": pid}))
  for tid, row in enumerate(rows.of_timeline(timeline, resolution_ns=-1), 1):
    pid = _LINKS if row.is_link else _DEVICES
    found.append(_name("thread_name", pid, tid, row.label))
    found.append(_metadata("thread_sort_index", pid, tid, {"sort_index": tid}))
    for bar in row.bars:
      args: dict[str, Any] = {"iteration": bar.iteration}
      if any(bar.items):
        args["items"] = f"{bar.items[0]} to {bar.items[1]}"
      if bar.num_bytes:
        args["bytes"] = bar.num_bytes
      found.append(
        {
          "name": str(bar),
          "cat": bar.kind,
          "ph": "X",
          "pid": pid,
          "tid": tid,
          "ts": bar.start_ns / 1000,
          "dur": (bar.stop_ns - bar.start_ns) / 1000,
          "args": args,
        }
      )
  for sample in timeline.memory:
    found.append(
      {
        "name": f"memory of each device of {sample.resource}",
        "ph": "C",
        "pid": _DEVICES,
        "tid": 0,
        "ts": sample.at_ns / 1000,
        "args": {"bytes": sample.bytes_per_device},
      }
    )
  return found


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
  return _metadata(what, pid, tid, {"name": name})


def _metadata(
  what: str, pid: int, tid: int, args: dict[str, Any]
) -> dict[str, Any]:
  return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}

"""Writes a run's numbers, one row per step, to files and trackers.

A value is a number or, where several seeds train at once, an array [num_seeds].
JSONL keeps the array; the trackers get its mean under the metric's name and
each seed's value under NAME/seed_I.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import pathlib
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorboardX

FILE_NAME = "metrics.jsonl"
TRACKERS = ("tensorboard", "wandb", "swanlab")

Path = str | os.PathLike[str]
Values = Mapping[str, Any]


class Writer(NamedTuple):
  """Where rows go.

  Attributes:
    write: (step, values) -> None. A row of numbers, or of arrays [num_seeds].
    close: () -> None. Nothing is written afterwards.
  """

  write: Callable[[int, Values], None]
  close: Callable[[], None]


@contextlib.contextmanager
def open_writers(
  directory: Path,
  *,
  trackers: Sequence[str] = ("tensorboard",),
  hparams: Mapping[str, Any] | None = None,
  project: str = "rlinf_jax",
  resume_step: int | None = None,
) -> Iterator[Writer]:
  """Yields one writer to DIRECTORY/metrics.jsonl and to every tracker.

  Args:
    directory: the run's; its name is the run's name in the trackers.
    trackers: names among `TRACKERS`.
    hparams: the run's settings, shown by the trackers.
    project: under which Weights & Biases and SwanLab file the run.
    resume_step: the step from which the run continues; later rows are dropped.
      None begins the file anew.

  Raises:
    ValueError: there is no tracker of that name.
    ModuleNotFoundError: a tracker is not installed.
  """
  unknown = sorted(set(trackers) - set(TRACKERS))
  if unknown:
    raise ValueError(
      f"There is no tracker {', '.join(unknown)}; choose from"
      f" {', '.join(TRACKERS)}."
    )
  directory = pathlib.Path(directory)
  openers: dict[str, Callable[[], Writer]] = {
    "tensorboard": lambda: open_tensorboard(
      directory, hparams=hparams, resume_step=resume_step
    ),
    "wandb": lambda: open_wandb(
      directory, hparams=hparams, project=project, resume_step=resume_step
    ),
    "swanlab": lambda: open_swanlab(
      directory, hparams=hparams, project=project, resume_step=resume_step
    ),
  }
  with contextlib.ExitStack() as stack:
    writers = []
    # Trackers first: one that is missing must not cost the file its rows.
    for opener in [
      *(openers[name] for name in dict.fromkeys(trackers)),
      lambda: open_jsonl(directory / FILE_NAME, resume_step=resume_step),
    ]:
      writers.append(opener())
      stack.callback(writers[-1].close)

    def write(step: int, values: Values) -> None:
      for writer in reversed(writers):
        writer.write(step, values)

    yield Writer(write=write, close=stack.close)


def open_jsonl(path: Path, *, resume_step: int | None = None) -> Writer:
  """Returns a writer of one JSON object per line: {"step": ..., NAME: ...}.

  Each row is handed to the system as it is written: a killed process loses
  none. A number that is not finite is null.

  Args:
    path: the file; its directory is made where it is missing.
    resume_step: rows of later steps, and a last row that was cut off, are
      dropped, and rows are appended. None empties the file.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  if resume_step is None:
    path.write_text("")
  elif path.exists():
    kept = [row for row in read_jsonl(path) if row["step"] <= resume_step]
    beside = path.with_name(path.name + ".resumed")
    beside.write_text("".join(_to_line(row) for row in kept))
    beside.replace(path)
  file = path.open("a")

  def write(step: int, values: Values) -> None:
    row = {name: _to_json(value) for name, value in values.items()}
    file.write(_to_line({"step": int(step), **row}))
    file.flush()

  return Writer(write=write, close=file.close)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
  """Returns the rows of a file that `open_jsonl` wrote.

  A last line without its end, which a kill leaves, is no row.
  """
  text = pathlib.Path(path).read_text()
  lines = text[: text.rfind("\n") + 1].splitlines()
  return [json.loads(line) for line in lines]


def open_tensorboard(
  directory: Path,
  *,
  hparams: Mapping[str, Any] | None = None,
  resume_step: int | None = None,
) -> Writer:
  """Returns a writer of TensorBoard event files below `directory`.

  Args:
    directory: the run's.
    hparams: the run's settings, shown as text.
    resume_step: TensorBoard hides what an interrupted run wrote after it.
  """
  purge_step = None if resume_step is None else resume_step + 1
  tensorboard = tensorboardX.SummaryWriter(
    str(directory), purge_step=purge_step, flush_secs=10
  )
  if hparams:
    rows = [f"| {k} | {v} |" for k, v in _flatten(hparams).items()]
    table = "\n".join(["| setting | value |", "| --- | --- |", *rows])
    tensorboard.add_text("settings", table, resume_step or 0)

  def write(step: int, values: Values) -> None:
    for name, value in _to_scalars(values).items():
      tensorboard.add_scalar(name, value, int(step))

  return Writer(write=write, close=tensorboard.close)


def open_wandb(
  directory: Path,
  *,
  hparams: Mapping[str, Any] | None = None,
  project: str = "rlinf_jax",
  resume_step: int | None = None,
) -> Writer:
  """Returns a writer to Weights & Biases, which needs the extra `trackers`.

  WANDB_MODE=offline keeps everything below `directory`. A resumed run has the
  id of the run that was interrupted.

  Raises:
    ModuleNotFoundError: wandb is not installed.
  """
  wandb = _import_tracker("wandb")
  directory = pathlib.Path(directory).absolute()
  run = wandb.init(
    project=project,
    name=directory.name,
    id=_find_run_id(directory / "wandb_id", is_resumed=resume_step is not None),
    resume="allow",
    dir=str(directory),
    config=_flatten(hparams or {}),
  )
  # Its own step only grows: what a resumed run repeats would be dropped.
  run.define_metric("*", step_metric="step")

  def write(step: int, values: Values) -> None:
    run.log({"step": int(step), **_to_scalars(values)})

  return Writer(write=write, close=run.finish)


def open_swanlab(
  directory: Path,
  *,
  hparams: Mapping[str, Any] | None = None,
  project: str = "rlinf_jax",
  resume_step: int | None = None,
) -> Writer:
  """Returns a writer to SwanLab, which needs the extra `trackers`.

  SWANLAB_MODE=offline keeps everything below `directory`. A resumed run has
  the id of the run that was interrupted.

  Raises:
    ModuleNotFoundError: swanlab is not installed.
  """
  swanlab = _import_tracker("swanlab")
  directory = pathlib.Path(directory).absolute()
  run = swanlab.init(
    project=project,
    name=directory.name,
    id=_find_run_id(
      directory / "swanlab_id", is_resumed=resume_step is not None
    ),
    resume="allow",
    log_dir=str(directory / "swanlog"),
    config=_flatten(hparams or {}),
  )

  def write(step: int, values: Values) -> None:
    run.log(_to_scalars(values), step=int(step))

  return Writer(write=write, close=run.finish)


def _find_run_id(path: pathlib.Path, *, is_resumed: bool) -> str:
  if is_resumed and path.exists():
    return path.read_text()
  run_id = uuid.uuid4().hex[:12]
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(run_id)
  return run_id


def _import_tracker(name: str) -> types.ModuleType:
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    if error.name != name:
      raise
    raise ModuleNotFoundError(
      f"{name} is not installed. Install the extra: pip install"
      " 'rlinf_jax[trackers]', or choose another tracker.",
      name=name,
    ) from None


def _to_line(row: Mapping[str, Any]) -> str:
  return json.dumps(row, allow_nan=False) + "\n"


def _to_json(value: Any) -> Any:
  value = np.asarray(value)
  if value.dtype.kind not in "biuf":
    value = value.astype(np.float64)  # bfloat16 is no number to numpy
  if value.ndim:
    return [_to_json(element) for element in value]
  number = value.item()
  return number if math.isfinite(number) else None


def _to_scalars(values: Values) -> dict[str, float]:
  """Returns the finite numbers: trackers complain of others."""
  scalars = {}
  for name, value in values.items():
    value = np.asarray(value, np.float64)
    scalars[name] = float(value.mean())
    for i, element in enumerate(value.ravel() if value.ndim else []):
      scalars[f"{name}/seed_{i}"] = float(element)
  return {name: x for name, x in scalars.items() if math.isfinite(x)}


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
  flat: dict[str, Any] = {}
  for name, value in settings.items():
    if isinstance(value, Mapping):
      flat |= {f"{name}.{k}": v for k, v in _flatten(value).items()}
    else:
      flat[name] = value
  return flat

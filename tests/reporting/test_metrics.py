"""Rows survive kills and resumes, and reach every tracker."""

import json
import math
import struct
import subprocess
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from rlinf_jax.reporting import metrics

_SESSION_START = event_pb2.SessionLog.START


def _write(path, rows, *, resume_step=None):
  writer = metrics.open_jsonl(path, resume_step=resume_step)
  for step, values in rows:
    writer.write(step, values)
  writer.close()


def test_a_row_is_json_with_null_for_what_is_not_finite(tmp_path):
  path = tmp_path / "run" / "metrics.jsonl"
  values = {
    "int": np.int32(3),
    "float": 0.5,
    "nan": math.nan,
    "inf": jnp.asarray(-jnp.inf),
    "half": jnp.asarray(0.25, jnp.bfloat16),
    "seeds": jnp.asarray([1.0, jnp.nan]),
  }
  _write(path, [(np.int64(7), values)])
  assert path.read_text() == (
    '{"step": 7, "int": 3, "float": 0.5, "nan": null, "inf": null,'
    ' "half": 0.25, "seeds": [1.0, null]}\n'
  )


def test_a_new_run_begins_a_new_file(tmp_path):
  path = tmp_path / "metrics.jsonl"
  for x in (1, 2):
    _write(path, [(x, {"x": x})])
  assert metrics.read_jsonl(path) == [{"step": 2, "x": 2}]


def test_a_resumed_file_is_that_of_an_uninterrupted_run(tmp_path):
  rows = [(step, {"x": step / 3}) for step in range(10)]
  whole, resumed = tmp_path / "whole", tmp_path / "resumed"
  _write(whole, rows)
  _write(resumed, rows[:8])
  with resumed.open("a") as file:
    file.write('{"step": 8, "x": 2.6')  # cut off by a kill
  _write(resumed, rows[6:], resume_step=5)
  assert resumed.read_text() == whole.read_text()


def test_a_run_resumes_without_its_file(tmp_path):
  _write(tmp_path / "gone.jsonl", [(3, {"x": 1})], resume_step=2)
  assert metrics.read_jsonl(tmp_path / "gone.jsonl") == [{"step": 3, "x": 1}]


_CHILD = """
import itertools, sys
from rlinf_jax.reporting import metrics
writer = metrics.open_jsonl(sys.argv[1])
for step in itertools.count():
  writer.write(step, {"x": step})
  print(step, flush=True)
"""


@pytest.mark.slow
def test_a_killed_run_loses_no_row(tmp_path):
  path = tmp_path / "metrics.jsonl"
  child = subprocess.Popen(
    [sys.executable, "-c", _CHILD, str(path)], stdout=subprocess.PIPE
  )
  for _ in range(20):
    last = int(child.stdout.readline())
  child.kill()
  child.communicate()
  rows = metrics.read_jsonl(path)
  assert len(rows) > last
  assert rows == [{"step": i, "x": i} for i in range(len(rows))]


def _read_records(content):
  """Yields the records of a file of [length, crc, record, crc]."""
  while content:
    (size,) = struct.unpack_from("<Q", content)
    yield content[12 : 12 + size]
    content = content[16 + size :]


def _read_tensorboard(directory):
  scalars, texts = [], []
  for path in sorted(directory.glob("events.*")):
    for record in _read_records(path.read_bytes()):
      event = event_pb2.Event.FromString(record)
      for value in event.summary.value:
        if value.HasField("simple_value"):
          scalars.append((value.tag, event.step, value.simple_value))
        else:
          texts.append(value.tensor.string_val[0].decode())
  return scalars, texts


def test_tensorboard_gets_means_seeds_and_settings(tmp_path):
  with metrics.open_writers(
    tmp_path, hparams={"lr": 0.5, "env": {"name": "reacher"}}
  ) as writer:
    writer.write(4, {"return": np.asarray([1.0, 3.0]), "loss": math.nan})
  scalars, texts = _read_tensorboard(tmp_path)
  assert scalars == [
    ("return", 4, 2.0),
    ("return/seed_0", 4, 1.0),
    ("return/seed_1", 4, 3.0),
  ]
  assert "| lr | 0.5 |\n| env.name | reacher |" in texts[0]
  assert metrics.read_jsonl(tmp_path / metrics.FILE_NAME) == [
    {"step": 4, "return": [1.0, 3.0], "loss": None}
  ]


def test_tensorboard_is_told_where_a_run_resumes(tmp_path):
  with metrics.open_writers(tmp_path, resume_step=5):
    pass
  (path,) = tmp_path.glob("events.*")
  events = map(event_pb2.Event.FromString, _read_records(path.read_bytes()))
  starts = [e.step for e in events if e.session_log.status == _SESSION_START]
  assert starts == [6]


class _Run:
  """Records what a tracker would get."""

  def __init__(self, **settings):
    self.settings = settings
    self.rows = []
    self.is_finished = False

  def define_metric(self, name, *, step_metric):
    del name, step_metric

  def log(self, values, *, step=None):
    self.rows.append((step, values))

  def finish(self):
    self.is_finished = True


@pytest.fixture(name="runs")
def _fake_trackers(monkeypatch):
  """Returns the runs that stand-ins for both trackers were asked to begin."""
  runs = []

  def init(**settings):
    runs.append(_Run(**settings))
    return runs[-1]

  for name in ("wandb", "swanlab"):
    module = types.ModuleType(name)
    module.init = init
    monkeypatch.setitem(sys.modules, name, module)
  return runs


@pytest.mark.parametrize("tracker", ["wandb", "swanlab"])
def test_a_tracker_gets_rows_and_settings(tmp_path, runs, tracker):
  with metrics.open_writers(
    tmp_path / "walk", trackers=(tracker,), hparams={"env": {"name": "x"}}
  ) as writer:
    writer.write(4, {"return": 2.5, "loss": math.inf})
  (run,) = runs
  assert run.settings["name"] == "walk"
  assert run.settings["config"] == {"env.name": "x"}
  step, values = run.rows[0]
  assert {"step": step, **values} == {"step": 4, "return": 2.5}
  assert run.is_finished


@pytest.mark.parametrize("tracker", ["wandb", "swanlab"])
def test_only_a_resumed_run_keeps_its_id(tmp_path, runs, tracker):
  for resume_step in (None, 3, None):
    with metrics.open_writers(
      tmp_path, trackers=(tracker,), resume_step=resume_step
    ):
      pass
  first, resumed, new = (run.settings["id"] for run in runs)
  assert first == resumed != new


@pytest.mark.parametrize("tracker", ["wandb", "swanlab"])
def test_a_missing_tracker_names_the_extra(tmp_path, monkeypatch, tracker):
  monkeypatch.setitem(sys.modules, tracker, None)
  with (
    pytest.raises(ModuleNotFoundError, match=rf"{tracker} .*\[trackers\]"),
    metrics.open_writers(tmp_path, trackers=(tracker,)),
  ):
    pass


def test_a_missing_tracker_leaves_the_old_rows(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  _write(tmp_path / metrics.FILE_NAME, [(1, {"x": 1})])
  with (
    pytest.raises(ModuleNotFoundError),
    metrics.open_writers(tmp_path, trackers=("wandb",)),
  ):
    pass
  assert len(metrics.read_jsonl(tmp_path / metrics.FILE_NAME)) == 1


def test_an_unknown_tracker_is_refused_with_the_choices(tmp_path):
  with (
    pytest.raises(ValueError, match="no tracker mlflow; .*swanlab"),
    metrics.open_writers(tmp_path, trackers=("mlflow",)),
  ):
    pass


def test_rows_are_on_disk_as_they_are_written(tmp_path):
  with metrics.open_writers(tmp_path, trackers=()) as writer:
    writer.write(1, {"x": 1})
    text = (tmp_path / metrics.FILE_NAME).read_text()
    assert json.loads(text) == {"step": 1, "x": 1}

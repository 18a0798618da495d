"""The engine's side of a rollout process, with one that only pretends.

B prompts, T tokens of a padded prompt, n samples of each, N new tokens.
"""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures

import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from rlinf_jax import rollout
from rlinf_jax.rollout import vllm

PROGRAM = pathlib.Path(__file__).parent / "pretended_vllm.py"
SAMPLING = rollout.Sampling(max_new_tokens=4)
# Two prompts, 1 2 and 5, of which two samples each are asked for.
REQUEST = rollout.Request(
  prompt=np.array([[1, 2], [5, 0]], np.int32),
  length=np.array([2, 1], np.int32),
  seed=np.array([[10, 20], [30, 40]], np.uint32),
  is_asked=np.array([True, True]),
)
# 10 + 2 + 3 + 7 = 22 for the first token of the first prompt's first sample.
TOKENS = [
  [[22, 23, 24, 25], [32, 33, 34, 35]],
  [[43, 44, 45, 46], [53, 54, 55, 56]],
]


def weights(bias=7, version=0):
  params = {"a": np.full((2, 3), bias, np.float32), "b": np.ones(4, np.float32)}
  return rollout.Weights(params=params, version=np.int32(version))


@pytest.fixture
def make(tmp_path):
  """Makes engines that end with the test."""
  (tmp_path / "config.json").write_text("{}")
  python = tmp_path / "python"
  python.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {PROGRAM} "$@"\n')
  python.chmod(0o755)
  made = []

  def make(sampling=SAMPLING, to_tensors=lambda params: params, **arguments):
    options = {"deadline_s": 20.0, "start_deadline_s": 20.0}
    for name in ("num_replicas", "context_size", "interrupt"):
      if name in arguments:
        options[name] = arguments.pop(name)
    for name in ("deadline_s", "start_deadline_s", "num_retries"):
      if name in arguments:
        options[name] = arguments.pop(name)
    engine = vllm.VllmEngine(
      tmp_path,
      sampling,
      to_tensors,
      python=str(python),
      log_path=tmp_path / "rollout.log",
      engine_arguments=arguments,
      **options,
    )
    made.append(engine)
    return engine

  yield make
  for engine in made:
    engine.close()


def log(tmp_path, replica=0):
  return (tmp_path / f"rollout_{replica}.log").read_text()


def of_this_test(tmp_path):
  """Returns the processes that the test's engines run."""
  found = []
  for child in psutil.Process().children(recursive=True):
    try:
      if str(PROGRAM) in child.cmdline() or child.name() == "sleep":
        found.append(child)
    except psutil.NoSuchProcess:
      pass
  return found


def await_log(tmp_path, text, *, deadline_s=20.0):
  end_s = time.monotonic() + deadline_s
  while time.monotonic() < end_s:
    path = tmp_path / "rollout_0.log"
    if path.exists() and text in path.read_text():
      return
    time.sleep(0.01)
  raise AssertionError(f"{text!r} is not in the log")


def test_each_sample_follows_from_its_prompt_its_seed_and_the_weights(make):
  got = make().generate(weights(), REQUEST)
  np.testing.assert_array_equal(got.token, TOKENS)
  np.testing.assert_allclose(got.log_prob, np.array(TOKENS) / -10, rtol=1e-6)
  np.testing.assert_array_equal(got.length, [[4, 4], [4, 4]])
  np.testing.assert_array_equal(got.version, np.zeros((2, 2, 4)))
  assert not got.is_stopped.any()
  assert [x.dtype for x in (got.token, got.log_prob, got.length)] == [
    np.int32,
    np.float32,
    np.int32,
  ]


def test_arrays_of_jax_are_taken_too(make):
  params = {"a": jnp.full((2, 3), 7.0), "b": jnp.ones(4)}
  given = rollout.Weights(params=params, version=jnp.int32(0))
  got = make().generate(given, REQUEST)
  np.testing.assert_array_equal(got.token, TOKENS)


def test_a_stop_token_ends_a_sample_and_belongs_to_it(make):
  sampling = rollout.Sampling(max_new_tokens=4, stop_tokens=(33, 46))
  got = make().generate(weights(), REQUEST, sampling=sampling)
  # 33 is the second token of one sample; 46 the last of another, which stops.
  np.testing.assert_array_equal(got.length, [[4, 2], [4, 4]])
  np.testing.assert_array_equal(got.is_stopped, [[False, True], [True, False]])
  np.testing.assert_array_equal(got.token[0, 1], [32, 33, 0, 0])
  np.testing.assert_array_equal(got.log_prob[0, 1, 2:], [0, 0])


def test_what_is_not_asked_for_is_not_generated(make, tmp_path):
  request = REQUEST.replace(is_asked=np.array([False, True]))
  got = make().generate(weights(), request)
  np.testing.assert_array_equal(got.length, [[0, 0], [4, 4]])
  np.testing.assert_array_equal(got.token[1], TOKENS[1])
  assert not got.token[0].any()
  assert "step of 2" in log(tmp_path) and "step of 4" not in log(tmp_path)


def test_where_nothing_is_asked_for_nothing_is_published(make, tmp_path):
  request = REQUEST.replace(is_asked=np.array([False, False]))
  got = make().generate(weights(), request)
  assert not got.length.any()
  assert "load" not in log(tmp_path)


def test_a_version_is_published_and_loaded_once(make, tmp_path):
  published = []

  def to_tensors(params):
    published.append(1)
    return params

  engine = make(to_tensors=to_tensors)
  with futures.ThreadPoolExecutor(4) as pool:
    got = list(
      pool.map(lambda _: engine.generate(weights(), REQUEST), range(8))
    )
  for one in got:
    np.testing.assert_array_equal(one.token, TOKENS)
  assert len(published) == 1
  assert log(tmp_path).count("load") == 1


def test_the_last_two_versions_may_be_asked_for_without_parameters(make):
  engine = make()
  for version, bias in enumerate([7, 8, 9]):
    engine.generate(weights(bias, version), REQUEST)
  bare = rollout.Weights(params=None, version=np.int32(1))
  got = engine.generate(bare, REQUEST)
  np.testing.assert_array_equal(got.token, np.array(TOKENS) + 1)
  np.testing.assert_array_equal(got.version, np.ones((2, 2, 4)))
  older = bare.replace(version=np.int32(0))
  with pytest.raises(ValueError, match="version 0 without parameters"):
    engine.generate(older, REQUEST)


def test_newer_weights_wait_for_samples_under_way(make, tmp_path):
  engine = make(step_s=0.05)
  with futures.ThreadPoolExecutor(2) as pool:
    first = pool.submit(engine.generate, weights(7, 0), REQUEST)
    await_log(tmp_path, "step")
    second = pool.submit(engine.generate, weights(8, 1), REQUEST)
    np.testing.assert_array_equal(first.result().token, TOKENS)
    np.testing.assert_array_equal(second.result().token, np.array(TOKENS) + 1)
  assert (first.result().version == 0).all()
  assert (second.result().version == 1).all()


def test_interrupted_samples_go_on_by_newer_weights_and_say_so(make, tmp_path):
  engine = make(
    rollout.Sampling(max_new_tokens=40), step_s=0.02, interrupt=True
  )
  with futures.ThreadPoolExecutor(2) as pool:
    first = pool.submit(engine.generate, weights(7, 0), REQUEST)
    await_log(tmp_path, "step")
    engine.generate(weights(27, 1), REQUEST)
    got = first.result()
  version = got.version[0, 0]
  num_old = int((version == 0).sum())
  assert 0 < num_old < 40
  assert (np.diff(version) >= 0).all()
  expected = np.arange(22, 62) + 20 * (np.arange(40) >= num_old)
  np.testing.assert_array_equal(got.token[0, 0], expected)


@pytest.mark.slow
def test_several_newer_versions_interrupt_one_call(make, tmp_path):
  engine = make(
    rollout.Sampling(max_new_tokens=200), step_s=0.01, interrupt=True
  )
  with futures.ThreadPoolExecutor(2) as pool:
    first = pool.submit(engine.generate, weights(7, 0), REQUEST)
    await_log(tmp_path, "step")
    for version in (1, 2, 3):
      engine.sync(weights(7 + version, version))
      assert not first.done()  # none has waited for it
    got = first.result()
  assert {0, 3} <= set(got.version[0, 0])
  expected = np.arange(22, 222) + got.version[0, 0]
  np.testing.assert_array_equal(got.token[0, 0], expected % 100)


def test_older_weights_do_not_replace_newer_ones_that_interrupt(make, tmp_path):
  engine = make(interrupt=True)
  engine.generate(weights(8, 1), REQUEST)
  got = engine.generate(weights(7, 0), REQUEST)
  assert (got.version == 1).all()
  np.testing.assert_array_equal(got.token, np.array(TOKENS) + 1)


def test_calls_of_several_threads_share_a_batch(make, tmp_path):
  engine = make(step_s=0.1)
  with futures.ThreadPoolExecutor(3) as pool:
    got = list(
      pool.map(lambda _: engine.generate(weights(), REQUEST), range(3))
    )
  for one in got:
    np.testing.assert_array_equal(one.token, TOKENS)
  assert "step of 12" in log(tmp_path)  # 3 calls of 4 samples


def test_whoever_has_less_to_do_is_asked(make, tmp_path):
  engine = make(num_replicas=2, step_s=0.02)
  request = rollout.Request(
    prompt=np.ones((3, 8), np.int32),
    length=np.array([8, 1, 1], np.int32),
    seed=np.arange(3, dtype=np.uint32)[:, None],
    is_asked=np.ones(3, bool),
  )
  got = engine.generate(weights(), request)
  # Costs are 12, 5 and 5: the first prompt goes to one, the others to the
  # other.
  assert {
    "step of 2" in log(tmp_path, 0),
    "step of 2" in log(tmp_path, 1),
  } == {True, False}
  assert (got.length == 4).all()


def kill_one(tmp_path):
  leaders = [
    p for p in of_this_test(tmp_path) if p.ppid() == psutil.Process().pid
  ]
  leaders[0].send_signal(signal.SIGKILL)


def test_killed_in_mid_generation_it_is_replaced_and_asked_again(
  make, tmp_path
):
  engine = make(rollout.Sampling(max_new_tokens=20), step_s=0.02)
  calm = engine.generate(weights(), REQUEST)
  with futures.ThreadPoolExecutor(1) as pool:
    pending = pool.submit(engine.generate, weights(), REQUEST)
    time.sleep(0.1)
    kill_one(tmp_path)
    got = pending.result()
  np.testing.assert_array_equal(got.token, calm.token)
  np.testing.assert_array_equal(got.version, calm.version)
  assert log(tmp_path).count("started") == 2
  assert log(tmp_path).count("load 0") == 2


def test_only_what_was_lost_is_asked_again(make, tmp_path):
  sampling = rollout.Sampling(max_new_tokens=60, stop_tokens=(24,))
  engine = make(sampling, step_s=0.02)
  with futures.ThreadPoolExecutor(1) as pool:
    # The first sample ends with its third token, 24.
    pending = pool.submit(engine.generate, weights(), REQUEST)
    await_log(tmp_path, "step of 3")
    time.sleep(0.1)
    kill_one(tmp_path)
    assert pending.result().length[0, 0] == 3
  after = log(tmp_path).split("started")[2]
  assert "step of 3" in after and "step of 4" not in after


@pytest.mark.parametrize(
  "fault, reason",
  [("dies", "out of memory"), ("raises", "an odd step")],
)
def test_an_engine_that_always_fails_says_how_it_did_first(
  make, tmp_path, fault, reason
):
  engine = make(fault=fault, num_retries=1)
  with pytest.raises(
    rollout.EngineError, match="failed 2 times in a row"
  ) as error:
    engine.generate(weights(), REQUEST)
  assert reason in str(error.value)
  assert str(tmp_path / "rollout_0.log") in str(error.value)
  assert log(tmp_path).count("started") == 2


def test_silence_is_taken_for_a_failure(make):
  engine = make(fault="hangs", num_retries=0, deadline_s=0.3)
  with pytest.raises(rollout.EngineError, match="said nothing for 0.3 s"):
    engine.generate(weights(), REQUEST)


@pytest.mark.slow  # it speaks each second
def test_a_process_that_idles_is_not_silent(make, tmp_path):
  engine = make(deadline_s=3.0)
  time.sleep(4.0)
  engine.generate(weights(), REQUEST)
  assert log(tmp_path).count("started") == 1


def test_a_process_that_dies_at_start_is_quoted(make, tmp_path):
  with pytest.raises(
    rollout.EngineError, match="ended while it started"
  ) as error:
    make(fault="dies at start")
  assert "no memory left" in str(error.value)
  assert str(tmp_path / "rollout_0.log") in str(error.value)
  assert of_this_test(tmp_path) == []


def test_a_python_without_numpy_is_told_in_one_sentence(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  python = tmp_path / "python"
  python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
  python.chmod(0o755)
  with pytest.raises(
    rollout.EngineError, match="has no module 'numpy'"
  ) as error:
    vllm.VllmEngine(
      tmp_path,
      SAMPLING,
      lambda params: params,
      python=str(python),
      log_path=tmp_path / "rollout.log",
    )
  assert "--rollout_python" in str(error.value)
  assert "Traceback" not in str(error.value)


def test_a_process_that_starts_late_is_given_up(make, tmp_path):
  with pytest.raises(rollout.EngineError, match="did not start within 0.5 s"):
    make(fault="starts late", start_deadline_s=0.5)
  assert of_this_test(tmp_path) == []


def test_an_unknown_network_is_an_error_that_names_it(make, tmp_path):
  with pytest.raises(ValueError, match=r"\['X'\] are not supported") as error:
    make(fault="is unknown")
  assert str(tmp_path) in str(error.value)


def test_without_vllm_it_says_how_to_get_it(make):
  with pytest.raises(ModuleNotFoundError, match="make vllm") as error:
    make(fault="lacks vllm")
  assert "--engine=jax" in str(error.value)


def test_tensors_of_other_names_are_refused_before_they_do_harm(make):
  engine = make()
  wrong = rollout.Weights(
    params={"a": np.ones((2, 3)), "c": np.ones(4)}, version=np.int32(0)
  )
  with pytest.raises(ValueError, match="1 lacking: b; 1 unknown: c"):
    engine.generate(wrong, REQUEST)
  got = engine.generate(weights(), REQUEST)
  np.testing.assert_array_equal(got.token, TOKENS)


def test_tensors_of_another_shape_are_refused_before_they_do_harm(make):
  engine = make()
  wrong = rollout.Weights(
    params={"a": np.ones((3, 2)), "b": np.ones(4)}, version=np.int32(0)
  )
  with pytest.raises(ValueError, match=r"a is \(3, 2\), expected \(2, 3\)"):
    engine.generate(wrong, REQUEST)
  got = engine.generate(weights(), REQUEST)
  np.testing.assert_array_equal(got.token, TOKENS)


def test_a_prompt_longer_than_the_context_is_refused(make):
  engine = make(context_size=5)
  with pytest.raises(ValueError, match="Prompt 0 has 2 tokens, and 4 more"):
    engine.generate(weights(), REQUEST)


def test_a_token_that_the_network_lacks_is_refused(make):
  request = REQUEST.replace(prompt=np.array([[1, 2], [100, 0]], np.int32))
  with pytest.raises(ValueError, match="Prompt 1 has tokens from 100 to 100"):
    make().generate(weights(), request)


def test_a_prompt_without_tokens_is_refused(make):
  request = REQUEST.replace(length=np.array([2, 0], np.int32))
  with pytest.raises(ValueError, match="Prompt 1 is said to have 0 tokens"):
    make().generate(weights(), request)


def test_a_folder_without_a_network_is_refused(tmp_path):
  with pytest.raises(ValueError, match="a folder with a config.json"):
    vllm.VllmEngine(
      tmp_path, SAMPLING, lambda x: x, log_path=tmp_path / "rollout.log"
    )


def test_an_argument_that_is_chosen_for_vllm_is_refused(make):
  with pytest.raises(ValueError, match="Given load_format, max_model_len for"):
    make(max_model_len=10, load_format="auto", step_s=0.0)


def test_an_engine_says_how_precisely_it_computes(make):
  assert make().dtype == "float32"


def test_a_python_that_is_not_there_is_refused(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(ValueError, match="a Python that can be run"):
    vllm.VllmEngine(
      tmp_path,
      SAMPLING,
      lambda x: x,
      log_path=tmp_path / "rollout.log",
      python=str(tmp_path / "python3"),
    )


def test_a_sync_reports_bytes_and_seconds(make):
  engine = make(num_replicas=2)
  sync = engine.sync(weights(version=3))
  assert sync == engine.last_sync
  assert (sync.version, sync.num_bytes) == (3, 40)  # 10 float32
  assert 0 < sync.publish_s < sync.end_to_end_s
  assert sync.load_s < sync.end_to_end_s
  row = sync.metrics()
  assert row["sync/publish_bytes_per_s"] == 40 / sync.publish_s


def test_closing_leaves_no_process_and_ends_who_waits(make, tmp_path):
  engine = make(has_worker=True, step_s=0.05)
  assert len(of_this_test(tmp_path)) == 3  # with a watcher and a worker
  endless = rollout.Sampling(max_new_tokens=900)
  with futures.ThreadPoolExecutor(1) as pool:
    pending = pool.submit(engine.generate, weights(), REQUEST, sampling=endless)
    await_log(tmp_path, "step")
    engine.close()
    with pytest.raises(rollout.EngineError, match="was closed"):
      pending.result()
  assert of_this_test(tmp_path) == []


@pytest.mark.slow
def test_a_dead_process_takes_what_it_started_with_it(make, tmp_path):
  make(has_worker=True)
  found = of_this_test(tmp_path)
  assert len(found) == 3
  kill_one(tmp_path)
  _, alive = psutil.wait_procs(found, timeout=5)
  assert alive == []


TRAINER = """
import sys, threading
import numpy as np
from rlinf_jax import rollout
from rlinf_jax.rollout import vllm
engine = vllm.VllmEngine(
  sys.argv[1], rollout.Sampling(max_new_tokens=900), lambda x: x,
  python=sys.argv[1] + "/python", log_path=sys.argv[1] + "/rollout.log",
  engine_arguments={"has_worker": True, "step_s": 0.05},
)
weights = rollout.Weights(
  params={"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32)},
  version=0,
)
request = rollout.Request(
  prompt=np.ones((1, 1), np.int32), length=np.ones(1, np.int32),
  seed=np.ones((1, 1), np.uint32), is_asked=np.ones(1, bool),
)
engine.generate(weights, request)
"""


@pytest.mark.slow  # starts a Python with JAX
def test_a_killed_trainer_leaves_nothing_behind(make, tmp_path):
  trainer = subprocess.Popen(
    [sys.executable, "-c", TRAINER, str(tmp_path)], cwd=PROGRAM.parents[2]
  )
  await_log(tmp_path, "step of 1", deadline_s=60.0)
  found = psutil.Process(trainer.pid).children(recursive=True)
  assert len(found) == 3
  trainer.kill()
  trainer.wait()
  _, alive = psutil.wait_procs(found, timeout=5)
  assert alive == []


def test_versions_in_flight_beyond_the_memory_wait_and_are_exact(make):
  engine = make(step_s=0.01)
  with futures.ThreadPoolExecutor(6) as pool:
    got = list(
      pool.map(
        lambda version: engine.generate(weights(7 + version, version), REQUEST),
        range(6),
      )
    )
  for version, one in enumerate(got):
    np.testing.assert_array_equal(one.token, np.array(TOKENS) + version)
    assert (one.version == version).all()


def test_threads_that_only_wait_end_with_the_engine(make):
  before = threading.active_count()
  engine = make(num_replicas=2)
  engine.generate(weights(), REQUEST)
  engine.close()
  assert threading.active_count() <= before

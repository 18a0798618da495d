"""Rewards in processes: what hangs, crashes or raises costs one response."""

from __future__ import annotations

import datetime
import decimal
import os
import pathlib
import signal
import subprocess
import sys
import time
from concurrent import futures

import numpy as np
import psutil
import pytest

from rlinf_jax import data, rewards, types

REWARDS = """
import os, re, subprocess, sys

def score(completion):
  response = completion.response
  if response == "hang":  # in C, where no signal handler would run
    re.match("(a|a)*$", 60 * "a" + "b")
  if response == "hang with a child":
    subprocess.run(["sleep", "1000"])
  if response == "exit":
    os._exit(3)
  if response == "leave":
    sys.exit()
  if response == "raise":
    raise KeyError("odd response")
  if response == "fill the memory":
    return len(bytearray(2**40))
  if response == "print":
    print('{"reward": 100}', flush=True)
    os.write(1, b"more\\n")
  if response == "return nothing":
    return None
  if response == "return nan":
    return float("nan")
  if response == "pid":
    return os.getpid()
  if response == "metadata":
    return completion.metadata == {"when": "2026-12-01", "price": "1.50"}
  if response == "fields":
    return (
      len(completion.prompt) + 10 * len(completion.answer)
      + completion.metadata["weight"] + completion.num_tokens
      + 1000 * completion.is_cut
    )
  return float(response)
"""


def completion(response, **fields):
  return types.Completion(prompt="prompt", response=response, **fields)


def responses(*texts):
  return [completion(text) for text in texts]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  path = tmp_path_factory.mktemp("rewards") / "my_rewards.py"
  path.write_text(REWARDS)
  return f"{path}:score"


@pytest.fixture(scope="module")
def scorers(source):
  with rewards.Scorers(source, num_processes=2, deadline_s=1.0) as scorers:
    scorers.score(responses("1"))
    yield scorers


def processes(source):
  """Returns the ids of the processes that this one runs for rewards."""
  found = []
  for child in psutil.Process().children(recursive=True):
    try:
      if any("rewards/child.py" in part for part in child.cmdline()):
        found.append(child.pid)
    except psutil.NoSuchProcess:
      pass
  return found


def test_rewards_come_in_the_order_of_the_responses(scorers):
  scores = scorers.score(responses(*map(str, range(20))))
  assert scores.reward_b.dtype == np.float32
  np.testing.assert_array_equal(scores.reward_b, np.arange(20.0))
  assert scores.first_error == ""


def test_threads_each_get_the_rewards_of_their_responses(scorers):
  with futures.ThreadPoolExecutor(4) as threads:
    batches = [[str(10 * i + j) for j in range(5)] for i in range(8)]
    scored = threads.map(
      lambda batch: scorers.score(responses(*batch)), batches
    )
    for batch, scores in zip(batches, scored):
      np.testing.assert_array_equal(scores.reward_b, [float(x) for x in batch])


def test_no_responses_have_no_rewards(scorers):
  assert scorers.score([]).reward_b.shape == (0,)


def test_metadata_that_json_lacks_come_as_text(scorers):
  metadata = {
    "when": datetime.date(2026, 12, 1),
    "price": decimal.Decimal("1.50"),
  }
  scores = scorers.score([completion("metadata", metadata=metadata)])
  assert (scores.reward_b.tolist(), scores.first_error) == ([1.0], "")


def test_a_function_is_given_every_field(scorers):
  scores = scorers.score(
    [
      completion(
        "fields",
        answer="ab\u00e9\n",
        metadata={"weight": 0.5, "more": [1, {"a": None}]},
        num_tokens=300,
        is_cut=True,
      )
    ]
  )
  # 6 letters of "prompt", 10 * 4 of the answer, 0.5, 300 tokens, 1000
  np.testing.assert_allclose(scores.reward_b, [1346.5])


@pytest.mark.parametrize("hanging", ["hang", "hang with a child"])
def test_a_function_that_hangs_is_killed_and_counted(scorers, source, hanging):
  before = time.monotonic()
  scores = scorers.score(responses("1", hanging, "3", "4"))
  assert time.monotonic() - before < 30
  np.testing.assert_array_equal(scores.reward_b, [1.0, 0.0, 3.0, 4.0])
  assert (scores.num_hung, scores.num_crashed, scores.num_raised) == (1, 0, 0)
  np.testing.assert_array_equal(scorers.score(responses("5")).reward_b, [5.0])
  sleeping = [
    child.pid
    for child in psutil.Process().children(recursive=True)
    if child.name() == "sleep"
  ]
  assert sleeping == []


@pytest.mark.parametrize("ending", ["exit", "leave"])
def test_a_function_that_ends_its_process_is_counted(scorers, ending):
  scores = scorers.score(responses("1", ending, "3"))
  np.testing.assert_array_equal(scores.reward_b, [1.0, 0.0, 3.0])
  assert (scores.num_hung, scores.num_crashed, scores.num_raised) == (0, 1, 0)


def test_an_error_is_counted_and_the_first_is_kept(scorers):
  scores = scorers.score(responses("raise", "2", "three"))
  np.testing.assert_array_equal(scores.reward_b, [0.0, 2.0, 0.0])
  assert (scores.num_hung, scores.num_crashed, scores.num_raised) == (0, 0, 2)
  assert "KeyError: 'odd response'" in scores.first_error
  assert "my_rewards.py" in scores.first_error


def test_a_process_short_of_memory_is_replaced(source):
  with rewards.Scorers(source) as scorers:
    (pid,) = scorers.score(responses("pid")).reward_b
    scores = scorers.score(responses("fill the memory"))
    assert "MemoryError" in scores.first_error
    (other_pid,) = scorers.score(responses("pid")).reward_b
    assert pid != other_pid
    assert processes(source).count(int(pid)) == 0


def test_a_process_that_ended_while_idle_costs_no_response(source):
  with rewards.Scorers(source) as scorers:
    (pid,) = scorers.score(responses("pid")).reward_b
    os.kill(int(pid), signal.SIGKILL)
    time.sleep(0.2)
    np.testing.assert_array_equal(scorers.score(responses("5")).reward_b, [5.0])


def test_what_a_function_prints_is_no_reward(scorers):
  scores = scorers.score(responses("1", "print", "3"))
  np.testing.assert_array_equal(scores.reward_b, [1.0, 0.0, 3.0])
  assert scores.num_raised == 1  # float("print")


@pytest.mark.parametrize(
  ("response", "returned"), [("return nothing", "None"), ("return nan", "nan")]
)
def test_what_is_no_number_is_refused(scorers, response, returned):
  with pytest.raises(ValueError, match=f"returned {returned} for .*{response}"):
    scorers.score(responses("1", response))
  np.testing.assert_array_equal(scorers.score(responses("5")).reward_b, [5.0])


def test_a_function_that_never_worked_is_given_up(source):
  with rewards.Scorers(source) as scorers:
    assert scorers.score(responses(*15 * ["raise"])).num_raised == 15
    with pytest.raises(rewards.ScorerError, match="each of the first 16 "):
      scorers.score(responses("raise"))


def test_a_function_that_once_worked_is_not_given_up(scorers):
  assert scorers.score(responses(*20 * ["raise"])).num_raised == 20


def test_closed_processes_are_gone_and_say_so(source):
  before = set(processes(source))
  scorers = rewards.Scorers(source, num_processes=2)
  assert len(set(processes(source)) - before) == 2
  scorers.close()
  assert set(processes(source)) <= before
  with pytest.raises(rewards.ScorerError, match="were closed"):
    scorers.score(responses("1"))


ORPHANS = """
import sys
from rlinf_jax import data, rewards, types
scorers = rewards.Scorers(sys.argv[1], deadline_s=1000.0)
at = lambda text: types.Completion(prompt="", response=text)
print(int(scorers.score([at("pid")]).reward_b[0]), flush=True)
scorers.score([at("hang")])
"""


@pytest.mark.slow
def test_a_process_dies_with_its_parent_while_it_hangs(source):
  parent = subprocess.Popen(
    [sys.executable, "-c", ORPHANS, source],
    stdout=subprocess.PIPE,
    cwd=pathlib.Path(__file__).parents[2],
  )
  pid = int(parent.stdout.readline())
  child = psutil.Process(pid)
  time.sleep(0.3)  # it hangs by then
  assert child.is_running()
  parent.kill()
  parent.communicate()
  psutil.wait_procs([child], timeout=10)
  assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
  ("written", "name", "error", "match"),
  [
    (
      "def other(c): ...",
      "score",
      ImportError,
      "no function 'score'; it has other",
    ),
    ("import no_such_module", "score", ImportError, "no_such_module"),
    ("1 / 0", "score", rewards.ScorerError, "ZeroDivisionError"),
    ("import os; os._exit(1)", "score", rewards.ScorerError, "ended by itself"),
    (
      "import time; time.sleep(99)",
      "score",
      rewards.ScorerError,
      "within 1.0 s",
    ),
  ],
)
def test_a_file_that_cannot_be_loaded_is_refused(
  tmp_path, written, name, error, match
):
  path = tmp_path / "broken.py"
  path.write_text(written)
  with pytest.raises(error, match=match):
    rewards.Scorers(f"{path}:{name}", start_deadline_s=1.0)


@pytest.mark.parametrize(
  ("source", "match"),
  [
    ("my_rewards", "expected 'path/to/file.py:NAME'"),
    ("my_rewards.py:", "expected 'path/to/file.py:NAME'"),
    ("no_such_folder/my_rewards.py:score", "There is no file"),
  ],
)
def test_a_source_that_is_no_file_and_name_is_refused(source, match):
  with pytest.raises(ValueError, match=match):
    rewards.Scorers(source)


@pytest.fixture(scope="module")
def mathematics():
  pytest.importorskip("math_verify")
  with rewards.Scorers(rewards.MATH, deadline_s=2.0) as scorers:
    yield scorers


def test_mathematics_is_judged_by_value(mathematics):
  cases = [
    (r"so $\frac{1}{2}$", "0.5", 1.0),
    (r"\boxed{1 + x}", "x+1", 1.0),
    (r"$\boxed{(1, 2)}$", r"$(1,2)$", 1.0),
    ("It is 12.", r"\boxed{12}", 1.0),
    (r"\boxed{13}", "12", 0.0),
    ("I do not know.", "12", 0.0),
    ("", "12", 0.0),
  ]
  scores = mathematics.score(
    [completion(response, answer=answer) for response, answer, _ in cases]
  )
  np.testing.assert_array_equal(scores.reward_b, [x for _, _, x in cases])
  assert scores.num_hung == scores.num_crashed == scores.num_raised == 0


@pytest.mark.slow
def test_mathematics_that_takes_for_ever_is_worth_0(mathematics):
  bomb = completion(r"\boxed{9^{9^{9^{9}}}}", answer="1")
  scores = mathematics.score([bomb, completion("1", answer="1")])
  np.testing.assert_array_equal(scores.reward_b, [0.0, 1.0])
  assert scores.num_hung == 1


def test_a_reference_that_is_no_mathematics_is_told(mathematics):
  scores = mathematics.score([completion("12", answer="")])
  assert "The answer '' of the prompt 'prompt' is no math" in scores.first_error


def test_reasoning_gym_scores_its_own_answers():
  pytest.importorskip("reasoning_gym")
  # The second has metadata that JSON would change.
  for name in ("chain_sum", "knights_knaves"):
    prompt = data.reasoning_gym(name, size=2, seed=1)[1]
    cases = [(f"So <answer>{prompt.answer}</answer>.", 1.0), ("none", 0.0)]
    with rewards.Scorers(rewards.GYM, deadline_s=30.0) as scorers:
      scores = scorers.score(
        [
          completion(x, answer=prompt.answer, metadata=prompt.metadata)
          for x, _ in cases
        ]
      )
    assert scores.first_error == ""
    assert scores.reward_b[0] > scores.reward_b[1]

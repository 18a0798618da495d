"""Rewards that are computed here: by hand."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest

from rlinf_jax import data, rewards, types


def completion(response, **fields):
  return types.Completion(prompt="prompt", response=response, **fields)


@pytest.mark.parametrize(
  ("extract_fn", "response", "found"),
  [
    (rewards.whole, " 12 \n", "12"),
    (rewards.last_number, "First 3, then -1,234.50.", "-1234.50"),
    (rewards.last_number, "Of 12,34 the last is 34", "34"),
    (rewards.last_number, "none", None),
    (rewards.tagged, "<answer>1</answer> <answer> 2 </answer>.", "2"),
    (rewards.tagged, "<answer>1</answer> <answer>2", None),
    (rewards.tagged, "1</answer>", None),
    (functools.partial(rewards.tagged, tag="a"), "<a>1</a>", "1"),
    (rewards.boxed, r"\boxed{1} so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
    (rewards.boxed, r"\boxed{\frac{1}{2}", None),
    (rewards.boxed, "12", None),
  ],
)
def test_an_answer_is_found(extract_fn, response, found):
  assert extract_fn(response) == found


@pytest.mark.parametrize(
  ("response", "answer", "reward"),
  [
    ("4 7  31\n", "4 7 31", 1.0),
    ("4 7 31", " 4 7 31", 1.0),
    ("47 31", "4 7 31", 0.0),
    ("Four", "four", 0.0),
    ("", "4", 0.0),
  ],
)
def test_exact_match(response, answer, reward):
  assert rewards.exact_match()(completion(response, answer=answer)) == reward


def test_exact_match_of_what_is_extracted():
  reward_fn = rewards.exact_match(rewards.boxed)
  assert reward_fn(completion(r"Thus \boxed{ 12 }.", answer="12")) == 1.0
  assert reward_fn(completion("12", answer="12")) == 0.0


@pytest.mark.parametrize("answer", ["", " "])
def test_exact_match_refuses_a_prompt_without_an_answer(answer):
  with pytest.raises(ValueError, match="'prompt' has no answer"):
    rewards.exact_match()(completion("", answer=answer))


@pytest.mark.parametrize(
  ("response", "reward"),
  [
    ("<think>a\nb</think>\n<answer>12</answer>\n", 1.0),
    ("<think></think><answer></answer>", 1.0),
    ("<think>a</think><answer>12</answer> or 13", 0.0),
    ("<think>a</think><answer>1</answer><answer>2</answer>", 0.0),
    ("<think>a<answer>12</answer>", 0.0),
    ("12", 0.0),
  ],
)
def test_format_of_thoughts_and_an_answer(response, reward):
  assert rewards.matches()(completion(response)) == reward


def test_format_of_a_long_response_takes_linear_time():
  response = "<think>" + 100_000 * "<answer" + "</think>"
  before_s = time.process_time()
  assert rewards.matches()(completion(response)) == 0.0
  assert time.process_time() - before_s < 2.0


def test_lengths_by_hand():
  cut = completion("12", num_tokens=7, is_cut=True)
  assert rewards.finished(cut) == 0.0
  assert rewards.finished(completion("12", num_tokens=7)) == 1.0
  assert rewards.near_length(10, per_token=0.5)(cut) == -1.5
  assert rewards.near_length(4, per_token=0.5)(cut) == -1.5
  assert rewards.near_length(7)(cut) == 0.0


@pytest.mark.parametrize(
  ("response", "reward"),
  [
    ("(3+9)*(8-5)", 1.0),
    (" 3 * (9+8-5)\n", 1.0),  # 3 * 12
    ("(3+9)*(8-4)", 0.0),  # 4 is not among the numbers
    ("3*(9+8-5)+0", 0.0),
    ("36", 0.0),
    ("3+9+8-5", 0.0),  # 15
    ("3*(9+8-5", 0.0),
    ("3*(9+8-5)/(0)", 0.0),
    ("3/(9-9)", 0.0),
    ("3**9-8-5", 0.0),
    ("(" * 150 + "3", 0.0),
    ("__import__('os')", 0.0),
    (10_000 * "1+" + "1", 0.0),
    ("", 0.0),
  ],
)
def test_countdown(response, reward):
  metadata = {"items": [3, 9, 8, 5], "target": 36}
  reward_fn = rewards.countdown()
  assert reward_fn(completion(response, metadata=metadata)) == reward


def test_countdown_computes_exactly():
  metadata = {"items": [1, 3, 3], "target": 1}
  assert rewards.countdown()(completion("1/3*3", metadata=metadata)) == 1.0


def test_countdown_accepts_the_solution_of_every_prompt():
  for prompt in data.Procedural(data.countdown, size=200):
    response = completion(prompt.answer, metadata=prompt.metadata)
    assert rewards.countdown()(response) == 1.0, prompt


def test_scores_are_what_the_function_says():
  scores = rewards.score(rewards.finished, [completion("1"), completion("2")])
  np.testing.assert_array_equal(scores.reward_b, [1.0, 1.0])
  assert scores.reward_b.dtype == np.float32


@pytest.mark.parametrize("returned", [None, "1", float("inf"), 10**400])
def test_scores_are_finite_numbers(returned):
  with pytest.raises(ValueError, match="expected a finite number"):
    rewards.score(lambda completion: returned, [completion("1")])


def test_failures_are_counted_until_they_are_asked_for():
  found = rewards.Scores(
    reward_b=np.zeros(6), num_hung=1, num_crashed=2, num_raised=1
  )
  counting = rewards.FailureCount(lambda completions: found)
  for _ in range(2):
    assert counting([completion("")]) is found
  assert [counting.take(), counting.take()] == [8, 0]

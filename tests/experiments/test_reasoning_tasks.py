"""Tasks and rewards by the names that flags of `reasoning` take."""

from __future__ import annotations

import json

import pytest

from experiments import reasoning_tasks
from rlinf_jax import types


def completion(response, *, is_cut=False):
  return types.Completion(
    prompt="2+2=", response=response, answer="4", is_cut=is_cut
  )


def score(given, *completions):
  with reasoning_tasks.scorer(given, num_processes=1, deadline_s=5.0) as scorer:
    return scorer(completions)


def test_rewards_are_weighed_and_summed():
  good = "<think>2 and 2</think><answer>4</answer>"
  found = score(
    ["tagged", "format*0.5", "finished*0.25"],
    completion(good),
    completion(good.replace("<think>", ""), is_cut=True),
    completion("4"),
  )
  assert found.reward_b.tolist() == [1.75, 1.0, 0.25]
  assert found.first_b.tolist() == [1.0, 1.0, 0.0]


def test_a_single_reward_is_what_it_says():
  found = score(["exact"], completion("4"))
  assert (found.reward_b.tolist(), found.first_b) == ([1.0], None)
  # Its weight says nothing about what is right.
  found = score(["exact*0.1"], completion("4"))
  assert found.reward_b.tolist() == pytest.approx([0.1])
  assert found.first_b.tolist() == [1.0]


def test_rewards_of_files_are_weighed_too_and_their_failures_counted(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text('def f(c):\n  return 1 / (c.response != "no")\n')
  found = score(["exact", f"{path}:f*-2"], completion("4"), completion("no"))
  assert found.reward_b.tolist() == [-1.0, 0.0]
  assert (found.num_raised, found.num_failed) == (1, 1)
  assert "ZeroDivisionError" in found.first_error


@pytest.mark.parametrize("name", ["nice", "format*nice", "nice*2"])
def test_an_unknown_reward_is_refused(name):
  with pytest.raises(ValueError, match="nice.* is not known; give one of"):
    score(["exact", name], completion("4"))


def lengths(name, context_size, **options):
  found = reasoning_tasks.recipe(name, context_size=context_size, **options)
  return found.max_prompt_tokens, found.max_new_tokens


def test_what_a_model_says_in_full_needs_room():
  recipe = reasoning_tasks.recipe
  assert lengths("arithmetic", 128, is_tiny=True) == (6, 4)
  assert lengths("arithmetic", 4096) == (512, 1024)
  for is_tiny in (False, True):
    found = recipe("arithmetic", context_size=128, is_tiny=is_tiny)
    assert found.reward == "exact"
  assert recipe("gym:chain_sum", context_size=4096).reward == "gym"
  assert recipe("some.jsonl", context_size=4096).reward == "math"
  # What the tiny model has no lengths of is to fit its context too.
  for name in ("gym:chain_sum", "some.jsonl"):
    for is_tiny in (False, True):
      assert lengths(name, 128, is_tiny=is_tiny) == (42, 86)


def test_a_length_that_is_given_leaves_the_rest_to_the_other():
  assert lengths("some.jsonl", 2048, max_prompt_tokens=1500) == (1500, 548)
  assert lengths("some.jsonl", 2048, max_prompt_tokens=100) == (100, 1024)
  assert lengths("some.jsonl", 2048, max_new_tokens=1900) == (148, 1900)
  assert lengths("some.jsonl", 2048, max_new_tokens=100) == (512, 100)
  tiny = {"is_tiny": True, "max_prompt_tokens": 126}
  assert lengths("arithmetic", 128, **tiny) == (126, 2)
  # Nothing is left: whoever checks the sum says so.
  assert lengths("some.jsonl", 128, max_new_tokens=128) == (1, 128)


def test_a_resumed_run_learns_from_the_same_prompts():
  saved = {"learnt": 1800, "held_out": 200}
  saved |= {"num_eval_prompts": 200, "eval_task": None, "engine": "jax"}
  reasoning_tasks.check_resume(saved, {"learnt": 1800, "held_out": 200})
  with pytest.raises(ValueError) as error:
    reasoning_tasks.check_resume(saved, {"learnt": 1900, "held_out": 100})
  assert "had learnt 1,800, held_out 200, and now there" in str(error.value)
  assert str(error.value).endswith("--eval_task too: --num_eval_prompts=200")


def test_a_setting_that_is_no_column_is_refused(tmp_path):
  path = tmp_path / "some.jsonl"
  path.write_text(json.dumps({"text": "1+1=", "answer": "2"}))
  read = lambda args: reasoning_tasks.prompts(str(path), args, size=1, seed=0)
  assert read({"prompt": "text"})[0].text == "1+1="
  for args in ({"text": "prompt"}, {"prompt": 3}):
    with pytest.raises(ValueError, match="is no column of a file"):
      read(args)

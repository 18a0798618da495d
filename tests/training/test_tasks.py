"""Tasks: prompts as tokens, answers as rewards."""

import functools

import numpy as np
import pytest

from rlinf_jax import data, rewards, types
from rlinf_jax.training import tasks

TOKENIZER = data.CharTokenizer()
PROMPTS = [
  types.Prompt(text="1+1=", answer="2"),
  types.Prompt(text="2+20=", answer="22"),
  types.Prompt(text="3=", answer="3"),
]


def task(**options):
  return tasks.Task(
    **{
      "prompts": PROMPTS,
      "tokenizer": TOKENIZER,
      "score_fn": functools.partial(rewards.score, rewards.exact_match()),
      "max_prompt_tokens": 5,
      "order_seed": None,
      **options,
    }
  )


def answers(*texts):
  """Returns completions [B, 1] that say these texts, and end."""
  encoded = [[*TOKENIZER.encode(text), TOKENIZER.eos_id] for text in texts]
  token = np.zeros((len(texts), 1, 4), np.int32)
  for row, ids in zip(token, encoded):
    row[0, : len(ids)] = ids
  length = np.array([[len(ids)] for ids in encoded], np.int32)
  return types.Completions(
    token=token,
    log_prob=np.zeros(token.shape, np.float32),
    length=length,
    is_stopped=np.ones(length.shape, bool),
    version=np.zeros_like(token),
  )


def test_prompts_are_padded_on_the_right():
  token, length = task().ask(np.array([0, 2]))
  np.testing.assert_array_equal(length, [4, 2])
  assert TOKENIZER.decode(token[0, :4]) == "1+1="
  assert (token[1, 2:] == TOKENIZER.pad_id).all()


def test_an_answer_is_scored_against_its_own_prompt():
  found = task().score(np.array([1, 0]), answers("22", "22"))
  np.testing.assert_array_equal(found, [[1.0], [0.0]])


def test_a_prompt_that_is_too_long_is_named():
  short = task(max_prompt_tokens=4)
  with pytest.raises(ValueError, match="'2.20='.*5 tokens.*max_prompt_") as one:
    short.ask(np.array([1]))
  with pytest.raises(ValueError) as every:
    tasks.check_prompts(short)
  assert str(every.value).endswith(f"the longest: {one.value}")
  # An empty one is not the longest of those that fit.
  empty = task(prompts=[*PROMPTS, types.Prompt(text="")])
  with pytest.raises(ValueError, match="1 of 4 .* '' of 0 tokens"):
    tasks.check_prompts(empty)


def test_every_prompt_has_its_turn_in_each_epoch():
  mixed = task(order_seed=3)
  for epoch in range(2):
    texts = {mixed.prompt_at(3 * epoch + i).text for i in range(3)}
    assert texts == {prompt.text for prompt in PROMPTS}


def test_a_judgement_counts_each_prompt_once():
  # Batches of two: the last is filled up by a prompt that is not asked.
  asked = []

  def generate(request):
    asked.append(request)
    texts = [
      {4: "2", 5: "22", 2: "4"}[int(length)] for length in request.length
    ]
    return answers(*texts)

  found = tasks.judge(task(), generate, num_prompts=9, batch_size=2)
  assert found.rewards.num == 3
  assert found.accuracy.estimate == pytest.approx(2 / 3)
  assert [t.response for t, _ in found.samples] == ["2", "22", "4"]
  np.testing.assert_array_equal(asked[1].is_asked, [True, False])
  # The prompts say what was judged, in whatever batches.
  judge = functools.partial(tasks.judge, generate_fn=generate, batch_size=1)
  assert judge(task(), num_prompts=3).digest == found.digest
  assert judge(task(), num_prompts=2).digest != found.digest
  other = task(prompts=[*PROMPTS[:2], types.Prompt(text="3=", answer="4")])
  assert judge(other, num_prompts=3).digest != found.digest


def test_all_prompts_are_counted_that_are_too_long():
  with pytest.raises(ValueError, match=r"1 of 3 .*'2\+20=' of 5 tokens.*= 4\."):
    tasks.check_prompts(task(max_prompt_tokens=4))
  with pytest.raises(ValueError, match="2 of 3 .*--drop_long_prompts"):
    tasks.check_prompts(task(max_prompt_tokens=3))
  tasks.check_prompts(task())
  tasks.check_prompts(task(max_prompt_tokens=4), num=1)


def test_prompts_that_are_too_long_may_be_left_out():
  kept, num_dropped = tasks.drop_long_prompts(task(max_prompt_tokens=4))
  assert [prompt.text for prompt in kept.prompts] == ["1+1=", "3="]
  assert num_dropped == 1
  with pytest.raises(ValueError, match="3 of 3"):
    tasks.drop_long_prompts(task(max_prompt_tokens=1))


@pytest.mark.parametrize(
  ("size", "num", "expected"), [(3, 512, 1), (40, 512, 4), (40, 2, 2)]
)
def test_the_last_prompts_are_held_out(size, num, expected):
  prompts = [types.Prompt(text=f"{i}=") for i in range(size)]
  asked, judged = tasks.hold_out(task(prompts=prompts, order_seed=7), num)
  assert [*asked.prompts, *judged.prompts] == prompts
  assert len(judged.prompts) == expected
  assert judged.prompt_at(0) == prompts[-expected]


def test_a_single_prompt_cannot_be_held_out():
  with pytest.raises(ValueError, match="--eval_task"):
    tasks.hold_out(task(prompts=PROMPTS[:1]), 512)


def test_the_first_of_several_rewards_says_what_is_right():
  parts = [
    (functools.partial(rewards.score, rewards.exact_match()), 0.5),
    (functools.partial(rewards.score, rewards.finished), 2.0),
  ]
  score_fn = functools.partial(rewards.weighted_sum, parts)
  found = tasks.judge(
    task(score_fn=score_fn),
    lambda request: answers("2", "4", "3"),
    num_prompts=3,
    batch_size=3,
  )
  # 0.5 + 2, 2, 0.5 + 2
  assert found.rewards.mean == pytest.approx(7 / 3)
  assert found.accuracy.estimate == pytest.approx(2 / 3)


def test_rewards_that_fail_are_told_once(caplog):
  failing = lambda texts: rewards.Scores(
    reward_b=np.zeros(len(texts), np.float32), num_hung=1
  )
  failed = task(score_fn=failing)
  for _ in range(3):
    failed.score(np.array([1, 0]), answers("22", "22"))
  (line,) = [r.getMessage() for r in caplog.records]
  assert "of 2 answers 1 have no reward" in line
  assert "of 1 it was late (--score_deadline_s)" in line

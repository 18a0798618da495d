"""Each published algorithm on one small batch, computed independently.

Two prompts, two answers each, of 2, 1, 2 and 1 tokens (padded to 2). The
independent computation is plain Python over lists of tokens.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import losses
from rlinf_jax.losses import objectives

REWARDS = [[1.0, 0.0], [3.0, 2.0]]
# Answers: (old probability, new probability) of each token.
ANSWERS = [
  [[(0.5, 0.75), (0.5, 0.45)], [(0.4, 0.2)]],
  [[(0.2, 0.21), (0.8, 0.2)], [(0.25, 0.5)]],
]
# group means 0.5 and 2.5, deviations 0.5 and 0.5: A = +-1 in both groups
STANDARDISED = [[1.0, -1.0], [1.0, -1.0]]
CENTRED = [[0.5, -0.5], [0.5, -0.5]]
# with two answers the others' mean is the other's reward
LEAVE_ONE_OUT = [[1.0, -1.0], [1.0, -1.0]]
# tokens have the rewards 1, 1, 0, 3, 3, 2: mean 5/3; variance
# (2 (2/3)^2 + (5/3)^2 + 2 (4/3)^2 + (1/3)^2) / 6 = (66/9) / 6 = 11/9
OVER_BATCH = [
  [x / math.sqrt(11) for x in row] for row in [[-2.0, -5.0], [4.0, 1.0]]
]
# of the centred rewards +-0.5, of tokens +, +, -, +, +, -: mean 1/6; variance
# (4 (1/3)^2 + 2 (2/3)^2) / 6 = 2/9
CENTRED_OVER_BATCH = [[math.sqrt(1 / 2), -math.sqrt(2)]] * 2


def clipped(ratio, advantage, low, high):
  near = min(max(ratio, 1 - low), 1 + high)
  return -min(ratio * advantage, near * advantage)


def ppo(low, high):
  return lambda answer, a: [
    clipped(new / old, a, low, high) for old, new in answer
  ]


def gspo(answer, advantage):
  ratio = math.prod(new / old for old, new in answer) ** (1 / len(answer))
  return [clipped(ratio, advantage, 0.1, 0.2)] * len(answer)


def cispo(answer, advantage):
  return [
    -min(new / old, 1.2) * advantage * math.log(new) for old, new in answer
  ]


def reinforce(answer, advantage):
  return [-advantage * math.log(new) for _, new in answer]


def token_mean(rows):
  tokens = [x for row in rows for x in row]
  return sum(tokens) / len(tokens)


def sequence_mean(rows):
  return sum(sum(row) / len(row) for row in rows) / len(rows)


def sequence_sum(rows):
  return sum(sum(row) for row in rows) / len(rows)


def an_eighth(rows):
  return sequence_sum(rows) / 8


CASES = {
  "grpo": (objectives.grpo(), STANDARDISED, ppo(0.2, 0.2), sequence_mean),
  "dr_grpo": (
    objectives.dr_grpo(max_tokens=8),
    CENTRED,
    ppo(0.2, 0.2),
    an_eighth,
  ),
  "dapo": (objectives.dapo(), STANDARDISED, ppo(0.2, 0.28), token_mean),
  "gspo": (
    objectives.gspo(clip_low=0.1, clip_high=0.2),
    STANDARDISED,
    gspo,
    sequence_mean,
  ),
  "cispo": (objectives.cispo(clip_high=0.2), STANDARDISED, cispo, token_mean),
  "rloo": (objectives.rloo(), LEAVE_ONE_OUT, reinforce, sequence_sum),
  "reinforce_plus_plus": (
    objectives.reinforce_plus_plus(),
    OVER_BATCH,
    ppo(0.2, 0.2),
    token_mean,
  ),
  "reinforce_plus_plus_baseline": (
    objectives.reinforce_plus_plus_baseline(),
    CENTRED_OVER_BATCH,
    ppo(0.2, 0.2),
    token_mean,
  ),
}


def padded_batch():
  """Returns log_prob, old_log_prob and mask, each [P, G, T]."""
  num_tokens_pg = jnp.array([[len(a) for a in row] for row in ANSWERS])
  padding = [(0.9, 0.001)]
  probs = np.array(
    [[(a + padding)[:2] for a in row] for row in ANSWERS], np.float32
  )
  mask = jax.vmap(jax.vmap(lambda n: losses.length_mask(n, 2)))(num_tokens_pg)
  return jnp.log(probs[..., 1]), jnp.log(probs[..., 0]), mask


def batch_loss(objective, log_prob, old_log_prob, advantage_pg, mask):
  def answer(log_prob_t, old_log_prob_t, advantage, mask_t):
    advantage_t = jnp.full_like(log_prob_t, 1.0) * advantage
    loss_t = objective.loss_fn(log_prob_t, old_log_prob_t, advantage_t, mask_t)
    return objective.aggregation_fn(loss_t, mask_t)

  total, weight = jax.vmap(jax.vmap(answer))(
    log_prob, old_log_prob, advantage_pg, mask
  )
  return jnp.sum(total) / jnp.sum(weight)


def advantages_of(objective, reward_pg, kl_pgt, mask_pgt, kl_weight=0.0):
  return jax.jit(
    lambda *args: objectives.advantages(objective, *args, kl_weight=kl_weight)
  )(jnp.array(reward_pg), jnp.array(kl_pgt), jnp.array(mask_pgt))


@pytest.mark.parametrize("name", CASES)
def test_advantages_by_hand(name):
  objective, advantages, _, _ = CASES[name]
  *_, mask = padded_batch()
  found = advantages_of(objective, REWARDS, jnp.zeros((2, 2, 2)), mask)
  expected = np.broadcast_to(np.array(advantages)[..., None], found.shape)
  np.testing.assert_allclose(found[mask], expected[mask], rtol=1e-5)


# Two prompts' answers, of 2, 1, 1 and 1 tokens, and nats of their tokens.
KL = [[[0.2, 0.4], [0.6, 0.0]], [[0.4, 0.0], [0.8, 0.0]]]
IS_THERE = [[[True, True], [True, False]], [[True, False], [True, False]]]


@pytest.mark.parametrize(
  ("name", "before"),
  [
    # 1 - 0.5 (0.2 + 0.4), 1 - 0.5 0.4; 0 - 0.5 0.6; 3 - 0.2; 2 - 0.4
    ("reinforce_plus_plus", [0.7, 0.8, -0.3, 2.8, 1.6]),
    # the same, less the groups' means of 0.5 and 2.5
    ("reinforce_plus_plus_baseline", [0.2, 0.3, -0.8, 0.3, -0.9]),
  ],
)
def test_a_token_pays_for_the_divergence_from_it_on(name, before):
  found = advantages_of(CASES[name][0], REWARDS, KL, IS_THERE, kl_weight=0.5)
  expected = (np.array(before) - np.mean(before)) / np.std(before)
  np.testing.assert_allclose(found[np.array(IS_THERE)], expected, rtol=1e-4)
  assert not np.any(found[~np.array(IS_THERE)])


def test_a_groups_answers_pay_for_their_whole_divergence():
  # 1 - 0.3 and 0 - 0.3, 3 - 0.2 and 2 - 0.4: less the means 0.2 and 2.2.
  found = advantages_of(
    objectives.dr_grpo(max_tokens=2), REWARDS, KL, IS_THERE, kl_weight=0.5
  )
  expected = [[0.5, -0.5], [0.6, -0.6]]
  for t in range(2):
    np.testing.assert_allclose(found[..., t], expected, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_groups_that_do_not_count_change_nothing(name):
  used = np.array([True, False, False])[:, None, None]
  reward_pg = jnp.array([[1.0, 0.0], [5.0, 5.0], [9.0, 9.0]])
  kl_pgt = jnp.array([KL[0], KL[1], KL[1]])
  mask_pgt = jnp.array([IS_THERE[0]] * 3) & used
  objective = CASES[name][0]
  among_others = advantages_of(objective, reward_pg, kl_pgt, mask_pgt, 0.5)
  alone = advantages_of(objective, reward_pg[:1], kl_pgt[:1], mask_pgt[:1], 0.5)
  np.testing.assert_allclose(among_others[:1], alone, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_loss_is_the_independently_computed_number(name):
  objective, advantages, token_losses, mean = CASES[name]
  rows = [
    token_losses(answer, advantage)
    for answers, row in zip(ANSWERS, advantages)
    for answer, advantage in zip(answers, row)
  ]
  log_prob, old_log_prob, mask = padded_batch()
  loss = jax.jit(
    lambda x: batch_loss(
      objective, x, old_log_prob, jnp.array(advantages), mask
    )
  )(log_prob)
  np.testing.assert_allclose(loss, mean(rows), rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_padding_gets_no_gradient_and_some_token_does(name):
  objective, advantages, _, _ = CASES[name]
  log_prob, old_log_prob, mask = padded_batch()
  gradient = jax.jit(
    jax.grad(
      lambda x: batch_loss(
        objective, x, old_log_prob, jnp.array(advantages), mask
      )
    )
  )(log_prob)
  assert not np.any(gradient[~mask])
  assert np.any(gradient[mask])


@pytest.mark.parametrize(
  "name", [name for name, case in CASES.items() if case[0].batch_fn is None]
)
def test_a_group_of_equal_rewards_gets_exactly_0(name):
  reward_g = jnp.array([0.1] * 7)
  advantage_g = jax.jit(CASES[name][0].advantage_fn)(reward_g)
  np.testing.assert_array_equal(advantage_g, np.zeros(7))

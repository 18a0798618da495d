"""Laws of GRPO and its family as a macro flow, on a tiny model."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlinf_jax import losses, rollout, runtime, types
from rlinf_jax.algorithms import answers, grpo
from rlinf_jax.models import transformer
from rlinf_jax.models.huggingface import settings
from rlinf_jax.runtime import graphs, machines, tracing
from scheduler.profiles import Entry, Profile, Sample, Table
from tests.models.transformer import variants

FOUND = variants.VARIANTS["qwen2_tied"]
MODEL = transformer.language_model(settings.to_config(FOUND))
CRITIC = transformer.critic(settings.to_config(FOUND))
PARAMS = jax.tree.map(jnp.asarray, variants.params(FOUND))


@jax.jit
def logits_of(params, text):
  """Returns logits [T, V] after each token of one text [T]."""
  token, place = text[None], jnp.arange(text.size)[None]
  return MODEL.apply(params, token, place, jnp.ones_like(place))[0]


CONFIG = grpo.Config(
  num_prompts=4, group_size=4, max_prompt_tokens=3, max_new_tokens=3
)
STOP = 1


def ask(position_p):
  """Prompts of two or three tokens, which differ by their position."""
  prompt = np.stack(
    [2 + position_p % 7, 9 + position_p % 5, 3 + 0 * position_p], axis=1
  )
  return prompt.astype(np.int32), (2 + position_p % 2).astype(np.int32)


def score(position_p, completions):
  """1 for an answer whose first token is even."""
  del position_p
  return (completions.token[:, :, 0] % 2 == 0).astype(np.float32)


@functools.cache  # so that its stage is compiled once for many tests
def engine_of(max_new_tokens):
  return rollout.JaxEngine(
    MODEL, rollout.Sampling(max_new_tokens=max_new_tokens, stop_tokens=(STOP,))
  )


def make(config=CONFIG, objective=None, optimizer=None, **options):
  return grpo.make(
    options.pop("model", MODEL),
    options.pop("engine", None) or engine_of(config.max_new_tokens),
    options.pop("ask_fn", ask),
    options.pop("score_fn", score),
    objective or losses.objectives.grpo(),
    optimizer or optax.sgd(0.1),
    config,
    **options,
  )


def start(algorithm, seed=0):
  return algorithm.init(PARAMS, jax.random.key(seed))


def planned(algorithm, **options):
  """Returns the flow with generation and learning on devices of their own.

  Its profile is made up: measuring compiles each stage for more sizes.
  """
  machine = machines.of_process(2, num_host_slots=2)
  traced = tracing.trace(algorithm.iteration, start(algorithm))
  table = Table(
    samples=(Sample(granule=1, devices=1, seconds=1e-3),), extrapolate=True
  )
  entries = [
    Entry(
      stage=s.name,
      device_class=machines.HOST if s.kind == "host" else machine.mesh_class,
      law=table,
    )
    for s in graphs.describe(traced).workflow.stages
  ]
  return runtime.m2flow(
    algorithm.iteration,
    plan="disaggregated",
    machine=machine,
    profile=Profile(entries=tuple(entries)),
    **options,
  )


class Replay:
  """An engine that gives what it is told, whatever the weights."""

  place = "process"

  def __init__(self, token, length):
    self.token, self.length = token, length

  def generate(self, weights, request, *, sampling=None):
    del sampling
    num = request.length.shape[0]
    shape = self.token[:num].shape
    return types.Completions(
      token=self.token[:num],
      log_prob=np.zeros(shape, np.float32),
      length=self.length[:num],
      is_stopped=self.length[:num] < shape[-1],
      version=np.full(shape, weights.version, np.int32),
    )


compiles = pytest.mark.slow  # a model, in seconds


def test_a_text_is_a_prompt_and_what_follows_it():
  text = answers.join(
    jnp.array([5, 6, 99]), jnp.int32(2), jnp.array([7, 8, 98]), jnp.int32(2)
  )
  np.testing.assert_array_equal(text, [5, 6, 7, 8, 0, 0])


@compiles
def test_statistics_are_those_of_the_whole_text():
  given = answers.Answers(
    prompt=jnp.array([[4, 5, 0]]),
    prompt_length=jnp.array([2]),
    token=jnp.array([[[6, 7, 0], [8, 9, 10]]]),
    length=jnp.array([[2, 3]]),
    is_stopped=jnp.ones((1, 2), bool),
    log_prob=jnp.zeros((1, 2, 3)),
    version=jnp.zeros((1, 2, 3), jnp.int32),
    is_used=jnp.ones(1, bool),
  )
  said = jax.jit(
    lambda x: answers.statistics(MODEL, PARAMS, x, temperature=0.7)
  )(given)
  # What a text holds after a token does not matter to it.
  texts = [([4, 5, 6, 7, 0], 2), ([4, 5, 8, 9, 10], 3)]
  for row, (text, num) in enumerate(texts):
    logits = np.asarray(logits_of(PARAMS, jnp.array(text)), np.float64) / 0.7
    log_prob = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = log_prob[np.arange(1, 1 + num), text[2 : 2 + num]]
    np.testing.assert_allclose(said.log_prob[row, :num], expected, atol=1e-5)


@pytest.mark.slow
def test_an_update_is_the_gradient_worked_out_by_hand():
  # One prompt, two answers of one token; rewards 1 and 0 are standardised to
  # +1 and -1 (mean 1/2, deviation 1/2). On policy the ratio is 1, so the loss's
  # gradient is -(grad log p(a) - grad log p(b)) / 2.
  config = dataclasses.replace(
    CONFIG, num_prompts=1, group_size=2, max_new_tokens=1
  )
  engine = Replay(np.array([[[4], [5]]], np.int32), np.ones((1, 2), np.int32))
  algorithm = make(config, engine=engine, optimizer=optax.sgd(1.0))
  state, metrics = algorithm.iteration(start(algorithm))

  def difference(params):
    logits = logits_of(params, jnp.array([2, 9]))  # of position 0, two tokens
    log_prob = jax.nn.log_softmax(logits[-1])
    return (log_prob[4] - log_prob[5]) / 2

  expected = jax.tree.map(np.add, PARAMS, jax.jit(jax.grad(difference))(PARAMS))
  for found, wanted in zip(
    jax.tree.leaves(state.learner.params.actor), jax.tree.leaves(expected)
  ):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
  assert metrics["reward"] == 0.5
  assert metrics["signal"] == 1.0


@compiles
def test_groups_of_equal_reward_teach_nothing():
  algorithm = make(score_fn=lambda p, c: np.full(c.length.shape, 0.3, "f4"))
  before = start(algorithm)
  after, metrics = algorithm.iteration(before)
  for a, b in zip(
    jax.tree.leaves(before.learner.params),
    jax.tree.leaves(after.learner.params),
  ):
    np.testing.assert_array_equal(a, b)
  assert metrics["signal"] == 0.0


@compiles
def test_the_engine_and_the_trainer_agree_through_updates():
  algorithm = make()
  state = start(algorithm)
  for i in range(3):
    state, metrics = algorithm.iteration(state)
    assert metrics["drift"] < 1e-4
    assert state.version == i + 1
    assert state.next_position == 4 * (i + 1)


class Stuck(rollout.JaxEngine):
  """An engine that new weights do not reach."""

  place = "process"
  params = None

  def generate(self, weights, request, *, sampling=None):
    self.params = self.params or weights.params
    given = weights.replace(params=self.params)
    return jax.device_get(super().generate(given, request, sampling=sampling))


@compiles
@pytest.mark.parametrize(
  ("kind", "drift_every", "expected"),
  [
    (rollout.JaxEngine, 1, [False, False, False, False, False]),
    # Versions 0, 0, 1, 2 and 3 generate; version 0 has arrived.
    (Stuck, 1, [False, False, True, True, True]),
    (Stuck, 3, [False, False, False, True, False]),
  ],
)
def test_weights_that_do_not_arrive_are_found_under_a_staleness(
  kind, drift_every, expected
):
  engine = kind(MODEL, rollout.Sampling(max_new_tokens=3, stop_tokens=(STOP,)))
  algorithm = make(
    dataclasses.replace(CONFIG, drift_every=drift_every), engine=engine
  )
  run = planned(algorithm, staleness=1)
  rows = [row for _, row in run.iterate(start(algorithm), [()] * 5)]
  assert rows[-1]["staleness"] == 1.0
  assert [bool(row["drift"] > 1e-4) for row in rows] == expected


@pytest.mark.slow
def test_a_stage_is_given_the_parameters_that_it_reads():
  algorithm = make(
    dataclasses.replace(CONFIG, kl_weight=0.1, drift_every=1), critic=CRITIC
  )
  graph = graphs.describe(
    tracing.trace(algorithm.iteration, start(algorithm)), staleness=1
  )
  size = {s.name: s.state_bytes for s in graph.workflow.stages}
  num_bytes = lambda x: sum(leaf.nbytes for leaf in jax.tree.leaves(x))
  networks = start(algorithm).learner.params
  assert size["infer"] == size["refer"] == num_bytes(networks.actor)
  assert size["value"] == num_bytes(networks.critic)
  assert size["reread"] == size["infer"] + 4  # and the version


@compiles
def test_tokens_beyond_an_answers_end_do_not_count():
  token = np.array([[[4, 1, 0], [5, 1, 0]]], np.int32)
  junk = np.array([[[4, 1, 33], [5, 1, 17]]], np.int32)
  length = np.full((1, 2), 2, np.int32)
  config = dataclasses.replace(CONFIG, num_prompts=1, group_size=2)
  params = []
  for given in (token, junk):
    algorithm = make(config, engine=Replay(given, length))
    state, _ = algorithm.iteration(start(algorithm))
    params.append(state.learner.params.actor)
  for a, b in zip(*map(jax.tree.leaves, params)):
    np.testing.assert_array_equal(a, b)


@compiles
def test_prompts_are_asked_until_enough_groups_differ():
  # Positions 0 to 3 are all scored alike; of 4 to 7 every group differs.
  def score_fn(position_p, completions):
    reward = np.zeros(completions.length.shape, np.float32)
    reward[position_p >= 4, 0] = 1.0
    return reward

  algorithm = make(dataclasses.replace(CONFIG, max_rounds=3), score_fn=score_fn)
  state, metrics = algorithm.iteration(start(algorithm))
  assert metrics["num_prompts"] == 8  # two rounds, and no third
  assert metrics["num_learnt"] == 4
  assert state.next_position == 8
  # From position 8 on one round is enough.
  state, metrics = algorithm.iteration(state)
  assert metrics["num_prompts"] == 4
  assert state.next_position == 12


@compiles
def test_too_few_groups_that_differ_are_learnt_from_alone():
  def score_fn(position_p, completions):
    reward = np.zeros(completions.length.shape, np.float32)
    reward[position_p == 2, 0] = 1.0
    return reward

  algorithm = make(dataclasses.replace(CONFIG, max_rounds=2), score_fn=score_fn)
  _, metrics = algorithm.iteration(start(algorithm))
  assert metrics["num_learnt"] == 1
  assert metrics["num_prompts"] == 8


@compiles
@pytest.mark.parametrize(
  "name", ["reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo"]
)
def test_groups_that_are_not_used_do_not_count_in_the_batch(name):
  # What is learnt from one group of two rounds is learnt from it alone.
  def score_fn(position_p, completions):
    reward = np.full(completions.length.shape, 0.7, np.float32)
    reward[position_p == 2, 0] = 1.0
    return reward

  found = []
  for change in ({"max_rounds": 2}, {"num_prompts": 1}):
    algorithm = make(
      dataclasses.replace(CONFIG, **change),
      objective=ALGORITHMS[name],
      score_fn=score_fn,
      critic=CRITIC if name == "ppo" else None,
    )
    state = start(algorithm)
    if "num_prompts" in change:
      state = state.replace(next_position=jnp.int32(2))
    state, metrics = algorithm.iteration(state)
    assert metrics["num_learnt"] == 1
    found.append(state.learner.params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *found
  )


@compiles
def test_a_position_has_the_same_seeds_in_every_run():
  asked = []

  class Listening(rollout.JaxEngine):
    place = "process"

    def generate(self, weights, request, *, sampling=None):
      asked.append(request)
      return jax.device_get(super().generate(weights, request))

  engine = Listening(
    MODEL, rollout.Sampling(max_new_tokens=3, stop_tokens=(STOP,))
  )
  algorithm = make(engine=engine)
  state, _ = algorithm.iteration(start(algorithm))
  algorithm.iteration(state)
  algorithm.iteration(state)  # as a resumed run would
  np.testing.assert_array_equal(asked[1].seed, asked[2].seed)
  np.testing.assert_array_equal(asked[1].prompt, asked[2].prompt)
  seeds = np.concatenate([asked[0].seed, asked[1].seed])
  assert len(np.unique(seeds)) == seeds.size


@compiles
@pytest.mark.bits
@pytest.mark.parametrize(
  ("change", "critic"),
  [
    ({"num_minibatches": 2, "packed_rows": 2}, None),
    ({"drift_every": 1}, CRITIC),
  ],
)
def test_any_plan_gives_the_eager_numbers(change, critic):
  config = dataclasses.replace(CONFIG, quantum=1, kl_weight=0.1, **change)
  algorithm = make(config, critic=critic)
  eager = start(algorithm)
  for _ in range(2):
    eager, _ = algorithm.iteration(eager)
  run = planned(algorithm)
  *_, (state, _) = run.iterate(start(algorithm), [()] * 2)
  for a, b in zip(
    jax.tree.leaves(eager.learner), jax.tree.leaves(state.learner)
  ):
    np.testing.assert_array_equal(a, b)
  assert state.next_position == eager.next_position


@compiles
def test_a_penalty_in_the_reward_is_the_answers_whole_divergence():
  # Far from the reference the penalty decides: with rewards all 0, the answer
  # that has become likelier than the reference has it is the worse one.
  config = dataclasses.replace(
    CONFIG,
    num_prompts=1,
    group_size=2,
    max_new_tokens=1,
    kl_weight=1.0,
    kl_in_reward=True,
    kl_fn=losses.kl_k1,
  )
  engine = Replay(np.array([[[4], [5]]], np.int32), np.ones((1, 2), np.int32))
  algorithm = make(
    config,
    engine=engine,
    score_fn=lambda p, c: np.zeros(c.length.shape, "f4"),
    optimizer=optax.sgd(0.1),
  )
  state = start(algorithm)
  moved = jax.tree.map(lambda x: 1.5 * x, PARAMS)
  state = state.replace(
    learner=state.learner.replace(params=grpo.Networks(moved, ()))
  )

  def log_probs(params):
    logits = logits_of(params, jnp.array([2, 9]))[-1]
    return jax.nn.log_softmax(logits)[jnp.array([4, 5])]

  excess = log_probs(moved) - log_probs(PARAMS)
  after, _ = algorithm.iteration(state)
  change = log_probs(after.learner.params.actor) - log_probs(moved)
  assert (change[0] > change[1]) == (excess[0] < excess[1])


@compiles
def test_an_answer_near_the_limit_is_as_if_scored_lower():
  # Of at most 3 tokens the last 2 cost 1 in all: lengths 1, 2 and 3 cost
  # 0, 1/2 and 1.
  config = dataclasses.replace(CONFIG, num_prompts=1, group_size=3)
  token = np.array([[[4, 0, 0], [5, 6, 0], [7, 8, 9]]], np.int32)
  engine = Replay(token, np.array([[1, 2, 3]], np.int32))
  found = []
  for overlong_tokens, cost in ((2, [0.0, 0.0, 0.0]), (0, [0.0, 0.5, 1.0])):
    algorithm = make(
      dataclasses.replace(config, overlong_tokens=overlong_tokens),
      engine=engine,
      score_fn=lambda p, c, cost=cost: np.float32([1.0]) - np.float32([cost]),
    )
    state, _ = algorithm.iteration(start(algorithm))
    found.append(state.learner.params.actor)
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), found[0], PARAMS)
  assert max(jax.tree.leaves(moved)) > 0.0
  assert_close(*found)


def test_a_critics_advantages_are_those_of_its_values():
  # One answer of two tokens with reward 1 at its end, values 0.5 and 0.25,
  # lambda and discount 1: A = (1 - 0.5, 1 - 0.25), targets 1.
  advantage, target = answers.token_advantages(
    jnp.float32(1.0),
    jnp.zeros(3),
    jnp.array([0.5, 0.25, 9.0]),
    jnp.array([True, True, False]),
    kl_weight=0.0,
    discount=1.0,
    gae_lambda=1.0,
  )
  np.testing.assert_allclose(advantage[:2], [0.5, 0.75], atol=1e-6)
  np.testing.assert_allclose(target[:2], [1.0, 1.0], atol=1e-6)


@compiles
def test_a_critic_learns_beside_the_actor():
  algorithm = make(critic=CRITIC, optimizer=optax.adam(1e-2))
  state = start(algorithm)
  errors = []
  for _ in range(8):
    state, metrics = algorithm.iteration(state)
    errors.append(float(metrics["value_loss"]))
  assert errors[-1] < errors[0]


@compiles
def test_corrections_weigh_what_another_program_sampled():
  # The replayed engine says log-probabilities of 0 (certainty), the trainer far
  # less: ratios near 0.03, all below 0.5, so every token is masked out.
  config = dataclasses.replace(
    CONFIG,
    num_prompts=1,
    group_size=2,
    max_new_tokens=1,
    correction_fn=losses.corrections.token_masked,
  )
  engine = Replay(np.array([[[4], [5]]], np.int32), np.ones((1, 2), np.int32))
  algorithm = make(config, engine=engine)
  before = start(algorithm)
  after, metrics = algorithm.iteration(before)
  for a, b in zip(
    jax.tree.leaves(before.learner.params),
    jax.tree.leaves(after.learner.params),
  ):
    np.testing.assert_array_equal(a, b)
  assert metrics["correction"] == 0.0


@pytest.mark.parametrize(
  ("change", "what"),
  [
    ({"num_prompts": 0}, "num_prompts is 0"),
    ({"temperature": 0.0}, "likeliest"),
    ({"num_minibatches": 3}, "does not divide"),
    ({"quantum": 3}, "quantum is 3"),
  ],
)
def test_sizes_that_do_not_fit_are_refused(change, what):
  with pytest.raises(ValueError, match=what):
    make(dataclasses.replace(CONFIG, **change))


ALGORITHMS = {
  "grpo": losses.objectives.grpo(),
  "dr_grpo": losses.objectives.dr_grpo(max_tokens=3),
  "dapo": losses.objectives.dapo(),
  "gspo": losses.objectives.gspo(),
  "cispo": losses.objectives.cispo(),
  "rloo": losses.objectives.rloo(),
  "reinforce_plus_plus": losses.objectives.reinforce_plus_plus(),
  "reinforce_plus_plus_baseline": (
    losses.objectives.reinforce_plus_plus_baseline()
  ),
  "ppo": losses.objectives.reinforce_plus_plus(),
}


@compiles
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_what_pays(name):
  algorithm = make(
    dataclasses.replace(CONFIG, num_prompts=8, group_size=8),
    objective=ALGORITHMS[name],
    optimizer=optax.adam(3e-3),
    critic=CRITIC if name == "ppo" else None,
  )
  for seed in range(3):
    # Seeds of answers follow from positions: these are three unlike runs.
    state = start(algorithm).replace(next_position=jnp.int32(10_000 * seed))
    rewards = []
    for _ in range(25):
      state, metrics = algorithm.iteration(state)
      rewards.append(float(metrics["reward"]))
    assert np.mean(rewards[-5:]) > np.mean(rewards[:3]) + 0.2, seed
    assert np.mean(rewards[-5:]) > 0.8, seed


@compiles
def test_a_reward_model_is_read_at_an_answers_end():
  params = transformer.critic_params(PARAMS)
  params["value"] = jax.random.normal(jax.random.key(1), (1, 32))
  given = answers.Answers(
    prompt=jnp.array([[4, 5, 0]]),
    prompt_length=jnp.array([2]),
    token=jnp.array([[[6, 7, 0], [8, 9, 10]]]),
    length=jnp.array([[2, 3]]),
    is_stopped=jnp.ones((1, 2), bool),
    log_prob=jnp.zeros((1, 2, 3)),
    version=jnp.zeros((1, 2, 3), jnp.int32),
    is_used=jnp.ones(1, bool),
  )
  rated = jax.jit(functools.partial(answers.rate, CRITIC))(params, given)
  # What a text holds after its end does not matter to it.
  texts = jnp.array([[4, 5, 6, 7, 0], [4, 5, 8, 9, 10]])
  place = jnp.broadcast_to(jnp.arange(5), texts.shape)
  value = jax.jit(CRITIC.apply)(params, texts, place, jnp.ones_like(place))
  np.testing.assert_allclose(rated[0], [value[0, 3], value[1, 4]], atol=1e-5)


@compiles
def test_what_a_reward_model_says_is_added_to_the_score():
  params = transformer.critic_params(PARAMS)
  params["value"] = jax.random.normal(jax.random.key(1), (1, 32))
  algorithm = make(
    reward_model=CRITIC, score_fn=lambda p, c: np.ones(c.length.shape, "f4")
  )
  state = algorithm.init(PARAMS, jax.random.key(0), params)
  after, metrics = algorithm.iteration(state)
  assert metrics["signal"] == 1.0  # its values differ, the scores do not
  assert metrics["reward"] != 1.0
  for a, b in zip(
    jax.tree.leaves(state.reward_model), jax.tree.leaves(after.reward_model)
  ):
    np.testing.assert_array_equal(a, b)


def after_two_iterations(change, model=MODEL, critic=CRITIC):
  """Returns networks and metrics, where all kinds of networks read."""
  config = dataclasses.replace(
    CONFIG, quantum=2, max_new_tokens=5, kl_weight=0.1, **change
  )
  algorithm = make(config, model=model, critic=critic, reward_model=critic)
  rated = jax.tree.map(jnp.ones_like, CRITIC.init(jax.random.key(1)))
  state = algorithm.init(PARAMS, jax.random.key(0), rated)
  for _ in range(2):
    state, metrics = algorithm.iteration(state)
  return state.learner.params, metrics


@pytest.fixture(scope="module")
def plain():
  """What padded rows give, all kept in memory and attended to at once."""
  return after_two_iterations({})


def assert_close(a, b):
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), a, b
  )


@compiles
def test_packed_rows_give_the_numbers_of_padded_ones(plain):
  assert_close(after_two_iterations({"packed_rows": 3}), plain)


@compiles
def test_what_bounds_memory_gives_the_same_numbers(plain):
  policy = jax.checkpoint_policies.nothing_saveable
  options = {"remat_policy": policy, "attention_block_size": 2}
  config = settings.to_config(FOUND)
  bounded = after_two_iterations(
    {"packed_rows": 2},
    transformer.language_model(config, **options),
    transformer.critic(config, **options),
  )
  assert_close(bounded, plain)

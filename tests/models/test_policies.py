"""The contract of every policy, and what is special about each."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import models

T = 5
IMAGE = jnp.zeros((8, 8, 2))
SMALL_CNN = dict(
  channels=(4, 4), kernel_sizes=(4, 3), strides=(2, 2), hidden_sizes=(8,)
)
SMALL_MLP = dict(policy_hidden_sizes=(8, 8), value_hidden_sizes=(16,))
SMALL_GRU = dict(encoder_sizes=(8,), memory_size=6)
# name -> (constructor, one observation, options)
FAMILY = {
  "mlp": (models.mlp_policy, jnp.zeros(3), SMALL_MLP),
  "mlp_asymmetric": (
    models.mlp_policy,
    {
      "policy": {"joints": jnp.zeros((2, 2)), "time": jnp.zeros(())},
      "critic": jnp.zeros(4),
    },
    SMALL_MLP,
  ),
  "cnn_asymmetric": (
    models.cnn_policy,
    {
      "policy": {"camera": IMAGE, "joints": jnp.zeros(3)},
      "critic": jnp.zeros(4),
    },
    SMALL_CNN,
  ),
  "gru": (models.gru_policy, jnp.zeros(3), SMALL_GRU),
}
HEAD = models.tanh_gaussian(2)


@functools.cache
def make(name, head=HEAD, **options):
  """Returns a policy and parameters at which outputs are not tiny."""
  constructor, obs, defaults = FAMILY[name]
  policy = constructor(obs, head, **defaults, **options)
  policy = policy._replace(
    init=jax.jit(policy.init), apply=jax.jit(policy.apply)
  )
  params = policy.init(jax.random.key(0))
  noise = np.random.default_rng(1)
  moved = lambda x: x + 0.3 * noise.standard_normal(x.shape, np.float32)
  return policy, jax.tree.map(moved, params)


def observe(name, shape=(T,), seed=2):
  """Returns random observations with leading axes."""
  noise = np.random.default_rng(seed)
  draw = lambda x: noise.random((*shape, *x.shape), np.float32)
  return jax.tree.map(draw, FAMILY[name][1])


def at(tree, index):
  return jax.tree.map(lambda x: x[index], tree)


@pytest.mark.parametrize("name", FAMILY)
def test_parameters_are_nested_dicts_of_float32_with_names_as_keys(name):
  _, params = make(name)
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    assert all(isinstance(entry.key, str) for entry in path)
    assert leaf.dtype == jnp.float32
  assert set(params) == {"policy", "value"}


@pytest.mark.parametrize("name", FAMILY)
def test_t_steps_at_once_are_t_steps_in_turn(name):
  policy, params = make(name)
  obs_t = observe(name)
  is_first_t = jnp.array([True, False, False, True, False])
  apply = policy.apply
  outputs_t, value_t, last_carry = apply(
    params, obs_t, policy.initial_carry(), is_first_t
  )
  carry = policy.initial_carry()
  for t in range(T):
    now = slice(t, t + 1)
    outputs, value, carry = apply(
      params, at(obs_t, now), carry, is_first_t[now]
    )
    np.testing.assert_allclose(outputs[0], outputs_t[t], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value[0], value_t[t], rtol=1e-4, atol=1e-5)
  chex.assert_trees_all_close(carry, last_carry, rtol=1e-4, atol=1e-5)
  assert jax.tree.structure(carry) == jax.tree.structure(policy.initial_carry())


@pytest.mark.parametrize("name", FAMILY)
def test_a_batch_of_sequences_is_each_of_them(name):
  policy, params = make(name)
  obs_bt = observe(name, (3, T))
  carry_b = jax.tree.map(lambda x: jnp.stack([x] * 3), policy.initial_carry())
  is_first_bt = jax.random.bernoulli(jax.random.key(3), 0.3, (3, T))
  batched = jax.jit(jax.vmap(policy.apply, in_axes=(None, 0, 0, 0)))
  results_b = batched(params, obs_bt, carry_b, is_first_bt)
  single = policy.apply
  for b in range(3):
    chex.assert_trees_all_close(
      at(results_b, b),
      single(params, at(obs_bt, b), at(carry_b, b), is_first_bt[b]),
      rtol=1e-4,
      atol=1e-5,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY)
def test_seeds_side_by_side_are_seeds_in_turn(name):
  policy, _ = make(name)
  key_s = jax.random.split(jax.random.key(4), 2)
  params_s = jax.jit(jax.vmap(policy.init))(key_s)
  obs_t = observe(name)
  inputs = (obs_t, policy.initial_carry(), jnp.zeros(T, bool))

  def loss(params):
    outputs_t, value_t, _ = policy.apply(params, *inputs)
    return jnp.sum(jnp.square(outputs_t)) + jnp.sum(jnp.square(value_t - 1.0))

  grads_s = jax.jit(jax.vmap(jax.grad(loss)))(params_s)
  for s in range(2):
    params = policy.init(key_s[s])
    chex.assert_trees_all_close(params, at(params_s, s), rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(
      jax.jit(jax.grad(loss))(params), at(grads_s, s), rtol=1e-3, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY)
def test_bfloat16_computes_close_by_and_keeps_float32_outside(name):
  policy, params = make(name)
  half, half_params = make(name, compute_dtype=jnp.bfloat16)
  chex.assert_type(jax.tree.leaves(half_params), jnp.float32)
  inputs = (observe(name), policy.initial_carry(), jnp.zeros(T, bool))
  results = half.apply(params, *inputs)
  chex.assert_type(jax.tree.leaves(results), jnp.float32)
  exact = policy.apply(params, *inputs)
  # bfloat16 has 8 bits: each layer adds about 2^-8 of its values.
  chex.assert_trees_all_close(results, exact, rtol=0.05, atol=0.05)
  assert not np.array_equal(results[0], exact[0])


@pytest.mark.parametrize("name", FAMILY)
def test_a_new_policy_means_an_action_of_almost_0_whatever_it_sees(name):
  policy, _ = make(name)
  outputs_t, _, _ = policy.apply(
    policy.init(jax.random.key(0)),
    observe(name),
    policy.initial_carry(),
    jnp.zeros(T, bool),
  )
  assert float(jnp.max(jnp.abs(outputs_t))) < 0.1
  assert float(jnp.max(jnp.abs(outputs_t))) > 0


@pytest.mark.parametrize("name", ["mlp_asymmetric", "cnn_asymmetric"])
def test_actor_and_critic_each_see_their_own_observation_only(name):
  policy, params = make(name)
  obs_t = observe(name)

  def sums(obs_t):
    outputs_t, value_t, _ = policy.apply(params, obs_t, (), jnp.zeros(T, bool))
    return jnp.sum(outputs_t), jnp.sum(value_t)

  by_outputs = jax.grad(lambda obs_t: sums(obs_t)[0])(obs_t)
  by_value = jax.grad(lambda obs_t: sums(obs_t)[1])(obs_t)
  is_zero = lambda tree: not any(x.any() for x in jax.tree.leaves(tree))
  assert is_zero(by_outputs["critic"]) and not is_zero(by_outputs["policy"])
  assert is_zero(by_value["policy"]) and not is_zero(by_value["critic"])


def test_without_an_entry_for_it_the_critic_sees_what_the_policy_sees():
  policy, params = make("mlp")
  value = lambda obs_t: jnp.sum(
    policy.apply(params, obs_t, (), jnp.zeros(T, bool))[1]
  )
  assert jax.grad(value)(observe("mlp")).all()


def test_mlp_of_two_layers_is_the_formula():
  policy, params = make("mlp")
  obs_t = observe("mlp")
  outputs_t, value_t, _ = policy.apply(params, obs_t, (), jnp.zeros(T, bool))

  def network(params, x):
    layers = params["mlp"]
    for name in sorted(k for k in layers if k.startswith("hidden")):
      x = np.tanh(
        x @ layers[name]["kernel"] + np.array(layers[name]["bias"])[None]
      )
    return (
      x @ layers["output"]["kernel"] + np.array(layers["output"]["bias"])[None]
    )

  np.testing.assert_allclose(
    outputs_t, network(params["policy"], obs_t), rtol=1e-4, atol=1e-5
  )
  np.testing.assert_allclose(
    value_t, network(params["value"], obs_t)[:, 0], rtol=1e-4, atol=1e-5
  )


@pytest.mark.slow
def test_shared_outputs_are_parameters_and_ignore_the_state():
  head = models.with_shared_std(HEAD)
  policy, params = make("mlp", head)
  assert params["shared"].shape == (2,)
  outputs_t, _, _ = policy.apply(params, observe("mlp"), (), jnp.zeros(T, bool))
  assert outputs_t.shape == (T, 4)
  np.testing.assert_array_equal(
    outputs_t[:, 2:], np.broadcast_to(params["shared"], (T, 2))
  )
  assert float(jnp.std(outputs_t[:, 0])) > 0


def test_gru_remembers_and_forgets_where_an_episode_begins():
  policy, params = make("gru")
  apply = policy.apply
  obs_t = observe("gru", (6,))
  is_first_t = jnp.arange(6) == 3
  outputs_t, value_t, carry = apply(
    params, obs_t, policy.initial_carry(), is_first_t
  )
  # Two episodes in a row are each of them from the initial memory, ...
  halves = [
    apply(params, at(obs_t, part), policy.initial_carry(), jnp.zeros(3, bool))
    for part in (slice(0, 3), slice(3, 6))
  ]
  np.testing.assert_allclose(
    outputs_t, jnp.concatenate([h[0] for h in halves]), rtol=1e-4, atol=1e-6
  )
  np.testing.assert_allclose(
    value_t, jnp.concatenate([h[1] for h in halves]), rtol=1e-4, atol=1e-6
  )
  chex.assert_trees_all_close(carry, halves[1][2], rtol=1e-4, atol=1e-6)
  # ... and one long episode is not.
  long_t, _, _ = apply(
    params, obs_t, policy.initial_carry(), jnp.zeros(6, bool)
  )
  np.testing.assert_array_equal(long_t[:3], outputs_t[:3])
  assert not np.allclose(long_t[3:], outputs_t[3:], atol=1e-4)


def test_gru_is_the_cell_of_its_docstring():
  policy, params = make("gru")
  obs_t = observe("gru", (1,))
  carry = jax.random.normal(jax.random.key(5), (2, 6))
  _, _, (memory, _) = policy.apply(
    params, obs_t, (carry[0], carry[1]), jnp.zeros(1, bool)
  )
  encoder, recurrence = (
    params["policy"]["encoder"],
    params["policy"]["recurrence"],
  )
  linear = lambda layer, x: x @ layer["kernel"] + layer["bias"]
  hidden = jnp.tanh(linear(encoder["hidden_0"], obs_t[0]))
  r, z, n = jnp.split(linear(encoder["output"], hidden), 3)
  u, v, w = jnp.split(linear(recurrence, carry[0]), 3)
  new = jnp.tanh(n + jax.nn.sigmoid(r + u) * w)
  share = jax.nn.sigmoid(z + v)
  np.testing.assert_allclose(
    memory, (1 - share) * new + share * carry[0], rtol=1e-4, atol=1e-5
  )


@pytest.mark.slow
def test_cnn_without_convolutions_is_an_mlp():
  obs = jnp.zeros((4, 4, 2))
  cnn = models.cnn_policy(
    obs,
    HEAD,
    channels=(),
    kernel_sizes=(),
    strides=(),
    hidden_sizes=(8, 8),
    activation=jnp.tanh,
  )
  mlp = models.mlp_policy(
    obs, HEAD, policy_hidden_sizes=(8, 8), value_hidden_sizes=(8, 8)
  )
  params = mlp.init(jax.random.key(0))
  inputs = (jnp.ones((T, 4, 4, 2)), (), jnp.zeros(T, bool))
  chex.assert_trees_all_close(
    cnn.apply(params, *inputs), mlp.apply(params, *inputs)
  )


@pytest.mark.slow
def test_convolution_by_hand():
  # One pixel of 2 x 2 windows with stride 2 over a 2 x 2 image: one number,
  # relu(1 a + 2 b + 3 c + 4 d) = 1 * 1 + 2 * 2 + 3 * 3 + 4 * 4 = 30.
  policy = models.cnn_policy(
    jnp.zeros((2, 2, 1)),
    models.categorical(1),
    channels=(1,),
    kernel_sizes=(2,),
    strides=(2,),
    hidden_sizes=(),
  )
  params = policy.init(jax.random.key(0))
  image = jnp.array([[1.0, 2.0], [3.0, 4.0]])[None, :, :, None]
  value = params["value"]
  value["image_0_convolution_0"]["kernel"] = image[0, :, :, :, None]
  value["mlp"]["output"]["kernel"] = jnp.ones((1, 1))
  _, value_t, _ = policy.apply(params, image, (), jnp.zeros(1, bool))
  np.testing.assert_allclose(value_t, [30.0])


def test_constructors_say_what_they_expected():
  with pytest.raises(ValueError, match=r"\['camera', 'joints'\].*\"policy\""):
    models.mlp_policy({"camera": IMAGE, "joints": jnp.zeros(3)}, HEAD)
  with pytest.raises(ValueError, match=r"expected an image.*mlp_policy"):
    models.cnn_policy(jnp.zeros(3), HEAD)
  with pytest.raises(ValueError, match="Divide by 255"):
    models.cnn_policy(jnp.zeros((8, 8, 3), jnp.uint8), HEAD, **SMALL_CNN)
  with pytest.raises(ValueError, match="1 channels, 3 kernel_sizes"):
    models.cnn_policy(IMAGE, HEAD, channels=(4,))


def test_observations_of_another_shape_are_refused():
  policy, params = make("mlp")
  with pytest.raises(AssertionError, match="shape"):
    policy.apply(params, jnp.zeros((T, 4)), (), jnp.zeros(T, bool))

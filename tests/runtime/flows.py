"""A macro flow of five stages with a loop, for tests of the runtime."""

import jax
import jax.numpy as jnp
import numpy as np

from rlinf_jax import flow
from scheduler.devices import Devices
from scheduler.plans import Lanes, Run, Spatial, Temporal
from scheduler.profiles import Entry, Profile, Sample, Table

TURNS, ITEMS, SIZE, QUANTUM = 3, 16, 3, 2


@flow.stage(items={1: 0, 2: 0}, quantum=QUANTUM)
def act(w, x_b, key_b):
  noise_b = jax.vmap(lambda key: jax.random.normal(key, (SIZE,)))(key_b)
  return jnp.tanh(x_b @ w) + 0.1 * noise_b


@flow.stage(items={0: 0, 1: 0}, quantum=QUANTUM)
def simulate(x_b, a_b):
  return jnp.sin(x_b + a_b), jnp.sum(a_b * a_b, axis=1)


@flow.stage(items={0: 1}, quantum=QUANTUM)
def score(reward_tb):
  mean_b = jnp.mean(reward_tb, axis=0, keepdims=True)
  return jnp.swapaxes(reward_tb - 0.5 * mean_b, 0, 1)


@flow.stage(items={1: 0, 2: 0}, reduces="sum", quantum=QUANTUM)
def grad(w, x_b, score_bt):
  def total(w):
    return jnp.sum(jnp.tanh(x_b @ w) * jnp.sum(score_bt, axis=1)[:, None])

  return jax.grad(total)(w), jnp.asarray(x_b.shape[0], jnp.float32)


@flow.stage
def apply_update(w, grad_sum, weight):
  return w - 0.05 * grad_sum / weight


def iteration(state, key):
  w, x_b = state
  acting_w = flow.sync(w)
  key_tb = jax.random.split(key, (TURNS, ITEMS))

  def body(x_b, key_b):
    return simulate(x_b, act(acting_w, x_b, key_b))

  x_b, reward_tb = flow.loop(body, x_b, key_tb)
  w = apply_update(w, *grad(w, x_b, score(reward_tb)))
  return (w, x_b), jnp.max(reward_tb)


def first_state():
  w = jax.random.normal(jax.random.key(0), (SIZE, SIZE), jnp.float32)
  return w, jax.random.normal(jax.random.key(1), (ITEMS, SIZE), jnp.float32)


def keys(count):
  return [jax.random.key(i) for i in range(count)]


def eager(count, staleness=0):
  """Returns the state after `count` eager iterations.

  With a staleness s iteration i acts by the weights of iteration i - s.
  """
  state, weights = first_state(), []
  for i, key in enumerate(keys(count)):
    weights.append(state[0])
    old = weights[max(i - staleness, 0)]
    state, _ = _with_weights(state, key, old)
  return jax.tree.map(np.asarray, state)


def _with_weights(state, key, acting_w):
  w, x_b = state
  key_tb = jax.random.split(key, (TURNS, ITEMS))
  x_b, reward_tb = flow.loop(
    lambda x_b, key_b: simulate(x_b, act(acting_w, x_b, key_b)), x_b, key_tb
  )
  w = apply_update(w, *grad(w, x_b, score(reward_tb)))
  return (w, x_b), jnp.max(reward_tb)


def profile(device_class, *, seconds=1e-3):
  """Returns a profile in which n devices take 1/n of the time of one."""
  samples = tuple(
    Sample(granule=granule, devices=n, seconds=seconds * granule / n)
    for granule in (1, ITEMS)
    for n in (1, 8)
  )
  single = tuple(s for s in samples if s.granule == 1)
  return Profile(
    entries=tuple(
      Entry(
        stage=name,
        device_class=device_class,
        law=Table(samples=single if name == "apply_update" else samples),
      )
      for name in ("act", "simulate", "score", "grad", "apply_update")
    )
  )


def run(stage, devices, granule=ITEMS, **kwargs):
  return Run(
    stage=stage, devices=Devices.parse(devices), granule=granule, **kwargs
  )


def lanes(act_on, simulate_on, sizes=(ITEMS,), **kwargs):
  join = Temporal if act_on == simulate_on else Spatial
  body = join(
    children=(
      run("act", act_on, **kwargs),
      run("simulate", simulate_on, **kwargs),
    )
  )
  return Lanes(loop="act+simulate", body=body, lanes=sizes)

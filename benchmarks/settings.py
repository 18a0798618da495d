"""The hyper-parameters that all legs of a comparison share."""

from __future__ import annotations

import dataclasses
import math

# From `envs.tasks.cheetah_run`, which costs an import of JAX to ask; the tests
# hold them together.
OBS_SIZE = 17
ACTION_SIZE = 6
EPISODE_LENGTH = 1000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
  """What PPO does per iteration, in the words of `rlinf_jax`.

  Attributes:
    num_envs: simulated side by side.
    unroll_length: steps of a sequence, over which advantages are estimated.
    num_unrolls: sequences of each environment per iteration. Brax takes them
      as so many sequences, we as one that is so many times as long.
    num_epochs: passes over a batch.
    num_minibatches: updates per pass.
    learning_rate: Adam's, constant.
    max_grad_norm: inf where gradients are not clipped.
    discount: per step.
    gae_lambda: of the advantages.
    clip: of the probability ratio, both ways.
    value_weight: of half the squared error of the critic.
    entropy_weight: of the entropy bonus.
    reward_scale: rewards are multiplied by it.
    policy_sizes: hidden widths.
    value_sizes: hidden widths.
    activation: a key of `experiments.recipes.ACTIVATIONS`.
  """

  num_envs: int
  unroll_length: int
  num_unrolls: int
  num_epochs: int
  num_minibatches: int
  learning_rate: float
  max_grad_norm: float
  discount: float
  gae_lambda: float
  clip: float
  value_weight: float
  entropy_weight: float
  reward_scale: float
  policy_sizes: tuple[int, ...]
  value_sizes: tuple[int, ...]
  activation: str

  @property
  def steps_per_env(self) -> int:
    """Steps of each environment per iteration."""
    return self.unroll_length * self.num_unrolls

  @property
  def steps_per_iteration(self) -> int:
    """Environment steps per iteration."""
    return self.num_envs * self.steps_per_env


LIGHT = Setting(
  num_envs=1024,
  unroll_length=32,
  num_unrolls=1,
  num_epochs=4,
  num_minibatches=8,
  learning_rate=3e-4,
  max_grad_norm=1.0,
  discount=0.99,
  gae_lambda=0.95,
  clip=0.2,
  value_weight=0.5,
  entropy_weight=1e-3,
  reward_scale=0.1,
  policy_sizes=(64, 64),
  value_sizes=(64, 64),
  activation="tanh",
)

# What MuJoCo Playground 0.2.0 tuned Brax's PPO to for CheetahRun,
# `dm_control_suite_params.brax_ppo_config("CheetahRun")`, and for the rest
# (networks, clipping, lambda, value weight) the defaults of Brax 0.14.2. Its
# batch of 1,024 x 32 sequences is 2,048 environments x 16.
BRAX = Setting(
  num_envs=2048,
  unroll_length=30,
  num_unrolls=16,
  num_epochs=16,
  num_minibatches=32,
  learning_rate=1e-3,
  max_grad_norm=math.inf,
  discount=0.995,
  gae_lambda=0.95,
  clip=0.3,
  value_weight=0.5,
  entropy_weight=1e-2,
  reward_scale=10.0,
  policy_sizes=(32,) * 4,
  value_sizes=(256,) * 5,
  activation="swish",
)

SETTINGS = {"light": LIGHT, "brax": BRAX}

# An iteration of the tuned batch, 983,040 steps, takes MJX half an hour on two
# CPU cores. There both sides get a batch of this many sequences; what is done
# with a sample (epochs, minibatches, networks) stays the same.
_CPU_CUT = {"brax": {"num_envs": 1024, "num_unrolls": 1}}


def resolve(
  name: str,
  *,
  is_cpu: bool,
  num_envs: int | None = None,
  unroll_length: int | None = None,
  num_unrolls: int | None = None,
) -> Setting:
  """Returns a setting, cut to what a CPU can do, with the given sizes.

  Args:
    name: a key of `SETTINGS`.
    is_cpu: whether JAX runs on the CPU.
    num_envs: None leaves the setting's; so with the others.
    unroll_length: see `Setting`.
    num_unrolls: see `Setting`.

  Raises:
    ValueError: the minibatches do not divide the environments.
  """
  sizes = {
    "num_envs": num_envs,
    "unroll_length": unroll_length,
    "num_unrolls": num_unrolls,
  }
  given = {k: v for k, v in sizes.items() if v is not None}
  cut = _CPU_CUT.get(name, {}) if is_cpu else {}
  setting = dataclasses.replace(SETTINGS[name], **(cut | given))
  if setting.num_envs % setting.num_minibatches:
    raise ValueError(
      f"--num_envs={setting.num_envs} does not divide into the"
      f" {setting.num_minibatches} minibatches of setting '{name}'; give a"
      " multiple of that"
    )
  return setting

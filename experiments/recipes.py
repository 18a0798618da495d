"""Tested settings per environment, and what they build.

`embodied` trains with them, `evaluate` rebuilds from what a checkpoint says.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import envs
from envs import autoreset, rendering, user_file
from rlinf_jax import models, training
from rlinf_jax.algorithms import ppo
from rlinf_jax.reporting import video


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Network:
  """Which networks act and judge.

  Attributes:
    kind: a key of `NETWORKS`.
    head: a key of `HEADS`; "auto" suits the environment's actions.
    policy_sizes: widths of the policy's hidden layers.
    value_sizes: widths of the critic's.
    activation: a key of `ACTIVATIONS`.
    precision: a key of `PRECISIONS`: of the networks' products; physics is
      always computed in full.
  """

  kind: str = "mlp"
  head: str = "auto"
  policy_sizes: tuple[int, ...] = (64, 64)
  value_sizes: tuple[int, ...] = (64, 64)
  activation: str = "tanh"
  precision: str = "float32"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
  """What a run learns, and how; with the environment it is reproducible."""

  num_steps: int
  ppo: ppo.Config
  network: Network = Network()


HEADS: dict[str, Callable[[Any], models.Head]] = {
  "tanh_gaussian": lambda spec: models.tanh_gaussian(spec.size),
  "clipped_gaussian": lambda spec: models.clipped_gaussian(spec.size),
  "categorical": lambda spec: models.categorical(spec.num),
}
NETWORKS: dict[str, Callable[..., models.Policy]] = {
  "mlp": models.mlp_policy,
  "cnn": models.cnn_policy,
  "gru": models.gru_policy,
}
ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "swish": jax.nn.swish}
# name: (type of the hidden layers, precision of matrix products)
PRECISIONS = {
  "float32": (jnp.float32, "highest"),
  "tf32": (jnp.float32, "tensorfloat32"),
  "bfloat16": (jnp.bfloat16, None),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
  """A run, as its checkpoints remember it."""

  env: str
  recipe: Recipe
  physics: str = "auto"
  randomise: bool = False
  seed: int = 0
  num_seeds: int = 1
  loss: str | None = None  # "path/to/file.py:NAME", (policy, config) -> LossFn

  @property
  def name(self) -> str:
    """The environment's name as a file name."""
    return pathlib.Path(self.env.replace(":", "_")).name


# Small batches and many updates: what every task here likes.
PPO = ppo.Config(
  num_envs=512,
  learning_rate=1e-3,
  learning_rate_end=3e-4,
  entropy_weight=1e-2,
)
ARM_PPO = dataclasses.replace(
  PPO,
  num_envs=1024,
  unroll_length=20,
  num_minibatches=16,
  learning_rate_end=2e-4,
  discount=0.97,
  entropy_weight=1e-3,
)
ARM_NETWORK = Network(
  head="clipped_gaussian",
  policy_sizes=(128, 128),
  value_sizes=(256, 256),
  activation="swish",
)
DEFAULT = Recipe(num_steps=8_011_776, ppo=PPO)

RECIPES: dict[str, Recipe] = {
  "cartpole_swingup": Recipe(
    num_steps=4_014_080,
    ppo=dataclasses.replace(PPO, discount=0.995),
  ),
  "cheetah_run": Recipe(num_steps=8_011_776, ppo=PPO),
  "hopper_hop": Recipe(
    num_steps=6_012_928,
    ppo=dataclasses.replace(
      PPO,
      num_envs=256,
      unroll_length=64,
      learning_rate=3e-4,
      learning_rate_end=1e-4,
      entropy_weight=3e-3,
    ),
  ),
  "arm_reach": Recipe(num_steps=1_024_000, ppo=ARM_PPO, network=ARM_NETWORK),
  "arm_push": Recipe(num_steps=3_072_000, ppo=ARM_PPO, network=ARM_NETWORK),
  "arm_pick": Recipe(num_steps=6_144_000, ppo=ARM_PPO, network=ARM_NETWORK),
}

MAX_FPS = 50


def make_policy(env: envs.Env, network: Network) -> models.Policy:
  """Returns the policy that a network setting describes.

  Raises:
    ValueError: for a name that does not exist, or that does not fit.
  """
  choose("--network", network.kind, NETWORKS)
  choose("--activation", network.activation, ACTIVATIONS)
  choose("--precision", network.precision, PRECISIONS)
  is_discrete = isinstance(env.action, envs.Discrete)
  head = network.head
  if head == "auto":
    head = "categorical" if is_discrete else "tanh_gaussian"
  choose("--head", head, HEADS)
  if is_discrete != (head == "categorical"):
    raise ValueError(
      f"--head={head} does not fit {env.name}, whose action is {env.action};"
      " leave --head at auto"
    )
  obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
  dtype, precision = PRECISIONS[network.precision]
  policy = NETWORKS[network.kind](
    obs,
    HEADS[head](env.action),
    policy_hidden_sizes=network.policy_sizes,
    value_hidden_sizes=network.value_sizes,
    activation=ACTIVATIONS[network.activation],
    compute_dtype=dtype,
  )

  def apply(*args: Any) -> Any:
    with jax.default_matmul_precision(precision):
      return policy.apply(*args)

  return policy._replace(apply=apply)


def build(
  settings: Settings,
  *,
  num_threads: int = 0,
  num_eval_episodes: int = 128,
  simulate_on: str = "mesh",
) -> tuple[envs.Env, training.Evaluation, ppo.Ppo]:
  """Returns the environment, what judges a policy on it, and the algorithm.

  Raises:
    ValueError: for names that do not exist and sizes that do not fit.
    ImportError: for an environment whose package is missing.
  """
  if settings.num_seeds < 1:
    raise ValueError(f"--num_seeds is {settings.num_seeds}; give 1 or more")
  env = envs.make(
    settings.env,
    physics=settings.physics,
    randomise=settings.randomise,
    num_threads=num_threads,
  )
  recipe = settings.recipe
  config = recipe.ppo
  policy = make_policy(env, recipe.network)
  loss_fn = None
  if settings.loss is not None:
    loss_fn = user_file.load(settings.loss)(policy, config)
  steps_per_iteration = config.num_envs * config.unroll_length
  optimizer = ppo.adam(
    config, num_iterations=-(-recipe.num_steps // steps_per_iteration)
  )
  episodes = autoreset.episodes(env, stagger=config.stagger)
  algorithm = ppo.make(
    episodes,
    policy,
    optimizer,
    config,
    loss_fn=loss_fn,
    simulate_on=simulate_on,
  )
  judge = training.make_evaluation(
    algorithm,
    env,
    policy.initial_carry(),
    num_episodes=num_eval_episodes,
    num_seeds=settings.num_seeds,
  )
  return env, judge, algorithm


def write_video(
  env: envs.Env,
  judge: training.Evaluation,
  actor: ppo.Actor,
  path: pathlib.Path,
  *,
  num_seeds: int = 1,
  seed: int = 0,
) -> str:
  """Writes one episode of the (first) policy as MP4; returns what to print."""
  if env.render is None:
    return f"no video: {env.name} cannot be rendered"
  if num_seeds > 1:
    actor = jax.tree.map(lambda x: x[0], actor)
  states_t, length = jax.device_get(judge.record(actor, jax.random.key(seed)))
  stride = max(1, round(1 / (MAX_FPS * env.control_dt_s)))
  states = [
    jax.tree.map(lambda x, t=t: x[t], states_t)
    for t in range(0, int(length), stride)
  ]
  try:
    frames = env.render(states)
    video.write_video(path, frames, fps=1 / (stride * env.control_dt_s))
  except (rendering.RenderingUnavailableError, video.VideoError) as error:
    return f"no video: {error}"
  return f"video: {path}"


def choose(flag: str, name: str, table: Mapping[str, Any]) -> Any:
  """Returns table[name], or raises a ValueError that says what there is."""
  if name not in table:
    raise ValueError(f"{flag}={name} is unknown; choose from {list(table)}")
  return table[name]


def to_json(settings: Settings) -> dict[str, Any]:
  """Returns settings as JSON values."""
  return dataclasses.asdict(settings)


def from_json(record: Mapping[str, Any]) -> Settings:
  """Returns the settings that `to_json` wrote."""
  recipe = record["recipe"]
  network: dict[str, Any] = {
    k: tuple(v) if isinstance(v, list) else v
    for k, v in recipe["network"].items()
  }
  names = [f.name for f in dataclasses.fields(Settings) if f.name != "recipe"]
  return Settings(
    recipe=Recipe(
      num_steps=recipe["num_steps"],
      ppo=ppo.Config(**recipe["ppo"]),
      network=Network(**network),
    ),
    **{name: record[name] for name in names},
  )


def must_match(settings: Settings) -> list[str]:
  """Returns the entries of `to_json` that a resumed run cannot change."""
  record = to_json(settings)
  names = [name for name in record if name != "recipe"]
  for part in ("ppo", "network"):
    names += [f"recipe.{part}.{name}" for name in record["recipe"][part]]
  return names

"""Embodied loops: a simulator and a policy that take turns."""

from __future__ import annotations

from scheduler import clusters, profiles, workflows
from scheduler.workloads import (
  constants,
  hardware,
  laws,
  models,
  problems,
  variations,
)

_GIB = 1 << 30
_NOMINAL = variations.Variation()

# RLinf, unit test of automatic placement: seconds per step by environments.
_MANISKILL_SIMULATOR = ((10, 0.80), (20, 0.80), (30, 0.85), (40, 0.85))
_MANISKILL_POLICY = ((10, 0.40), (20, 0.60), (30, 0.85), (40, 1.15))
# The last row of each is out of line with the others, through contention.
_LIBERO_SIMULATOR = ((4, 0.61), (8, 1.23), (16, 2.46), (32, 4.66), (64, 18.5))
_LIBERO_POLICY = ((4, 0.60), (8, 1.01), (16, 2.12), (32, 3.72), (64, 15.3))
# RLinf blog, BEHAVIOR: 13.2 ms per step of 41.2 ms end to end, six instances
# on three devices and the policy on a fourth; the remainder is counted as the
# policy's. Observations are read, and policies asked, every 32 steps.
_BEHAVIOR_STEPS = 32
_BEHAVIOR_SIMULATOR_S = round(_BEHAVIOR_STEPS * 13.2e-3, 4)
_BEHAVIOR_POLICY_S = round(_BEHAVIOR_STEPS * (41.2e-3 - 13.2e-3), 4)
_BEHAVIOR_INSTANCE_BYTES = round(8.2 * _GIB)

# Assumed: memory of simulations and of the policy's images and activations,
# and the tokens of one decision.
_MANISKILL_BASE_BYTES = 4 * _GIB
_MANISKILL_ENV_BYTES = round(0.3 * _GIB)
_LIBERO_ENV_BYTES = _GIB
_POLICY_ENV_BYTES = round(0.2 * _GIB)
_DECISION_TOKENS = 300
_BEHAVIOR_DECISION_TOKENS = 1000
_OBSERVATION_BYTES = 3 * 224 * 224
_ACTION_BYTES = 256
_MICRO_BATCH_TOKENS = 8192


def maniskill(
  cluster: clusters.Cluster, *, variation: variations.Variation = _NOMINAL
) -> problems.Problem:
  """Returns PPO of OpenVLA with a simulator on the same class of device.

  The simulator's time hardly depends on its environments, its memory does, and
  competes with the policy's and the trainer's.
  """
  num_envs = 40 * cluster.num_devices
  return _loop(
    "maniskill",
    cluster,
    variation,
    num_envs=num_envs,
    turns=round(80 * variation.length_scale),
    model=models.OPENVLA,
    decision_tokens=_DECISION_TOKENS,
    simulator_bytes=_MANISKILL_BASE_BYTES,
    simulator_law=_table(_MANISKILL_SIMULATOR, _MANISKILL_ENV_BYTES),
    policy_law=_table(_MANISKILL_POLICY, _POLICY_ENV_BYTES),
  )


def libero(
  cluster: clusters.Cluster, *, variation: variations.Variation = _NOMINAL
) -> problems.Problem:
  """Returns PPO of OpenVLA-OFT with a simulator on host cores.

  Args:
    cluster: with a device of class "cpu" for each GPU.
    variation: turns and updates.
  """
  num_envs = 16 * hardware.num_accelerators(cluster)
  return _loop(
    "libero",
    cluster,
    variation,
    num_envs=num_envs,
    turns=round(64 * variation.length_scale),
    model=models.OPENVLA,
    decision_tokens=_DECISION_TOKENS,
    simulator_class="cpu",
    simulator_law=_table(_LIBERO_SIMULATOR, _LIBERO_ENV_BYTES),
    policy_law=_table(_LIBERO_POLICY, _POLICY_ENV_BYTES),
  )


def behavior(
  cluster: clusters.Cluster, *, variation: variations.Variation = _NOMINAL
) -> problems.Problem:
  """Returns PPO of a 3B policy with a simulator that renders.

  An item is one simulator process with two environments; 8.2 GiB each, so that
  two fit on 24 GiB. A turn is 32 steps. That an environment takes 2.1 cores is
  not modelled: 12 of them fit on a host of 32.

  Args:
    cluster: of devices that can render.
    variation: turns, and updates, of which two at most.
  """
  simulator = tuple(
    profiles.Sample(
      granule=instances,
      devices=1,
      seconds=_BEHAVIOR_SIMULATOR_S,
      num_bytes=instances * _BEHAVIOR_INSTANCE_BYTES,
    )
    for instances in (1, 2)
  )
  return _loop(
    "behavior",
    cluster,
    variation,
    num_envs=6 * max(1, cluster.num_devices // 4),
    turns=round(64 * variation.length_scale),
    model=models.PI_3B,
    decision_tokens=2 * _BEHAVIOR_DECISION_TOKENS,
    simulator_law=profiles.ReplicaTable(samples=simulator, extrapolate=True),
    policy_law=_table(((6, _BEHAVIOR_POLICY_S),), _POLICY_ENV_BYTES),
    max_updates=2,
  )


def _loop(
  name: str,
  cluster: clusters.Cluster,
  variation: variations.Variation,
  *,
  num_envs: int,
  turns: int,
  model: models.Model,
  decision_tokens: int,
  simulator_law: profiles.ReplicaTable,
  policy_law: profiles.ReplicaTable,
  simulator_class: str | None = None,
  simulator_bytes: int = 0,
  max_updates: int = 4,
) -> problems.Problem:
  """Returns a loop of simulator and policy, and training on what it gave.

  Args:
    name: of the workflow.
    cluster: on what.
    variation: updates.
    num_envs: items.
    turns: decisions of one iteration.
    model: the policy.
    decision_tokens: that it reads and writes for one decision of an item.
    simulator_law: time of one turn.
    policy_law: time of one decision.
    simulator_class: on which the simulator runs; None: where the policy does.
    simulator_bytes: of the simulator, besides what each item takes.
    max_updates: of one iteration.
  """
  tokens = turns * decision_tokens
  item_bytes = turns * (_OBSERVATION_BYTES + _ACTION_BYTES)
  simulator = workflows.Stage(
    name="simulator",
    kind="simulate",
    items=num_envs,
    state_bytes=simulator_bytes,
  )
  policy = workflows.Stage(
    name="policy",
    kind="infer",
    items=num_envs,
    state_bytes=model.weight_bytes,
  )
  train = workflows.Stage(
    name="train",
    kind="train",
    items=num_envs,
    updates=min(max_updates, variation.updates),
    needs_all=True,
    state_bytes=model.train_bytes,
    item_bytes=item_bytes,
  )
  workflow = workflows.Workflow(
    name=name,
    stages=(simulator, policy, train),
    edges=(
      workflows.Edge(
        source="simulator", target="policy", item_bytes=_OBSERVATION_BYTES
      ),
      workflows.Edge(
        source="policy", target="simulator", item_bytes=_ACTION_BYTES
      ),
      workflows.Edge(source="policy", target="train", item_bytes=item_bytes),
    ),
    loops=(
      workflows.Loop(
        name="interaction", stages=("simulator", "policy"), turns=turns
      ),
    ),
    syncs=(
      workflows.WeightSync(
        source="train", target="policy", num_bytes=model.weight_bytes
      ),
    ),
  )
  gpus = [device.name for device in cluster.classes if device.flops_per_s]
  entries = [
    profiles.Entry(
      stage="simulator", device_class=class_name, law=simulator_law
    )
    for class_name in ([simulator_class] if simulator_class else gpus)
  ]
  entries += [
    profiles.Entry(stage="policy", device_class=class_name, law=policy_law)
    for class_name in gpus
  ]
  entries += laws.entries(
    train,
    cluster,
    laws.PIPELINED,
    lambda device, config: profiles.ComputeLaw(
      flop_per_item=model.train_flop(tokens)
      + 6 * constants.FITTED.fixed_params * tokens,
      efficiency=constants.FITTED.train_efficiency
      * laws.layout_efficiency(config),
      overhead_s=constants.TRAIN_OVERHEAD_S,
      bytes_per_item=model.train_activation_bytes(_MICRO_BATCH_TOKENS),
      max_active=1,
    ),
  )
  return problems.problem(workflow, entries, cluster)


def _table(
  rows: tuple[tuple[int, float], ...], bytes_per_env: int
) -> profiles.ReplicaTable:
  samples = tuple(
    profiles.Sample(
      granule=num_envs,
      devices=1,
      seconds=seconds,
      num_bytes=num_envs * bytes_per_env,
    )
    for num_envs, seconds in rows
  )
  return profiles.ReplicaTable(samples=samples, extrapolate=True)

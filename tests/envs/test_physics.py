"""The C backend against MuJoCo itself, and the laws of a pure function."""

from __future__ import annotations

import copy
import functools
import threading

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from envs import physics
from envs.physics import fields as fields_lib
from envs.physics import model_values as model_values_lib
from envs.physics import parity

pytestmark = pytest.mark.optimised

NUM_SUBSTEPS = 3
BATCH = 16

# Contacts, limits, friction, a tendon, an actuator with a state and a mocap
# body: all that a row of the integration state can hold.
MODEL = mujoco.MjModel.from_xml_string("""
<mujoco>
  <option timestep="0.004"/>
  <worldbody>
    <geom type="plane" size="5 5 1"/>
    <camera pos="0 -2 1"/>
    <body pos="1 0 0.12">
      <freejoint/>
      <geom size="0.1" mass="1"/>
    </body>
    <body pos="0 0 0.5">
      <joint name="shoulder" axis="0 1 0" damping="0.1" frictionloss="0.05"
        stiffness="2" armature="0.01" range="-1.5 1.5" limited="true"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.04"/>
      <body name="hand" pos="0.3 0 0">
        <joint name="elbow" axis="0 1 0" damping="0.1" range="-0.2 0.2"
          limited="true"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.04"/>
        <site name="tip" pos="0.3 0 0" size="0.05"/>
      </body>
    </body>
    <body mocap="true" pos="0 1 0">
      <geom size="0.05" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <tendon>
    <fixed name="both">
      <joint joint="shoulder" coef="1"/>
      <joint joint="elbow" coef="0.5"/>
    </fixed>
  </tendon>
  <actuator>
    <motor joint="shoulder" gear="5" ctrlrange="-1 1" ctrllimited="true"
      forcerange="-0.8 0.8" forcelimited="true"/>
    <general joint="elbow" dyntype="filter" dynprm="0.05" gainprm="3"
      biastype="affine" biasprm="0 -3 -0.1"/>
  </actuator>
  <sensor>
    <framelinvel objtype="site" objname="tip"/>
    <touch site="tip"/>
    <subtreelinvel body="hand"/>
  </sensor>
</mujoco>
""")


def make(*, fields=("sensordata", "xpos"), num_threads=0):
  return physics.make(
    MODEL,
    backend="mujoco",
    num_substeps=NUM_SUBSTEPS,
    fields=fields,
    num_threads=num_threads,
  )


SIM = make()
FULL = make(fields=fields_lib.ALLOWED)


def draw(seed=0, batch=BATCH, mj_model=MODEL):
  """Returns qpos [B, nq], qvel [B, nv] and ctrl [B, nu], with contacts."""
  rng = np.random.default_rng(seed)
  qpos = np.tile(mj_model.qpos0, (batch, 1))
  qpos[:, 2] = rng.uniform(0.08, 0.13, batch)
  qpos[:, 7] = rng.uniform(-1.6, 1.6, batch)
  qpos[:, 8] = rng.uniform(-0.3, 0.3, batch)
  qvel = 0.5 * rng.normal(size=(batch, mj_model.nv))
  ctrl = rng.uniform(-1.2, 1.2, (batch, mj_model.nu))
  return tuple(jnp.asarray(x, jnp.float32) for x in (qpos, qvel, ctrl))


@functools.cache
def rollout_fn(sim=SIM):
  return jax.jit(functools.partial(rollout, sim))


@functools.cache
def reset_fn(sim=SIM):
  return jax.jit(jax.vmap(lambda q, v: sim.reset(q, qvel=v)))


@functools.cache
def step_fn(sim=SIM):
  return jax.jit(jax.vmap(sim.step))


def rollout(sim, qpos, qvel, ctrl, *, num_steps=5):
  """Returns the last state and qpos [T, B, nq] of a scan."""

  def body(state, _):
    state = jax.vmap(sim.step)(state, ctrl)
    return state, state.data["qpos"]

  state = jax.vmap(lambda q, v: sim.reset(q, qvel=v))(qpos, qvel)
  return jax.lax.scan(body, state, length=num_steps)


def read(mj_data, name):
  return np.asarray(getattr(mj_data, name), np.float32)


def assert_bitwise(tree, other):
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(
      np.asarray(x).view(np.uint32), np.asarray(y).view(np.uint32)
    ),
    tree,
    other,
  )


def simulation(tree, i):
  return jax.tree.map(lambda x: x[i], tree)


def test_reset_is_mj_forward():
  qpos, qvel, _ = draw()
  state = reset_fn(FULL)(qpos, qvel)
  for i in range(BATCH):
    mj_data = mujoco.MjData(MODEL)
    mj_data.qpos[:], mj_data.qvel[:] = qpos[i], qvel[i]
    mujoco.mj_forward(MODEL, mj_data)
    for name in fields_lib.ALLOWED:
      np.testing.assert_array_equal(
        state.data[name][i], read(mj_data, name), err_msg=name
      )


def test_step_is_a_loop_of_mj_step_whose_derived_fields_are_a_substep_old():
  qpos, qvel, ctrl = draw()
  state = reset_fn(FULL)(qpos, qvel)
  for _ in range(2):
    state = step_fn(FULL)(state, ctrl)
  for i in range(BATCH):
    mj_data = mujoco.MjData(MODEL)
    mj_data.qpos[:], mj_data.qvel[:], mj_data.ctrl[:] = (
      qpos[i],
      qvel[i],
      ctrl[i],
    )
    before_last = mujoco.MjData(MODEL)
    for _ in range(2 * NUM_SUBSTEPS):
      before_last.qpos[:], before_last.qvel[:] = mj_data.qpos, mj_data.qvel
      mujoco.mj_step(MODEL, mj_data)
    for name in fields_lib.ALLOWED:
      np.testing.assert_array_equal(
        state.data[name][i], read(mj_data, name), err_msg=name
      )
    # Positions of bodies belong to the state before the last substep.
    mujoco.mj_kinematics(MODEL, before_last)
    np.testing.assert_array_equal(
      state.data["xpos"][i], read(before_last, "xpos")
    )
    assert state.data["time"][i] == np.float32(2 * NUM_SUBSTEPS * 0.004)


def test_mocap_bodies_stand_where_reset_puts_them():
  pos = jnp.array([[0.1, 0.2, 0.3]], jnp.float32)
  quat = jnp.array([[0.0, 1.0, 0.0, 0.0]], jnp.float32)
  qpos = jnp.asarray(MODEL.qpos0, jnp.float32)
  sim = make(fields=("xpos", "xquat"))
  state = sim.reset(qpos, mocap_pos=pos, mocap_quat=quat)
  state = sim.step(state, jnp.zeros(MODEL.nu, jnp.float32))
  np.testing.assert_array_equal(state.data["xpos"][-1], pos[0])
  np.testing.assert_array_equal(state.data["xquat"][-1], quat[0])
  at_rest = sim.reset(qpos).data
  np.testing.assert_array_equal(at_rest["xpos"][-1], [0, 1, 0])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(num_threads):
  other = make(num_threads=num_threads)
  assert_bitwise(rollout_fn(other)(*draw()), rollout_fn()(*draw()))


def test_split_batches_give_the_same_bits():
  whole, _ = rollout_fn()(*draw())
  for part in (slice(0, 3), slice(3, 4), slice(4, BATCH)):
    split, _ = rollout_fn()(*(x[part] for x in draw()))
    assert_bitwise(split, jax.tree.map(lambda x, p=part: x[p], whole))


def test_vmap_over_seeds_gives_the_bits_of_each_seed():
  seeds = [draw(seed) for seed in range(3)]
  stacked = jax.vmap(rollout_fn())(*(jnp.stack(x) for x in zip(*seeds)))
  for i, seed in enumerate(seeds):
    assert_bitwise(simulation(stacked, i), rollout_fn()(*seed))


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_over_8_devices_gives_the_same_bits(check_vma):
  mesh = jax.make_mesh(
    (8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  row, batch = PartitionSpec("data"), PartitionSpec(None, "data")
  sharded = jax.shard_map(
    functools.partial(rollout, SIM),
    mesh=mesh,
    in_specs=(row, row, row),
    out_specs=(row, batch),
    check_vma=check_vma,
  )
  assert_bitwise(jax.jit(sharded)(*draw()), rollout_fn()(*draw()))


def test_the_callback_of_other_platforms_gives_the_same_bits(monkeypatch):
  monkeypatch.setattr(
    jax.lax, "platform_dependent", lambda x, *, cpu, default: default(x)
  )
  run = jax.jit(functools.partial(rollout, make()))
  assert_bitwise(run(*draw()), rollout_fn()(*draw()))


def test_calls_from_several_threads_do_not_meet():
  run = rollout_fn()
  inputs = [draw(seed) for seed in range(6)]
  expected = [run(*x) for x in inputs]
  results = [None] * len(inputs)

  def work(i):
    for _ in range(5):
      results[i] = run(*inputs[i])

  threads = [
    threading.Thread(target=work, args=(i,)) for i in range(len(inputs))
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert_bitwise(results, expected)


def test_rows_reset_by_where_continue_as_if_they_had_begun_so():
  qpos, qvel, ctrl = draw()
  used = step_fn()(reset_fn()(qpos, qvel), ctrl)
  fresh = reset_fn()(*draw(1)[:2])
  is_reset = jnp.arange(BATCH) % 3 == 0

  def choose(x, y):
    return jnp.where(is_reset.reshape((-1,) + (1,) * (x.ndim - 1)), x, y)

  mixed = step_fn()(jax.tree.map(choose, fresh, used), ctrl)
  expected = jax.tree.map(choose, step_fn()(fresh, ctrl), step_fn()(used, ctrl))
  assert_bitwise(mixed, expected)


def test_a_call_leaves_nothing_behind_for_the_next():
  qpos, qvel, ctrl = draw()
  start = reset_fn()(qpos, qvel)
  first = step_fn()(start, ctrl)
  step_fn()(reset_fn()(*draw(1)[:2]), -ctrl)
  assert_bitwise(step_fn()(start, ctrl), first)


def scaled_values(rng, batch=BATCH):
  """Returns every field that may vary, [B, ...], changed by up to a tenth."""
  values = {}
  for name in model_values_lib.ALLOWED:
    value = model_values_lib.template(MODEL, name)
    factor = rng.uniform(0.9, 1.1, (batch, *value.shape))
    values[name] = jnp.asarray(value * factor, jnp.float32)
  return values


def edited(values):
  """Returns a copy of MODEL with the values of one simulation."""
  mj_model = copy.deepcopy(MODEL)
  for name, value in values.items():
    model_values_lib.template(mj_model, name)[...] = value
  mj_model.body_subtreemass[:] = model_values_lib.subtree_mass(
    MODEL, mj_model.body_mass
  )
  mj_model.dof_M0[:] = model_values_lib.simple_inertia(
    MODEL,
    body_mass=mj_model.body_mass,
    body_inertia=mj_model.body_inertia,
    dof_armature=mj_model.dof_armature,
  )
  return mj_model


@pytest.mark.slow
def test_values_per_simulation_equal_an_edited_model_each():
  qpos, qvel, ctrl = draw()
  values = scaled_values(np.random.default_rng(3))
  run = jax.jit(
    jax.vmap(
      lambda q, v, u, x: FULL.step(FULL.reset(q, qvel=v, model_values=x), u)
    )
  )
  state = run(qpos, qvel, ctrl, values)
  at_rest = mujoco.MjData(MODEL)
  for i in range(BATCH):
    mj_model = edited(simulation(values, i))
    mj_data = mujoco.MjData(mj_model)
    mj_data.qpos[:], mj_data.qvel[:] = qpos[i], qvel[i]
    mj_data.ctrl[:] = ctrl[i]
    mj_data.mocap_pos[:] = at_rest.mocap_pos
    mj_data.mocap_quat[:] = at_rest.mocap_quat
    for _ in range(NUM_SUBSTEPS):
      mujoco.mj_step(mj_model, mj_data)
    for name in fields_lib.ALLOWED:
      np.testing.assert_array_equal(
        state.data[name][i], read(mj_data, name), err_msg=name
      )


def test_every_value_that_may_vary_has_an_effect():
  qpos, qvel, ctrl = draw()
  same = {
    name: jnp.asarray(model_values_lib.template(MODEL, name), jnp.float32)
    for name in model_values_lib.ALLOWED
  }
  changed = {name: 0.7 * value for name, value in same.items()}
  changed["qpos_spring"] = same["qpos_spring"] + 0.1
  changed["body_pos"] = same["body_pos"] + 0.01
  changed["body_quat"] = jnp.roll(same["body_quat"], 1, axis=1)

  @jax.jit
  @functools.partial(jax.vmap, in_axes=(0, 0, 0, None))
  def run(q, v, u, values):
    state = SIM.reset(q, qvel=v, model_values=values)
    return SIM.step(state, u).data["qvel"]

  expected = run(qpos, qvel, ctrl, same)
  without_effect = [
    name
    for name in model_values_lib.ALLOWED
    if np.array_equal(
      run(qpos, qvel, ctrl, {**same, name: changed[name]}), expected
    )
  ]
  assert without_effect == []


def test_constants_that_follow_are_those_of_mj_set_const():
  mj_model = mujoco.MjModel.from_xml_string("""
  <mujoco><worldbody>
  <body><freejoint/><geom type="box" size="0.1 0.2 0.3" mass="1"/></body>
  <body><joint type="slide" axis="1 0 0" armature="0.3"/>
    <geom type="box" size="0.1 0.2 0.3" mass="2"/></body>
  <body><joint type="slide" axis="0 0 1"/>
    <joint type="hinge" axis="0 1 0" armature="0.1"/>
    <geom type="box" size="0.1 0.2 0.3" mass="2"/></body>
  <body><joint type="ball"/><geom type="box" size="0.3 0.2 0.1" mass="2"/>
  </body>
  <body><joint type="hinge" axis="0 1 0"/><geom size="0.1" pos="1 0 0"/>
    <body pos="1 0 0"><joint/><geom size="0.1"/></body></body>
  </worldbody></mujoco>
  """)
  rng = np.random.default_rng(0)
  names = ("body_mass", "body_inertia", "dof_armature")
  for name in names:
    value = getattr(mj_model, name)
    value *= rng.uniform(0.9, 1.1, value.shape)
  values = {name: getattr(mj_model, name).copy() for name in names}
  subtree_mass = model_values_lib.subtree_mass(mj_model, values["body_mass"])
  inertia = model_values_lib.simple_inertia(mj_model, **values)
  mujoco.mj_setConst(mj_model, mujoco.MjData(mj_model))
  np.testing.assert_array_equal(subtree_mass, mj_model.body_subtreemass)
  is_simple = mj_model.dof_simplenum > 0
  assert is_simple.sum() == 6 + 1 + 2 + 3
  np.testing.assert_allclose(
    inertia[is_simple], mj_model.dof_M0[is_simple], rtol=1e-12
  )


def test_a_heavier_body_falls_as_fast():
  # Free fall from rest: v = -g t, whatever the mass; t = 3 x 4 ms.
  qpos = jnp.asarray(MODEL.qpos0, jnp.float32).at[2].set(3.0)
  mass = jnp.asarray(MODEL.body_mass, jnp.float32)
  state = SIM.reset(qpos, model_values={"body_mass": 2 * mass})
  state = SIM.step(state, jnp.zeros(MODEL.nu, jnp.float32))
  np.testing.assert_allclose(
    state.data["qvel"][2], -9.81 * NUM_SUBSTEPS * 0.004, rtol=1e-6
  )


@pytest.mark.parametrize("culprit", ["qpos", "qvel", "ctrl"])
def test_a_bad_number_makes_its_simulation_nan_until_it_is_reset(
  culprit, capfd
):
  inputs = dict(zip(("qpos", "qvel", "ctrl"), draw()))
  bad = dict(inputs)
  bad[culprit] = bad[culprit].at[3, 1].set(jnp.nan)
  state = reset_fn()(bad["qpos"], bad["qvel"])
  state = step_fn()(state, bad["ctrl"])
  state = step_fn()(state, inputs["ctrl"])  # no way back by itself
  expected = reset_fn()(inputs["qpos"], inputs["qvel"])
  for _ in range(2):
    expected = step_fn()(expected, inputs["ctrl"])
  for name, value in state.data.items():
    assert np.all(np.isnan(value[3])), name
    others = np.delete(np.arange(BATCH), 3)
    np.testing.assert_array_equal(value[others], expected.data[name][others])
  assert capfd.readouterr().err == ""


def test_a_simulation_that_explodes_is_nan_and_not_silently_reset():
  qpos, qvel, ctrl = draw()
  state = reset_fn()(qpos, qvel.at[0, 7].set(1e9))
  state = step_fn()(state, ctrl)
  assert np.all(np.isnan(state.data["qpos"][0]))
  assert np.all(np.isfinite(state.data["qpos"][1:]))


def test_a_simulation_in_which_the_engine_raises_is_nan():
  # No mass: the inertia matrix has no factor, and MuJoCo raises an error.
  qpos, qvel, ctrl = draw()
  mass = jnp.asarray(MODEL.body_mass, jnp.float32)
  mass = jnp.broadcast_to(mass, (BATCH, MODEL.nbody)).at[2].set(0.0)
  inertia = jnp.asarray(MODEL.body_inertia, jnp.float32)
  inertia = jnp.broadcast_to(inertia, (BATCH, MODEL.nbody, 3)).at[2].set(0.0)
  values = {"body_mass": mass, "body_inertia": inertia}
  reset = jax.jit(
    jax.vmap(lambda q, v, x: SIM.reset(q, qvel=v, model_values=x))
  )
  state = step_fn()(reset(qpos, qvel, values), ctrl)
  is_nan = np.isnan(np.asarray(state.data["qpos"])).all(axis=1)
  np.testing.assert_array_equal(is_nan, np.arange(BATCH) == 2)


@pytest.mark.parametrize(("memory", "expected"), [("30K", 2), ("300K", 0)])
def test_constraints_that_do_not_fit_are_counted_per_substep(memory, expected):
  # 10 boxes on the floor make 40 contacts and 160 rows, too many for 30 kB.
  boxes = "".join(
    f'''<body pos="{i} 0 0.09"><joint type="slide" axis="0 0 1"/>
    <geom type="box" size="0.1 0.1 0.1"/></body>'''
    for i in range(10)
  )
  mj_model = mujoco.MjModel.from_xml_string(
    f"""<mujoco><size memory="{memory}"/><worldbody>
    <geom type="plane" size="99 99 1"/>{boxes}</worldbody></mujoco>"""
  )
  sim = physics.make(mj_model, backend="mujoco", num_substeps=2)
  state = sim.reset(jnp.asarray(mj_model.qpos0, jnp.float32))
  assert sim.step(state, jnp.zeros(0, jnp.float32)).overflow == expected


def test_a_rollout_is_traced_once():
  count = []

  @jax.jit
  def run(qpos, qvel, ctrl):
    count.append(None)
    return rollout(SIM, qpos, qvel, ctrl)

  state, _ = run(*draw())
  run(state.data["qpos"], state.data["qvel"], draw()[2])
  assert len(count) == 1


def test_differentiation_is_refused_with_what_to_do():
  qpos, qvel, ctrl = simulation(draw(), 0)

  def loss(u):
    return SIM.step(SIM.reset(qpos, qvel=qvel), u).data["qvel"].sum()

  with pytest.raises(NotImplementedError, match="stop_gradient.*mjx"):
    jax.grad(loss)(ctrl)


def test_parity_errors_are_relative_per_simulation():
  # Differences 1e-3 and 0 over the largest value, 2.
  reference = {"x": np.array([[1.0, 2.0], [0.5, np.nan]])}
  other = {"x": np.array([[1.001, 2.0], [0.5, np.nan]])}
  errors = parity.errors(reference, other)["['x']"]
  np.testing.assert_allclose(errors, [0.0005, 0.0], atol=1e-9)
  assert parity.disagreements(reference, other) == {}
  other["x"][1, 0] = np.nan
  np.testing.assert_array_equal(
    parity.errors(reference, other)["['x']"][1], np.inf
  )
  assert list(parity.disagreements(reference, other)) == ["['x']"]
  with pytest.raises(ValueError, match=r"differ in .*\['y'\]"):
    parity.errors(reference, {**other, "y": np.zeros(2)})


def test_unknown_backends_name_the_known():
  with pytest.raises(ValueError, match="'cuda'.*auto, mujoco, mjx, warp"):
    physics.make(MODEL, backend="cuda", num_substeps=1)


def test_auto_is_mujoco_on_a_cpu():
  assert physics.choose("auto") == "mujoco"
  assert physics.make(MODEL, backend="auto", num_substeps=1).backend == "mujoco"


def test_no_substeps_are_refused():
  with pytest.raises(ValueError, match="num_substeps is 0"):
    physics.make(MODEL, backend="mujoco", num_substeps=0)


def test_fields_that_a_step_may_not_compute_are_refused():
  with pytest.raises(ValueError, match="subtree_linvel.*add a sensor"):
    physics.make(
      MODEL, backend="mujoco", num_substeps=1, fields=("subtree_linvel",)
    )


def test_values_that_cannot_vary_are_refused_with_those_that_can():
  with pytest.raises(ValueError, match="geom_size.*geom_friction"):
    SIM.reset(
      draw()[0][0],
      model_values={"geom_size": jnp.asarray(MODEL.geom_size, jnp.float32)},
    )


def test_models_that_sleep_are_refused():
  mj_model = mujoco.MjModel.from_xml_string(
    '<mujoco><option><flag sleep="enable"/></option></mujoco>'
  )
  with pytest.raises(ValueError, match="sleep"):
    physics.make(mj_model, backend="mujoco", num_substeps=1)

"""MJX's two implementations against the C engine. Warp runs on the CPU here."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from envs import physics
from envs.physics import fields as fields_lib
from envs.physics import model_values as model_values_lib
from envs.physics import parity

# Compiling MJX for a CPU that is busy takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BACKENDS = ("mjx", "warp")
BATCH = 8

# Only the floor collides: each kind of pair costs MJX seconds to compile.
MODEL = """
<mujoco>
  <option timestep="0.004" iterations="{iterations}"/>
  <default>
    <geom contype="0" conaffinity="1"/>
  </default>
  <worldbody>
    <geom type="plane" size="5 5 1" contype="1" conaffinity="0"/>
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
      <geom size="0.05" conaffinity="0"/>
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
"""


@functools.cache
def load(iterations=100):
  return mujoco.MjModel.from_xml_string(MODEL.format(iterations=iterations))


def make(backend, *, iterations=100):
  if backend == "warp":
    pytest.importorskip("warp")
  return physics.make(
    load(iterations),
    backend=backend,
    num_substeps=2,
    fields=fields_lib.ALLOWED,
  )


@functools.cache
def run_fn(backend):
  """Returns (qpos, qvel, ctrl, values) -> (data of reset, state of step)."""
  sim = make(backend)

  def run(qpos, qvel, ctrl, values):
    state = sim.reset(qpos, qvel=qvel, model_values=values)
    return state.data, sim.step(state, ctrl)

  return jax.jit(jax.vmap(run))


def draw():
  """Returns qpos [B, nq], qvel [B, nv], ctrl [B, nu] and model values."""
  mj_model, rng = load(), np.random.default_rng(0)
  qpos = np.tile(mj_model.qpos0, (BATCH, 1))
  qpos[:, 2] = rng.uniform(0.08, 0.13, BATCH)
  qpos[:, 7] = rng.uniform(-1.6, 1.6, BATCH)
  qpos[:, 8] = rng.uniform(-0.3, 0.3, BATCH)
  qvel = 0.5 * rng.normal(size=(BATCH, mj_model.nv))
  ctrl = rng.uniform(-1.2, 1.2, (BATCH, mj_model.nu))
  values = {
    name: np.broadcast_to(value, (BATCH, *value.shape))
    for name in model_values_lib.ALLOWED
    for value in [model_values_lib.template(mj_model, name)]
  }
  return jax.tree.map(
    lambda x: jnp.asarray(x, jnp.float32), (qpos, qvel, ctrl, values)
  )


@pytest.mark.parametrize("backend", BACKENDS)
def test_reset_and_step_agree_with_the_c_engine(backend):
  reset_data, state = run_fn("mujoco")(*draw())
  other_reset_data, other = run_fn(backend)(*draw())
  assert parity.disagreements(reset_data, other_reset_data) == {}
  assert parity.disagreements(state.data, other.data) == {}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", model_values_lib.ALLOWED)
def test_values_of_a_simulation_act_as_in_the_c_engine(backend, name):
  qpos, qvel, ctrl, values = draw()
  changed = {
    "body_pos": values["body_pos"] + 0.01,
    "body_quat": jnp.roll(values["body_quat"], 1, axis=2),
    "qpos_spring": values["qpos_spring"] + 0.1,
  }.get(name, 0.7 * values[name])
  other_values = {**values, name: changed}
  _, before = run_fn(backend)(qpos, qvel, ctrl, values)
  _, state = run_fn("mujoco")(qpos, qvel, ctrl, other_values)
  _, other = run_fn(backend)(qpos, qvel, ctrl, other_values)
  assert not np.array_equal(before.data["qvel"], other.data["qvel"])
  assert parity.disagreements(state.data, other.data) == {}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_bad_number_makes_its_simulation_nan(backend, culprit):
  inputs = list(draw())
  _, expected = run_fn(backend)(*inputs)
  inputs[culprit] = inputs[culprit].at[3, 1].set(jnp.nan)
  _, state = run_fn(backend)(*inputs)
  others = np.delete(np.arange(BATCH), 3)
  for name, value in state.data.items():
    assert np.all(np.isnan(value[3])), name
    np.testing.assert_array_equal(value[others], expected.data[name][others])


def test_nested_vmap_is_one_vmap_over_all_of_warps_simulations():
  sim = make("warp")
  qpos, qvel, ctrl, _ = draw()

  def run(q, v, u):
    return sim.step(sim.reset(q, qvel=v), u).data["qvel"]

  flat = jax.jit(jax.vmap(run))(qpos, qvel, ctrl)
  pairs = (x.reshape(2, BATCH // 2, -1) for x in (qpos, qvel, ctrl))
  nested = jax.jit(jax.vmap(jax.vmap(run)))(*pairs)
  np.testing.assert_allclose(nested.reshape(BATCH, -1), flat, atol=1e-5)


def test_mjx_counts_substeps_in_which_limited_contacts_are_all_taken():
  # One ball in the floor, one above it; room for a single contact.
  mj_model = mujoco.MjModel.from_xml_string("""
  <mujoco><custom><numeric name="max_contact_points" data="1"/></custom>
  <worldbody><geom type="plane" size="9 9 1"/>
  <body pos="0 0 0.09"><joint type="slide" axis="0 0 1"/><geom size="0.1"/>
  </body><body pos="1 0 1"><joint type="slide" axis="0 0 1"/>
  <geom size="0.1"/></body></worldbody></mujoco>
  """)
  sim = physics.make(mj_model, backend="mjx", num_substeps=2)
  step = jax.jit(lambda q: sim.step(sim.reset(q), jnp.zeros(0, jnp.float32)))
  assert step(jnp.array([0.0, 0.0])).overflow == 2
  assert step(jnp.array([1.0, 0.0])).overflow == 0


def test_warp_is_quiet_about_solver_limits_and_does_not_count_them(capfd):
  sim = make("warp", iterations=1)
  qpos, qvel, ctrl, _ = draw()
  run = jax.jit(jax.vmap(lambda q, v, u: sim.step(sim.reset(q, qvel=v), u)))
  assert np.all(run(qpos, qvel, ctrl).overflow == 0)
  assert "limit reached" not in capfd.readouterr().out


def test_warp_counts_contacts_that_do_not_fit():
  # 60 balls rest on the floor; there is room for 48 contacts.
  pytest.importorskip("warp")
  balls = "".join(
    f"""<body pos="{i} 0 0.09"><joint type="slide" axis="0 0 1"/>
    <geom size="0.1"/></body>"""
    for i in range(60)
  )
  mj_model = mujoco.MjModel.from_xml_string(
    f'<mujoco><worldbody><geom type="plane" size="99 99 1"/>{balls}'
    "</worldbody></mujoco>"
  )
  sim = physics.make(mj_model, backend="warp", num_substeps=2)
  step = jax.jit(lambda q: sim.step(sim.reset(q), jnp.zeros(0, jnp.float32)))
  assert step(jnp.zeros(60)).overflow == 2
  assert step(jnp.ones(60)).overflow == 0


def test_without_warp_lang_the_error_names_the_extra(monkeypatch):
  from mujoco.mjx import warp as mjx_warp

  monkeypatch.setattr(mjx_warp, "WARP_INSTALLED", False)
  with pytest.raises(ImportError, match=r"rlinf_jax\[warp\]"):
    physics.make(load(), backend="warp", num_substeps=1)

"""What `m2flow` promises beside the numbers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlinf_jax import flow, runtime
from rlinf_jax.runtime import accounts, machines
from scheduler import documents, plans
from scheduler.plans import Spatial, Temporal, TreePlan
from tests.runtime import flows

pytestmark = pytest.mark.bits
NAMES = ("score", "grad", "apply_update")


def split_tree(first="0", second="1", rest="2-3"):
  return TreePlan(
    root=Spatial(
      children=(
        flows.lanes(first, second, (8, 8)),
        Temporal(
          children=tuple(
            flows.run(name, rest, 1 if name == "apply_update" else 4)
            for name in NAMES
          )
        ),
      )
    ),
    label="split",
  )


def planned(plan, fn=flows.iteration, **options):
  machine = machines.of_process(4)
  return runtime.m2flow(
    fn,
    plan=plan,
    machine=machine,
    profile=flows.profile(machine.mesh_class),
    **options,
  )


@pytest.mark.slow
def test_a_plan_can_be_saved_edited_and_rerun(tmp_path):
  path = tmp_path / "plan.json"
  documents.write(split_tree(), path)
  by_hand = planned(split_tree())(flows.first_state(), jax.random.key(0))
  from_file = planned(str(path))(flows.first_state(), jax.random.key(0))
  jax.tree.map(np.testing.assert_array_equal, by_hand, from_file)


@pytest.mark.slow
def test_a_flat_plan_runs_as_the_tree_it_came_from():
  run = planned(split_tree())
  expected = run(flows.first_state(), jax.random.key(0))
  flat = run.evaluation.flat
  assert isinstance(flat, plans.FlatPlan)
  again = planned(flat)(flows.first_state(), jax.random.key(0))
  jax.tree.map(np.testing.assert_array_equal, again, expected)


@pytest.mark.slow
def test_replanning_between_iterations_keeps_the_numbers():
  run, state = planned(split_tree()), flows.first_state()
  trees = [split_tree(), split_tree("2", "3", "0"), split_tree("3", "0", "1")]
  for i, key in enumerate(flows.keys(5)):
    if i:
      run.replan(trees[i % 3])
    state, _ = run(state, key)
  jax.tree.map(np.testing.assert_array_equal, state, flows.eager(5))


@pytest.mark.slow
def test_a_plan_that_cannot_run_leaves_the_old_one():
  run = planned(split_tree())
  state, _ = run(flows.first_state(), jax.random.key(0))
  with pytest.raises(ValueError, match="device"):
    run.replan(split_tree("0", "0", "0"))
  state, _ = run(state, jax.random.key(1))
  jax.tree.map(np.testing.assert_array_equal, state, flows.eager(2))


def test_it_explains_itself_and_reports_what_it_took(tmp_path, monkeypatch):
  monkeypatch.setattr(accounts, "MOST_DIFFERENT", 1000)  # whatever they took
  run = planned(split_tree())
  for _ in run.iterate(flows.first_state(), [(k,) for k in flows.keys(3)]):
    pass
  assert "Results are bitwise." in run.explain()
  compared = run.compare()
  assert "were predicted" in compared
  # What a task is called is the same in both timelines.
  assert "act [0, 8) (2) on 0: " in compared
  assert "only predicted" not in compared and "only measured" not in compared
  assert "apply_update => act: state.0, 36 bytes" in run.explain()
  page, trace, plan, picture = run.write_report(tmp_path)
  assert "<svg" in page.read_text()
  assert "What to try next" in page.read_text()
  assert "mesh, 16 items" in picture.read_text()
  names = {e["name"] for e in json.loads(trace.read_text())["traceEvents"]}
  assert any("grad" in name for name in names)
  assert plans.read(plan) == run.plan


@pytest.mark.slow
def test_auto_says_what_else_it_considered():
  run = planned("auto")
  run.prepare(flows.first_state(), jax.random.key(0))
  told = run.explain()
  others = ("collocated", "collocated on one device", "disaggregated")
  chosen = run.prediction.seconds
  for name in others:
    (line,) = [x for x in told.splitlines() if f"  {name} instead: " in x]
    assert float(line.split(": ")[1].split()[0]) >= 0.999 * chosen
  # One device takes 129 ms (3 turns of 2 x 16 ms, 32 ms and 1 ms), four 32.25.
  assert "collocated on one device: 129 ms, 4.00 times as long" in told
  assert "No plan takes less than" in told


def test_before_the_first_call_there_is_no_plan_to_ask_for():
  with pytest.raises(ValueError, match="has not been planned yet; call it"):
    _ = planned(split_tree()).plan


@pytest.mark.slow
def test_seeds_trained_at_once_run_under_a_plan():
  seeds = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), flows.first_state())
  key_s = jnp.stack([jax.random.key(0), jax.random.key(0)])
  both, _ = planned(split_tree(), jax.vmap(flows.iteration))(seeds, key_s)
  alone, _ = flow.fuse(flows.iteration)(flows.first_state(), jax.random.key(0))
  for x, y in zip(both, alone):
    np.testing.assert_allclose(x[0], y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ("place", "num_loops"), [("host", 0), ("host", 1), ("process", 0)]
)
def test_seeds_of_a_host_stage_run_one_after_another(place, num_loops):
  def shapes(x_b, w):
    assert x_b.shape[1:] == () and w.shape == ()  # no seeds
    return x_b, jax.ShapeDtypeStruct((len(x_b), 2), x_b.dtype)

  def scaled(x_b, w):
    return x_b * w, np.stack([x_b, x_b + w], axis=1)

  stage = flow.stage(scaled, items={0: 0}, place=place, out_fn=shapes)

  def fn(state):
    w, x_b = state
    if num_loops:
      x_b, _ = flow.loop(lambda x_b, _: (stage(x_b, w)[0], 0), x_b, length=3)
    x_b, pair_b = stage(x_b, w)
    return (w, x_b + pair_b[:, 1]), pair_b

  # Two seeds and three tasks, the weights the same for all tasks.
  over_both = jax.vmap(jax.vmap(fn, in_axes=((None, 0),)))
  w_s = jnp.array([1.0, 2.0], jnp.float32)
  x_stb = jnp.arange(24, dtype=jnp.float32).reshape(2, 3, 4)
  run = runtime.m2flow(
    lambda state: (state, over_both(state)[1]),
    plan="collocated",
    machine=machines.of_process(1, num_host_slots=2),
    measure_s=0.0,
  )
  _, planned = run((w_s, x_stb))
  for s in range(2):
    for t in range(3):
      _, alone = fn((w_s[s], x_stb[s, t]))
      np.testing.assert_array_equal(planned[s, t], alone)


@pytest.mark.slow
def test_a_measured_profile_is_kept_and_used_again(tmp_path):
  path = tmp_path / "profile.json"
  measured = []

  def prepare():
    run = runtime.m2flow(
      flows.iteration,
      plan="collocated",
      machine=machines.of_process(2),
      profile_path=path,
      notify=lambda stage, i, n: measured.append(stage),
    )
    run.prepare(flows.first_state(), jax.random.key(0))
    return run.profile

  profile = prepare()
  assert set(measured) == {"act", "simulate", *NAMES}
  measured.clear()
  assert prepare() == profile
  assert not measured

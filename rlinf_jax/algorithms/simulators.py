"""The stage that steps environments: on the mesh, or on the host beside it.

C physics runs on the host's cores wherever its arrays lie. On the mesh it is a
callback of a program, which is fused with the policy's. As a stage of its own,
on the host, a plan can run it while the mesh acts on another lane, or learns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from rlinf_jax import flow

# (sims, actions, pool, keys), each of B environments but the pool, ->
# (sims, outcomes).
StepFn = Callable[[Any, Any, Any, Any], Any]
PLACES = ("mesh", "host")


def make(step_fn: StepFn, *, place: str) -> Callable[..., Any]:
  """Returns the stage (sim_b, action_b, pool, key_b) -> (sim_b, outcome_b).

  Args:
    step_fn: steps B environments.
    place: "mesh"; or "host", where keys are given as their data (`keys`), as
      NumPy has none, and `step_fn` is compiled for the last CPU device: best
      one that no mesh has.

  Raises:
    ValueError: there is no such place.
  """
  if place not in PLACES:
    raise ValueError(f"a simulator's place is {place!r}; choose from {PLACES}")
  items = {0: 0, 1: 0, 3: 0}
  if place == "mesh":
    return flow.stage(step_fn, items=items, name="simulate")

  def with_data(sim_b: Any, action_b: Any, pool: Any, data_b: Any) -> Any:
    key_b = jax.random.wrap_key_data(data_b)
    return step_fn(sim_b, action_b, pool, key_b)

  jitted = jax.jit(with_data)

  def on_host(*args: Any) -> Any:
    with jax.default_device(jax.local_devices(backend="cpu")[-1]):
      return jax.device_get(jitted(*args))

  return flow.stage(
    on_host,
    items=items,
    place="host",
    out_fn=lambda *args: jax.eval_shape(with_data, *args),
    name="simulate",
  )


def keys(key_tb: jax.Array, *, place: str) -> jax.Array:
  """Returns keys as the stage is given them there."""
  return key_tb if place == "mesh" else jax.random.key_data(key_tb)

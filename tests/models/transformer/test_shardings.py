"""Layouts on 8 devices: the parts they are in, and DESIGN.md's law.

Close, section 5.1: after one step, max|difference| / max|reference| of each
leaf is at most 1e-5.
"""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlinf_jax.models import transformer
from rlinf_jax.models.huggingface import settings
from rlinf_jax.models.transformer import shardings
from rlinf_jax.runtime import meshes
from tests.models.transformer import variants

P = jax.sharding.PartitionSpec
FOUND = variants.VARIANTS["qwen2"]
CONFIG = settings.to_config(FOUND)
NUM_ROWS, SIZE = 8, 12


def batch():
  noise = np.random.default_rng(0)
  token = noise.integers(0, CONFIG.vocabulary_size, (NUM_ROWS, SIZE), np.int32)
  position = np.tile(np.arange(SIZE, dtype=np.int32) % 6, (NUM_ROWS, 1))
  segment = np.tile(np.arange(SIZE, dtype=np.int32) // 6 + 1, (NUM_ROWS, 1))
  return token, position, segment


def step_fn(model, by_row=lambda fn: fn):
  """Returns (params, batch) -> (loss, gradients) of next-token prediction."""
  statistics_fn = by_row(
    functools.partial(transformer.token_statistics, chunk_size=4)
  )

  def loss(params, token, position, segment):
    hidden = model.encode(params, token, position, segment)
    statistics = statistics_fn(model.head(params), hidden[:, :-1], token[:, 1:])
    return -jnp.mean(statistics.log_prob)

  return lambda params, batch: jax.value_and_grad(loss)(params, *batch)


def laid_out(kind, mesh):
  """Returns the layout and the model that goes with it."""
  like = jax.eval_shape(
    transformer.language_model(CONFIG).init, jax.random.key(0)
  )
  if kind == "replicate":
    return shardings.replicate(like), transformer.language_model(CONFIG)
  gather_fn = shardings.gather_fn(mesh, axis=meshes.ITEMS)
  model = transformer.language_model(
    CONFIG,
    gather_fn=gather_fn,
    remat_policy=jax.checkpoint_policies.nothing_saveable,
  )
  return shardings.fsdp(like, mesh, axis=meshes.ITEMS), model


def compiled(kind, mesh):
  layout, model = laid_out(kind, mesh)
  params_shardings = shardings.on_mesh(layout, mesh)
  return params_shardings, jax.jit(
    step_fn(
      model,
      functools.partial(shardings.by_row, mesh=mesh, axis=meshes.ITEMS),
    ),
    in_shardings=(params_shardings, meshes.split(batch(), mesh)),
    out_shardings=(jax.NamedSharding(mesh, P()), params_shardings),
  )


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("kind", ["replicate", "fsdp"])
def test_eight_devices_compute_what_one_computes(kind):
  params = variants.params(FOUND)
  expected = jax.jit(step_fn(transformer.language_model(CONFIG)))(
    params, batch()
  )
  params_shardings, step = compiled(kind, meshes.items_mesh(8))
  found = step(jax.device_put(params, params_shardings), batch())
  for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
    assert np.abs(x - y).max() <= 1e-5 * np.abs(y).max()


def test_fsdp_divides_every_matrix_and_no_vector():
  mesh = meshes.items_mesh(8)
  layout, _ = laid_out("fsdp", mesh)
  assert layout["embedding"] == P("items", None)  # [40, 32]
  assert layout["norm"]["scale"] == P()
  blocks = layout["blocks"]  # of these, the layers' axis is never divided
  assert blocks["down"]["kernel"] == P(None, None, "items")  # [2, 32, 48]
  assert blocks["gate"]["kernel"] == P(None, "items", None)  # [2, 48, 32]
  assert blocks["key"]["bias"] == P()


def test_moments_of_an_optimizer_are_laid_out_as_their_parameters():
  mesh = meshes.items_mesh(8)
  layout, _ = laid_out("fsdp", mesh)
  state = jax.eval_shape(optax.adam(1e-3).init, variants.params(FOUND))
  of_state = shardings.fsdp(state, mesh, axis="items")
  assert of_state[0].mu == of_state[0].nu == layout
  assert of_state[0].count == P()


def test_a_matrix_that_cannot_be_divided_stays_whole():
  mesh = meshes.items_mesh(8)
  layout = shardings.fsdp({"head": jnp.zeros((39, 31))}, mesh, axis="items")
  assert layout == {"head": P()}


def test_a_device_holds_an_eighth_of_the_matrices():
  mesh = meshes.items_mesh(8)
  params = variants.params(FOUND)
  layout, _ = laid_out("fsdp", mesh)
  placed = jax.device_put(params, shardings.on_mesh(layout, mesh))
  matrices = lambda tree: [
    x for x in jax.tree.leaves(tree) if x.ndim - (x.shape[0] == 2) == 2
  ]
  held = sum(x.addressable_shards[0].data.nbytes for x in matrices(placed))
  assert held * 8 == sum(x.nbytes for x in matrices(params))


@pytest.fixture(scope="module")
def fsdp_program():
  """Returns the text of the compiled step."""
  _, step = compiled("fsdp", meshes.items_mesh(8))
  return step.lower(variants.params(FOUND), batch()).compile().as_text()


@pytest.mark.slow
@pytest.mark.optimised
def test_fsdp_gathers_parameters_and_never_activations(fsdp_program):
  shapes = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather\(", fsdp_program)
  # A block's kernels, each the slice of a stack; the embedding and the head.
  kernels = {"1,16,32", "1,32,32", "1,48,32", "1,32,48", "40,32"}
  assert set(shapes) == kernels


@pytest.mark.slow
@pytest.mark.optimised
def test_the_head_gradient_is_summed_over_devices_outside_loops(fsdp_program):
  bodies = set(re.findall(r"body=%([\w.\-]+)", fsdp_program))
  sums = {}
  for computation in fsdp_program.split("\n\n"):
    name = re.match(r"\s*(?:ENTRY )?%([\w.\-]+)", computation)
    for line in computation.splitlines():
      if name and " all-reduce(" in line:
        sums[line.split("all-reduce(")[0]] = name[1] in bodies
  of_head = [in_loop for result, in_loop in sums.items() if "[40,32]" in result]
  assert of_head
  assert not any(of_head)

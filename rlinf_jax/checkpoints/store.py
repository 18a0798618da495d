"""Saves a training state so that a killed run continues where it was.

A state is any pytree whose leaves are arrays (of jax, with any sharding; typed
PRNG keys; of numpy) or Python numbers. A process killed at any instant leaves
the checkpoints before it as they were. One process writes a directory, and
`save` returns when the files are on disk: 10 MB take about 0.1 s.

Orbax stores the leaves under their paths, not the tree: which leaves a run
lacks is then ours to say, in the run's own words. It takes no arrays of size 0,
so those are made anew.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from rlinf_jax.checkpoints import layout
from rlinf_jax.checkpoints import leaves as leaves_lib

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def save(
  directory: layout.Path,
  step: int,
  state: Any,
  *,
  metadata: Mapping[str, Any],
  keep: int | None = None,
) -> pathlib.Path:
  """Writes one checkpoint, then deletes the oldest ones; returns its path.

  A checkpoint of the same step is replaced.

  Args:
    directory: where the run's checkpoints are; made where it is missing.
    step: what the checkpoint is of; the greatest is the latest.
    state: the whole training state.
    metadata: JSON values that describe the run: task, config, seed.
    keep: how many checkpoints to leave, the latest ones; None leaves all.

  Raises:
    ValueError: `step` is negative, `keep` is not positive, or a leaf of `state`
      is neither an array nor a number.
    TypeError: `metadata` is not JSON.
  """
  if step < 0:
    raise ValueError(f"A checkpoint's step is at least 0, got {step}.")
  if keep is not None and keep < 1:
    raise ValueError(f"keep is at least 1, or None for all, got {keep}.")
  leaves = leaves_lib.name_leaves(state)
  stored = {
    k: leaves_lib.to_storable(v) for k, v in leaves.items() if np.size(v)
  }
  unfinished = layout.begin(directory, step)
  with _open_orbax() as writer:
    writer.save(unfinished / layout.STATE, args=ocp.args.PyTreeSave(stored))
  record = {
    "step": step,
    "metadata": dict(metadata),
    "versions": {p: importlib.metadata.version(p) for p in _PACKAGES},
    "leaves": {k: leaves_lib.describe(v) for k, v in leaves.items()},
    "files": layout.hash_files(unfinished / layout.STATE),
  }
  layout.write_record(unfinished, record)
  path = layout.commit(unfinished)
  for old in layout.steps(directory)[: -keep if keep is not None else 0]:
    layout.delete(directory, old)
  return path


def restore(
  directory: layout.Path,
  like: Any,
  *,
  step: int | None = None,
  metadata: Mapping[str, Any] | None = None,
  must_match: Sequence[str] = (),
) -> tuple[Any, dict[str, Any]]:
  """Returns a checkpoint's state, laid out like `like`, and its metadata.

  The values are bitwise those that were saved, whatever devices held them.

  Args:
    directory: where the run's checkpoints are.
    like: a state of this run, or its `jax.eval_shape`: structure, shapes,
      dtypes and shardings. A leaf without a sharding goes to the first device.
    step: which checkpoint; None is the latest.
    metadata: this run's; errors then say which of the run's settings differ.
    must_match: entries of `metadata` ("config.task" where nested) in which a
      checkpoint of this run cannot differ, even where its leaves fit.

  Raises:
    CheckpointError: there is no such checkpoint, it is damaged, or its leaves
      or the entries `must_match` differ from this run's.
  """
  path = layout.find(directory, step)
  record = layout.read_record(path)
  leaves = leaves_lib.name_leaves(like)
  settings = leaves_lib.flatten_settings(metadata or {})
  _check_same(path, record, leaves, settings=settings, must_match=must_match)
  return _load(path, record, like, leaves), record["metadata"]


def restore_part(
  directory: layout.Path, like: Any, *, step: int | None = None
) -> Any:
  """Returns the leaves of a checkpoint that `like` has, ignoring all others.

  Leaves are matched by path, in which attributes and keys are the same: the
  `params` field of a dataclass is found by `{"params": ...}`.

  Raises:
    CheckpointError: there is no such checkpoint, it is damaged, or a leaf of
      `like` is not in it with the same shape and dtype.
  """
  path = layout.find(directory, step)
  record = layout.read_record(path)
  leaves = leaves_lib.name_leaves(like)
  part = {k: v for k, v in record["leaves"].items() if k in leaves}
  _check_same(path, {**record, "leaves": part}, leaves)
  return _load(path, record, like, leaves)


def read_metadata(
  directory: layout.Path, *, step: int | None = None
) -> dict[str, Any]:
  """Returns the `metadata` with which a checkpoint (the latest) was saved.

  Raises:
    CheckpointError: there is none, or its metadata cannot be read.
  """
  return layout.read_record(layout.find(directory, step))["metadata"]


def _load(
  path: pathlib.Path,
  record: Mapping[str, Any],
  like: Any,
  leaves: Mapping[str, Any],
) -> Any:
  layout.check_files(path, record["files"])
  wanted = {k: leaves_lib.to_target(v) for k, v in leaves.items() if np.size(v)}
  args = ocp.args.PyTreeRestore(
    wanted,
    restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
    partial_restore=True,
  )
  with _open_orbax() as reader:
    found = reader.restore(path / layout.STATE, args=args)
  values = [
    leaves_lib.from_stored(found[k], v)
    if k in found
    else leaves_lib.make_empty(v)
    for k, v in leaves.items()
  ]
  return jax.tree.unflatten(jax.tree.structure(like), values)


def _check_same(
  path: pathlib.Path,
  record: Mapping[str, Any],
  leaves: Mapping[str, Any],
  *,
  settings: Mapping[str, Any] | None = None,
  must_match: Sequence[str] = (),
) -> None:
  ours = {k: leaves_lib.describe(v) for k, v in leaves.items()}
  leaf_lines = leaves_lib.find_differences(record["leaves"], ours)
  theirs = leaves_lib.flatten_settings(record["metadata"])
  settings = settings or {}
  is_same_task = all(
    theirs.get(k) == settings.get(k)
    for k in set(theirs) | set(settings)
    if any(k == name or k.startswith(name + ".") for name in must_match)
  )
  if not leaf_lines and is_same_task:
    return
  lines = [f"The checkpoint {path} does not fit this run."]
  setting_lines = leaves_lib.find_differences(theirs, settings)
  if settings and setting_lines:
    lines += ["Settings that differ:", *setting_lines]
  if leaf_lines:
    lines += ["Leaves of the state that differ:", *leaf_lines]
  lines.append(
    "Give this run the checkpoint's settings, or another checkpoint directory."
  )
  raise layout.CheckpointError("\n".join(lines))


@contextlib.contextmanager
def _open_orbax() -> Iterator[ocp.Checkpointer]:
  """Yields a checkpointer that does not log a dozen lines per checkpoint."""
  verbosity = logging.get_verbosity()
  logging.set_verbosity(min(verbosity, logging.WARNING))
  try:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
      yield checkpointer
  finally:
    logging.set_verbosity(verbosity)

"""Reads and writes whole folders: settings, weights, tokenizer, template."""

from __future__ import annotations

import fnmatch
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rlinf_jax.models import transformer
from rlinf_jax.models.huggingface import names, settings, tensors

# What `save` copies as it is: how text becomes tokens, and what licenses ask.
COPIED = (
  "tokenizer*",
  "vocab.*",
  "merges.txt",
  "added_tokens.json",
  "special_tokens_map.json",
  "chat_template*",
  "generation_config.json",
  "LICENSE*",
  "NOTICE*",
)


class Checkpoint(NamedTuple):
  """A network and its parameters."""

  config: transformer.Config
  params: names.Params  # of numpy; with "value" they are a critic's


def load(
  folder: str | pathlib.Path, *, dtype: np.typing.DTypeLike | None = np.float32
) -> Checkpoint:
  """Returns the network in a Hugging Face folder.

  Args:
    folder: with config.json and safetensors.
    dtype: of the parameters; None is that of the files. Of float16 or bfloat16
      files, float32 holds each value exactly.

  Raises:
    ValueError: something is missing, damaged, of another shape, or of a network
      that is not supported.
  """
  folder = pathlib.Path(folder)
  found = settings.read(folder)
  config = settings.to_config(found)
  _, last_layer = settings.architecture(found)
  abstract = names.abstract_params(config, is_critic=last_layer == "value")
  with tensors.open_folder(folder) as reader:
    _check_tensors(folder, reader, names.shapes(abstract))
    params = names.read_params(abstract, reader.read, dtype)
    if config.is_tied and "lm_head.weight" in reader.shape:
      head = reader.read("lm_head.weight").astype(params["embedding"].dtype)
      if not np.array_equal(head, params["embedding"]):
        raise ValueError(
          f"{folder}: its {settings.FILE} says that the head is the embedding,"
          " but its lm_head.weight differs. Set tie_word_embeddings to false"
          " there, or remove lm_head.weight."
        )
  return Checkpoint(config, params)


def save(
  folder: str | pathlib.Path,
  config: transformer.Config,
  params: names.Params,
  *,
  source: str | pathlib.Path | None = None,
  dtype: np.typing.DTypeLike | None = None,
  extra: Mapping[str, Any] | None = None,
  max_shard_bytes: int = 5_000_000_000,
) -> None:
  """Writes a folder that `transformers` and vLLM load.

  It appears under its name when it is complete.

  Args:
    folder: must not exist, or be empty.
    config: the network.
    params: its parameters, of jax or numpy; with "value" they are a critic's.
    source: the folder that the network came from. Its tokenizer, chat template
      and generation settings are copied, and its config.json where it still
      says the truth. None: config.json is written anew, and there is no
      tokenizer.
    dtype: that tensors are rounded to; None is that of the parameters.
    extra: entries for config.json, such as {"eos_token_id": 2}.
    max_shard_bytes: of one file of weights.

  Raises:
    ValueError: the folder is in use, or parameters or source do not fit config.
  """
  folder = pathlib.Path(folder)
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise ValueError(
      f"Given {folder}, which exists, expected a new folder; choose another"
      " name or remove it."
    )
  is_critic = "value" in params
  _check_params(config, params, is_critic=is_critic)
  dtype = np.dtype(params["embedding"].dtype if dtype is None else dtype)
  written = settings.from_config(config, is_critic=is_critic, dtype=dtype.name)
  if source is not None:
    written = _update(pathlib.Path(source), config, written)
  partial = folder.with_name(folder.name + ".partial")
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  if source is not None:
    for path in sorted(pathlib.Path(source).iterdir()):
      if path.is_file() and any(
        fnmatch.fnmatch(path.name, pattern) for pattern in COPIED
      ):
        shutil.copyfile(path, partial / path.name)
  _write_settings(partial, {**written, **(extra or {})}, source)
  tensors.write(
    partial,
    (
      (name, np.asarray(x).astype(dtype, copy=False))
      for name, x in names.named_tensors(params)
    ),
    max_shard_bytes=max_shard_bytes,
  )
  if folder.exists():
    folder.rmdir()
  partial.rename(folder)


def _check_tensors(folder, reader, expected):
  missing = sorted(expected.keys() - reader.shape.keys())
  if missing:
    raise ValueError(
      f"{folder} lacks {len(missing)} tensors: {_some(missing)}. Fetch all"
      f" files of the checkpoint, or correct its {settings.FILE}."
    )
  for name, shape in expected.items():
    if reader.shape[name] != shape:
      raise ValueError(
        f"{reader.file[name]}: tensor {name} has shape {reader.shape[name]},"
        f" expected {shape} by {settings.FILE}; the two are of different"
        " networks."
      )
  ignored = lambda name: (
    # Once stored with the weights, though they follow from the settings.
    name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"
  )
  unknown = sorted(
    name for name in reader.shape if name not in expected and not ignored(name)
  )
  if unknown:
    raise ValueError(
      f"{folder} has {len(unknown)} tensors that the network has no place for:"
      f" {_some(unknown)}. Merge adapters first; take a plain checkpoint."
    )


def _check_params(config, params, *, is_critic):
  expected = names.shapes(names.abstract_params(config, is_critic=is_critic))
  given = names.shapes(params)
  differing = sorted(
    name
    for name in expected.keys() | given.keys()
    if expected.get(name) != given.get(name)
  )
  if differing:
    name = differing[0]
    raise ValueError(
      f"Given parameters in which {name} has shape {given.get(name)}, expected"
      f" {expected.get(name)} by the config; {len(differing)} differ. Give the"
      " config that the parameters were made with."
    )


def _update(source, config, written):
  """Returns the source's settings, with what has become untrue corrected."""
  found = settings.read(source)
  model_type, last_layer = settings.architecture(found)
  saved_type, saved_layer = settings.architecture(written)
  if model_type == saved_type and last_layer != saved_layer:
    # A critic was made from a language model, or the other way round.
    changed = ("architectures", "id2label", "label2id")
    found = {k: v for k, v in found.items() if k not in changed}
    found |= {k: v for k, v in written.items() if k in changed}
  expected = settings.to_config(found)
  if expected != config:
    raise ValueError(
      f"Given source {source} of {expected}, expected that of the network to be"
      f" saved, {config}. Give the folder it was loaded from, or None."
    )
  for name in ("dtype", "torch_dtype"):
    if name in found:
      found[name] = written["torch_dtype"]
  return found


def _write_settings(folder, content, source):
  path = folder / settings.FILE
  if source is not None and content == settings.read(source):
    shutil.copyfile(pathlib.Path(source) / settings.FILE, path)
    return
  path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _some(found, limit=4):
  shown = ", ".join(found[:limit])
  return shown if len(found) <= limit else f"{shown}, ..."

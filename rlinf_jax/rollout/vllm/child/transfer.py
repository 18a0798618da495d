"""Weights out of shared memory, by vLLM's own weight-transfer interface.

vLLM imports this file in each of its workers, because `worker_extension_cls`
names a class of it, and finds the backend registered.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
from typing import Any

import torch
from vllm.distributed.weight_transfer import base, factory
from vllm.model_executor.model_loader import reload

BACKEND = "shared_memory"


class Extension:
  """Adds nothing to a worker: naming it registers the backend."""


@dataclasses.dataclass
class InitInfo(base.WeightTransferInitInfo):
  """Nothing: what a reload needs is said with it."""


@dataclasses.dataclass
class UpdateInfo(base.WeightTransferUpdateInfo):
  """Where a version lies.

  Attributes:
    path: of the memory.
    tensors: [name, dtype, shape, first byte] of each.
  """

  path: str
  tensors: list[list[Any]]


class Engine(base.WeightTransferEngine[InitInfo, UpdateInfo]):
  """Reloads layer by layer: repacked weights are not overwritten but remade."""

  init_info_cls = InitInfo
  update_info_cls = UpdateInfo

  def __init__(self, *arguments: Any) -> None:
    super().__init__(*arguments)
    # What was mapped once is read without page faults the next time. By inode
    # and size: a path may come to name another file.
    self._mapped: dict[tuple[int, int], mmap.mmap] = {}

  def init_transfer_engine(self, init_info: InitInfo) -> None:
    """Needs nothing."""

  def start_weight_update(self) -> None:
    reload.initialize_layerwise_reload(self.model)

  def receive_weights(self, update_info: UpdateInfo) -> None:
    memory = self._map(update_info.path)
    tensors = _tensors(memory, update_info.tensors)
    self.model.load_weights(tensors.items())

  def finish_weight_update(self) -> None:
    reload.finalize_layerwise_reload(self.model, self.model_config)
    _process_tied_head(self.model)

  def shutdown(self) -> None:
    self._mapped.clear()

  def _map(self, path: str) -> mmap.mmap:
    file = os.open(path, os.O_RDWR)
    try:
      status = os.fstat(file)
      key = status.st_ino, status.st_size
      if key not in self._mapped:
        self._mapped[key] = mmap.mmap(file, 0)
    finally:
      os.close(file)
    return self._mapped[key]


factory.WeightTransferEngineFactory.register_engine(BACKEND, Engine)


def _tensors(
  memory: mmap.mmap, listed: list[list[Any]]
) -> dict[str, torch.Tensor]:
  """Returns tensors that are views of shared memory."""
  found = {}
  for name, dtype, shape, begin in listed:
    torch_dtype = getattr(torch, dtype)
    flat = torch.frombuffer(
      memory, dtype=torch_dtype, count=math.prod(shape), offset=begin
    )
    found[name] = flat.view(shape)
  return found


def _process_tied_head(model: torch.nn.Module) -> None:
  """Repacks the weights of a head that is the embedding.

  The reload loads the embedding, and treats only what it loaded; the head's
  packed copy, which is what a CPU multiplies by, would stay the old one.
  """
  if model.config.tie_word_embeddings and hasattr(model, "lm_head"):
    model.lm_head.quant_method.process_weights_after_loading(model.lm_head)

"""vLLM's engine, a step at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import loop
import torch
import transfer
import transformers
import vllm
from vllm import platforms, sampling_params
from vllm.v1.engine import llm_engine

# Keys and values that a CPU has room for, where nobody says. A GPU's take what
# its share of the memory leaves.
_CPU_CACHE_BYTES = 1 << 30
# Of a GPU's memory, where nobody says: the trainer takes as much of the same.
_GPU_SHARE = 0.45


class Generator:
  """An engine whose weights change between two steps.

  Args:
    settings: "engine" are arguments of vLLM's engine, by name.
  """

  def __init__(self, settings: Mapping[str, Any]) -> None:
    arguments = {
      "load_format": "dummy",
      "skip_tokenizer_init": True,
      "generation_config": "vllm",  # no settings but those of each request
      "logprobs_mode": "processed_logprobs",
      "weight_transfer_config": {"backend": transfer.BACKEND},
      "worker_extension_cls": "transfer.Extension",
      # With it a step would be under way while weights change.
      "async_scheduling": False,
      "disable_log_stats": True,
    }
    if platforms.current_platform.is_cpu():
      arguments |= {
        "dtype": "float32",
        # Compiling takes a minute and makes nothing faster.
        "enforce_eager": True,
        "kv_cache_memory_bytes": _CPU_CACHE_BYTES,
        # The default is so large that short prompts share nothing.
        "block_size": 32,
        # Where it reads a prompt in parts, vLLM 0.32 winds the sample's
        # generator back; one on a CPU cannot be, and the engine dies.
        "enable_chunked_prefill": False,
      }
    else:
      arguments["gpu_memory_utilization"] = _GPU_SHARE
    self._engine = llm_engine.LLMEngine.from_engine_args(
      vllm.EngineArgs(**{**arguments, **settings["engine"]})
    )
    config = self._engine.model_config
    self.vocabulary_size = config.get_vocab_size()
    self.context_size = config.max_model_len
    self.dtype = str(config.dtype).removeprefix("torch.")
    self.description = (
      f"vLLM {vllm.__version__} on {platforms.current_platform.device_type},"
      f" {self.dtype}"
    )
    self.tensors = _tensors_of(config.hf_config)
    self._engine.model_executor.collective_rpc(
      "init_weight_transfer_engine", kwargs={"init_info": {}}
    )
    self._try()

  def add(
    self, name: str, prompt: list[int], seed: int, sampling: Mapping[str, Any]
  ) -> None:
    is_greedy = sampling["temperature"] == 0.0
    self._engine.add_request(
      name,
      {"prompt_token_ids": prompt},
      vllm.SamplingParams(
        max_tokens=sampling["max_new_tokens"],
        temperature=sampling["temperature"],
        # The likeliest token's log-probability is that of all tokens.
        top_k=0 if is_greedy else sampling["top_k"] or 0,
        top_p=1.0 if is_greedy else sampling["top_p"],
        seed=seed,
        stop_token_ids=sampling["stop_tokens"],
        ignore_eos=True,
        logprobs=0,  # the sampled token's alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=sampling_params.RequestOutputKind.FINAL_ONLY,
      ),
    )

  def step(self) -> list[loop.Finished]:
    return [
      _finished(output) for output in self._engine.step() if output.finished
    ]

  def load(self, version: int, path: str, tensors: list[list[Any]]) -> None:
    engine = self._engine
    engine.collective_rpc("start_weight_update")
    update_info = {"path": path, "tensors": tensors}
    engine.collective_rpc("update_weights", kwargs={"update_info": update_info})
    engine.collective_rpc("finish_weight_update")
    engine.set_weight_version(str(version))
    # What was read by the old weights must serve no prompt, and no sample that
    # is under way.
    engine.reset_prefix_cache(reset_running_requests=True)

  def _try(self) -> None:
    """Generates a token, so that what cannot work fails now."""
    greedy: dict[str, Any] = {
      "max_new_tokens": 1,
      "temperature": 0.0,
      "top_k": None,
      "top_p": 1.0,
      "stop_tokens": [],
    }
    self._engine.set_weight_version("0")
    self.add("0-0", [0], 0, greedy)
    while not self.step():
      pass


def _finished(output: vllm.RequestOutput) -> loop.Finished:
  completion = output.outputs[0]
  version = [
    int(span.version)
    for span in completion.weight_versions
    for _ in range(span.start, span.end)
  ]
  return loop.Finished(
    name=output.request_id,
    token=list(completion.token_ids),
    log_prob=completion.logprobs.logprobs,
    version=version,
    is_stopped=completion.finish_reason == "stop",
  )


def _tensors_of(config: Any) -> dict[str, tuple[int, ...]]:
  """Returns the shape of each tensor of a checkpoint."""
  with torch.device("meta"):
    model = transformers.AutoModelForCausalLM.from_config(config)
  tied = set(model.all_tied_weights_keys)
  return {
    name: tuple(x.shape)
    for name, x in model.state_dict().items()
    if name not in tied
  }

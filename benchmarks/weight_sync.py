"""How fast weights reach vLLM: publishing, and until it generates by them.

    python -m benchmarks.weight_sync

A network of the sizes of Qwen2.5 0.5B, float32, 2 GB, of random weights, is
published to one process on this host `--num_syncs` times. Each time a plain
copy of as many bytes, between two arrays that were written before, is timed
beside it. Needs `make vllm`, 12 GB of free memory, and a minute.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import tempfile
import time

import jax
import numpy as np
from absl import app, flags

from rlinf_jax import rollout
from rlinf_jax.models import huggingface, transformer

FLAGS = flags.FLAGS
_NUM_SYNCS = flags.DEFINE_integer(
  "num_syncs", 7, "Versions, one after another."
)
_PYTHON = flags.DEFINE_string("rollout_python", None, "Another one with vLLM.")
_OUTPUT = flags.DEFINE_string(
  "output", "runs/benchmarks/weight_sync.json", "What was measured, as JSON."
)

SIZES = {
  "architectures": ["Qwen2ForCausalLM"],
  "model_type": "qwen2",
  "vocab_size": 151936,
  "hidden_size": 896,
  "num_hidden_layers": 24,
  "num_attention_heads": 14,
  "num_key_value_heads": 2,
  "intermediate_size": 4864,
  "hidden_act": "silu",
  "max_position_embeddings": 1024,
  "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0,
  "tie_word_embeddings": True,
  "torch_dtype": "float32",
}


def main(argv: list[str]) -> None:
  """Measures, prints and writes."""
  del argv
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "config.json").write_text(json.dumps(SIZES))
    rows = _measure(folder)
  num_bytes = rows[0]["num_bytes"]
  print(f"{num_bytes / 1e9:.2f} GB, load average {os.getloadavg()[0]:.1f}")
  for row in rows:
    print(
      f"version {row['version']}: copy {row['copy_s']:.3f} s, publish"
      f" {row['publish_s']:.3f} s, vLLM's reload {row['load_s']:.3f} s, end to"
      f" end {row['end_to_end_s']:.3f} s"
    )
  # Both halves of the memory have been written by then.
  later = rows[2:]
  median = lambda key: statistics.median(row[key] for row in later)
  copy_s = median("copy_s")
  for key in ("publish_s", "load_s", "end_to_end_s"):
    print(
      f"{key}: {num_bytes / median(key) / 1e9:.2f} GB/s,"
      f" {copy_s / median(key):.2f} of a plain copy"
      f" ({num_bytes / copy_s / 1e9:.2f} GB/s)"
    )
  output = pathlib.Path(_OUTPUT.value)
  output.parent.mkdir(parents=True, exist_ok=True)
  record = {"load_average": os.getloadavg(), "syncs": rows}
  output.write_text(json.dumps(record, indent=2) + "\n")


def _measure(folder: pathlib.Path) -> list[dict[str, float]]:
  model = transformer.language_model(huggingface.read_config(folder))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  draw = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: 0.02 * draw.standard_normal(x.shape, np.float32), shapes
  )
  num_bytes = sum(x.nbytes for x in jax.tree.leaves(params))
  source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
  python = {"python": _PYTHON.value} if _PYTHON.value else {}
  rows = []
  with rollout.VllmEngine(
    folder,
    rollout.Sampling(max_new_tokens=1),
    lambda params: dict(huggingface.named_tensors(params)),
    log_path=folder / "rollout.log",
    **python,
  ) as engine:
    for version in range(_NUM_SYNCS.value):
      begin_s = time.perf_counter()
      np.copyto(target, source)
      copy_s = time.perf_counter() - begin_s
      begin_s = time.perf_counter()
      sync = engine.sync(rollout.Weights(params=params, version=version))
      rows.append(
        {
          "version": version,
          "num_bytes": sync.num_bytes,
          "copy_s": copy_s,
          "publish_s": sync.publish_s,
          "load_s": sync.load_s,
          "end_to_end_s": time.perf_counter() - begin_s,
        }
      )
  return rows


if __name__ == "__main__":
  app.run(main)

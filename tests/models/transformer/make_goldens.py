"""Writes goldens.json: what `transformers` computes for each variant.

pip install -e '.[reasoning-test]'       # best in a venv of its own
python -m tests.models.transformer.make_goldens
"""

from __future__ import annotations

import json
import pathlib
import tempfile

import torch
import transformers

from tests.models.transformer import variants

FILE = pathlib.Path(__file__).with_name("goldens.json")
# Of 24: the first two, the last of the context, two beyond, the last.
POSITIONS = (0, 1, 15, 16, 20, 23)


def outputs(folder: pathlib.Path) -> torch.Tensor:
  """Returns float32 [T, V] logits, or [T, 1] scores, of the model there."""
  found = json.loads((folder / "config.json").read_text())
  constructor = getattr(transformers, found["architectures"][0])
  model = constructor.from_pretrained(
    folder, dtype=torch.float32, attn_implementation="eager"
  ).eval()
  tokens = torch.tensor(variants.TOKENS, dtype=torch.long)
  with torch.no_grad():
    if hasattr(model, "score"):  # it would give the last token's only
      return model.score(model.model(tokens).last_hidden_state)[0]
    return model(tokens).logits[0]


def main() -> None:
  goldens = {}
  for name, found in variants.VARIANTS.items():
    with tempfile.TemporaryDirectory() as folder:
      variants.write(pathlib.Path(folder), found)
      values = outputs(pathlib.Path(folder))
    goldens[name] = [
      [round(x, 6) for x in values[t].tolist()] for t in POSITIONS
    ]
  lines = [
    f'"{name}": [\n'
    + ",\n".join("  " + json.dumps(row) for row in rows)
    + "\n]"
    for name, rows in goldens.items()
  ]
  FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
  main()

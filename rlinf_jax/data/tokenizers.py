"""A tokenizer whose tokens are characters, for models of procedural tasks."""

from __future__ import annotations

import json
import os
import pathlib
import string
from collections.abc import Iterable

_PAD, _EOS = "<pad>", "<eos>"
_ASCII = "\n" + string.digits + string.ascii_letters + string.punctuation + " "


class CharTokenizer:
  """One token for each character, one for padding and one for the end.

  Args:
    alphabet: the characters that it knows; by default those of ASCII that can
      be printed, and the newline.

  Attributes:
    pad_id: 0.
    eos_id: 1, what a model writes after its answer.
    vocab_size: how many tokens there are.

  Raises:
    ValueError: the alphabet is empty, or has a character twice.
  """

  pad_id = 0
  eos_id = 1

  def __init__(self, alphabet: str = _ASCII):
    if not alphabet or len(set(alphabet)) != len(alphabet):
      raise ValueError(
        f"Given the alphabet {alphabet!r}, expected each character once."
      )
    self._tokens = [_PAD, _EOS, *alphabet]
    self._ids = {token: i for i, token in enumerate(self._tokens)}
    self.vocab_size = len(self._tokens)

  def encode(self, text: str) -> list[int]:
    """Returns a token for each character; none for the end.

    Raises:
      ValueError: a character is not of the alphabet.
    """
    try:
      return [self._ids[character] for character in text]
    except KeyError as error:
      raise ValueError(
        f"Given {text!r:.60}, whose {error.args[0]!r} is not one of the "
        f"{self.vocab_size - 2} characters that this tokenizer knows. Use "
        "other prompts, or another alphabet."
      ) from error

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of tokens, without those for padding and the end."""
    return "".join(self._tokens[i] for i in ids if i > self.eos_id)

  def write(self, folder: str | os.PathLike[str]) -> None:
    """Writes what Hugging Face's libraries load the same tokenizer from.

    Args:
      folder: that of a checkpoint; it must exist.
    """
    special = [
      {
        "id": i,
        "content": self._tokens[i],
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
      }
      for i in (self.pad_id, self.eos_id)
    ]
    whole = {
      "version": "1.0",
      "truncation": None,
      "padding": None,
      "added_tokens": special,
      "normalizer": None,
      "pre_tokenizer": {
        "type": "Split",
        "pattern": {"Regex": "[\\s\\S]"},
        "behavior": "Isolated",
        "invert": False,
      },
      "post_processor": None,
      "decoder": {"type": "Fuse"},
      "model": {"type": "WordLevel", "vocab": self._ids, "unk_token": _PAD},
    }
    config = {
      "tokenizer_class": "PreTrainedTokenizerFast",
      "pad_token": _PAD,
      "eos_token": _EOS,
      "clean_up_tokenization_spaces": False,
    }
    for name, content in (
      ("tokenizer.json", whole),
      ("tokenizer_config.json", config),
    ):
      path = pathlib.Path(folder) / name
      path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

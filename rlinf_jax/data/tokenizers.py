"""Tokenizers: of characters, for procedural tasks; and those of checkpoints."""

from __future__ import annotations

import json
import os
import pathlib
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
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
    stop_ids: that alone.
    template_fn: None.
    vocab_size: how many tokens there are.

  Raises:
    ValueError: the alphabet is empty, or has a character twice.
  """

  pad_id = 0
  eos_id = 1
  stop_ids = (1,)
  template_fn: Callable[..., str] | None = None

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

  def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
    """Returns the tokens of each text."""
    return [self.encode(text) for text in texts]

  def encode_answer(self, text: str) -> list[int]:
    """Returns the tokens of a text that follows another: the same."""
    return self.encode(text)

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


class HuggingFaceTokenizer:
  """The tokenizer in a checkpoint's folder, as `transformers` reads it.

  Args:
    folder: with the tokenizer's files; nothing is fetched.

  Attributes:
    pad_id: what fills rows; the end's id where the tokenizer has none.
    eos_id: what a model writes after its answer.
    stop_ids: that, and what generation_config.json says besides.
    vocab_size: more than any id.
    template_fn: the chat template, None without one. A text that it made has
      its special tokens already: `encode` adds none to it.

  Raises:
    ValueError: the folder has no tokenizer, or one without an end.
    ImportError: transformers is not installed.
  """

  def __init__(self, folder: str | os.PathLike[str]):
    try:
      import transformers
    except ModuleNotFoundError as error:
      raise ImportError(
        f"Reading the tokenizer of {os.fspath(folder)} needs transformers,"
        " which is not installed: pip install -e '.[reasoning]'."
      ) from error
    if not any((pathlib.Path(folder) / name).is_file() for name in _TOKENIZERS):
      # transformers would make up an empty one.
      raise ValueError(
        f"{os.fspath(folder)} has no tokenizer, expected one of"
        f" {', '.join(_TOKENIZERS)}. Fetch the tokenizer's files of the same"
        " checkpoint into it."
      )
    try:
      self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
        os.fspath(folder), local_files_only=True
      )
    except (OSError, ValueError, KeyError, ImportError) as error:
      first_line = str(error).strip().split("\n")[0]
      raise ValueError(
        f"{os.fspath(folder)} has a tokenizer that transformers cannot read"
        f" ({first_line:.200}). Fetch tokenizer.json and tokenizer_config.json"
        " of the same checkpoint into it."
      ) from error
    eos_id = self._tokenizer.eos_token_id
    if eos_id is None:
      raise ValueError(
        f"The tokenizer of {os.fspath(folder)} has no end-of-text token,"
        " expected eos_token in its tokenizer_config.json."
      )
    self.eos_id = int(eos_id)
    pad_id = self._tokenizer.pad_token_id
    self.pad_id = self.eos_id if pad_id is None else int(pad_id)
    self.vocab_size = len(self._tokenizer)
    self.stop_ids = _stop_ids(pathlib.Path(folder), self.eos_id)
    has_template = getattr(self._tokenizer, "chat_template", None)
    self.template_fn = self._render if has_template else None

  def encode(self, text: str) -> list[int]:
    """Returns the tokens of a text, with a beginning where models want one."""
    return self.encode_all([text])[0]

  def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
    """Returns the tokens of each text, in as many threads as there are cores.

    The tokenizer takes a template's text to have its special tokens already.
    """
    has_all = self.template_fn is not None
    encoded = self._tokenizer(
      list(texts),
      add_special_tokens=not has_all,
      return_attention_mask=False,
      return_token_type_ids=False,
    )
    return encoded["input_ids"]

  def encode_answer(self, text: str) -> list[int]:
    """Returns the tokens of a text that follows another: no beginning."""
    return self._tokenizer.encode(text, add_special_tokens=False)

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of tokens, without special ones."""
    return self._tokenizer.decode(list(ids), skip_special_tokens=True)

  def write(self, folder: str | os.PathLike[str]) -> None:
    """Writes what Hugging Face's libraries load the same tokenizer from."""
    self._tokenizer.save_pretrained(os.fspath(folder))

  def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
    return self._tokenizer.apply_chat_template(
      list(messages), tokenize=False, add_generation_prompt=True
    )


def _stop_ids(folder: pathlib.Path, eos_id: int) -> tuple[int, ...]:
  path = folder / "generation_config.json"
  found: Any = []
  if path.is_file():
    found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id", [])
  more = [found] if isinstance(found, int) else list(found or [])
  return tuple(dict.fromkeys([eos_id, *more]))

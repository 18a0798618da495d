"""Prompts as text, and text as tokens."""

from __future__ import annotations

import json

import pytest

from rlinf_jax import data, types

CHAT = (
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": "2+2?"},
)


def template(messages):
  return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<answer>"


def test_without_a_template_a_prompt_is_its_text():
  assert data.render(types.Prompt(text="1+1=")) == "1+1="


def test_a_template_gets_the_messages():
  text, chat = types.Prompt(text="1+1="), types.Prompt(text="", messages=CHAT)
  assert data.render(text, template) == "<user>1+1=<answer>"
  assert data.render(chat, template) == "<system>Be brief.<user>2+2?<answer>"


def test_a_system_message_comes_first_unless_there_is_one():
  text, chat = types.Prompt(text="1+1="), types.Prompt(text="", messages=CHAT)
  assert (
    data.render(text, template, system="Think.")
    == "<system>Think.<user>1+1=<answer>"
  )
  assert data.render(chat, template, system="Think.") == data.render(
    chat, template
  )


@pytest.mark.parametrize(
  ("prompt", "system", "match"),
  [
    (types.Prompt(text="", messages=CHAT), None, "Given a chat without"),
    (types.Prompt(text="a"), "Think.", "Given a system message without"),
  ],
)
def test_a_chat_needs_a_template(prompt, system, match):
  with pytest.raises(ValueError, match=match):
    data.render(prompt, system=system)


def test_tokens_are_characters():
  tokenizer = data.CharTokenizer("ab+")
  assert tokenizer.encode("b+a") == [3, 4, 2]
  assert (
    tokenizer.decode([3, 4, 2, tokenizer.eos_id, tokenizer.pad_id]) == "b+a"
  )
  assert tokenizer.vocab_size == 5


def test_the_default_tokenizer_knows_every_procedural_prompt():
  tokenizer = data.CharTokenizer()
  for task_fn in (data.arithmetic, data.sorting, data.countdown):
    for prompt in data.Procedural(task_fn, size=20):
      for text in (prompt.text, prompt.answer):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_strange_character_is_named():
  with pytest.raises(ValueError, match="whose '\u00e9' is not one of the 96"):
    data.CharTokenizer().encode("caf\u00e9")


@pytest.mark.parametrize("alphabet", ["", "aba"])
def test_an_alphabet_has_each_character_once(alphabet):
  with pytest.raises(ValueError, match="expected each character once"):
    data.CharTokenizer(alphabet)


def test_written_files_name_the_tokens(tmp_path):
  tokenizer = data.CharTokenizer("ab\n")
  tokenizer.write(tmp_path)
  whole = json.loads((tmp_path / "tokenizer.json").read_text())
  assert whole["model"]["vocab"] == {
    "<pad>": 0,
    "<eos>": 1,
    "a": 2,
    "b": 3,
    "\n": 4,
  }
  config = json.loads((tmp_path / "tokenizer_config.json").read_text())
  assert (config["pad_token"], config["eos_token"]) == ("<pad>", "<eos>")


def test_tokenizers_reads_the_same_tokenizer(tmp_path):
  tokenizers = pytest.importorskip("tokenizers")
  tokenizer = data.CharTokenizer()
  tokenizer.write(tmp_path)
  theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
  for text in ("sort 12  7=\n", "make 3 from 1 2=1+2", "~ <eo s>"):
    ids = tokenizer.encode(text)
    assert theirs.encode(text).ids == ids
    assert theirs.decode([*ids, 1, 0]) == tokenizer.decode(ids) == text


@pytest.mark.slow
def test_transformers_reads_the_same_tokenizer(tmp_path):
  transformers = pytest.importorskip("transformers")
  tokenizer = data.CharTokenizer()
  tokenizer.write(tmp_path)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  ids = tokenizer.encode("sort 12  7=\n")
  assert theirs.encode("sort 12  7=\n") == ids
  assert (theirs.pad_token_id, theirs.eos_token_id) == (0, 1)
  assert len(theirs) == tokenizer.vocab_size


@pytest.mark.slow
def test_transformers_reads_our_tokenizer_as_we_do(tmp_path):
  ours = data.CharTokenizer()
  ours.write(tmp_path)
  theirs = data.HuggingFaceTokenizer(tmp_path)
  text = "sort 7 31 4=4 7 31"
  assert theirs.encode(text) == ours.encode(text)
  assert theirs.decode([*ours.encode(text), ours.eos_id]) == text
  assert theirs.eos_id == ours.eos_id
  assert theirs.stop_ids == ours.stop_ids
  assert theirs.pad_id == ours.pad_id
  assert theirs.vocab_size == ours.vocab_size
  assert theirs.template_fn is None


@pytest.mark.slow
def test_a_chat_template_gives_a_text_that_needs_no_more_tokens(tmp_path):
  data.CharTokenizer().write(tmp_path)
  template = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
  (tmp_path / "chat_template.jinja").write_text(template + "a:")
  tokenizer = data.HuggingFaceTokenizer(tmp_path)
  prompt = types.Prompt(text="1+1=")
  text = data.render(prompt, tokenizer.template_fn, system="add")
  assert text == "system:add\nuser:1+1=\na:"
  assert tokenizer.encode(text) == data.CharTokenizer().encode(text)


def with_beginning(folder):
  """Writes a tokenizer that begins each text with the token "^"."""
  data.CharTokenizer().write(folder)
  path = folder / "tokenizer.json"
  whole = json.loads(path.read_text())
  begin = whole["model"]["vocab"]["^"]
  whole["post_processor"] = {
    "type": "TemplateProcessing",
    "single": [
      {"SpecialToken": {"id": "^", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [],
    "special_tokens": {"^": {"id": "^", "ids": [begin], "tokens": ["^"]}},
  }
  path.write_text(json.dumps(whole))
  return begin


@pytest.mark.slow
def test_a_prompt_has_a_beginning_and_an_answer_has_none(tmp_path):
  begin = with_beginning(tmp_path)
  tokenizer, plain = data.HuggingFaceTokenizer(tmp_path), data.CharTokenizer()
  assert tokenizer.encode("1+1=") == [begin, *plain.encode("1+1=")]
  assert tokenizer.encode_answer("2") == plain.encode("2")
  assert tokenizer.encode_all(["1", "22"]) == [
    [begin, *plain.encode(text)] for text in ("1", "22")
  ]


@pytest.mark.slow
def test_what_ends_an_answer_is_also_in_the_generation_settings(tmp_path):
  data.CharTokenizer().write(tmp_path)
  settings = '{"eos_token_id": [1, 5]}'
  (tmp_path / "generation_config.json").write_text(settings)
  assert data.HuggingFaceTokenizer(tmp_path).stop_ids == (1, 5)


@pytest.mark.slow
def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
  with pytest.raises(ValueError, match="has no tokenizer"):
    data.HuggingFaceTokenizer(tmp_path)

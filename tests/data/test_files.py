"""Prompts from files: what is read, and what is refused and where."""

from __future__ import annotations

import json
import sys

import pytest

from rlinf_jax import data, types

CHAT = [
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": "2+2?"},
]
ROWS = [
  {"prompt": "1+1=", "answer": "2"},
  {"prompt": CHAT, "answer": 4, "level": 3, "metadata": {"source": "me"}},
  {"prompt": "hi", "answer": None},
]
PROMPTS = [
  types.Prompt(text="1+1=", answer="2"),
  types.Prompt(
    text="2+2?",
    answer="4",
    metadata={"level": 3, "source": "me"},
    messages=tuple(CHAT),
  ),
  types.Prompt(text="hi"),
]


def written(tmp_path, lines):
  path = tmp_path / "prompts.jsonl"
  path.write_text("\n".join(lines), encoding="utf-8")
  return path


def test_prompts_of_json_lines(tmp_path):
  path = written(tmp_path, [*map(json.dumps, ROWS), "", ""])
  assert data.read_jsonl(path) == data.read(path) == PROMPTS


GSM8K = {
  "question": "Natalia sold clips to 48 friends, and half as many in May.",
  "answer": "She sold 48/2 = <<48/2=24>>24 in May.\n#### 1,072",
}
MATH = {
  "problem": "What is $1+1$?",
  "level": "Level 1",
  "type": "Algebra",
  "solution": "It is $\\boxed{2}$.",
}
MATH_500 = {**MATH, "answer": "2", "unique_id": "test/algebra/1.json"}
VERL = {  # DAPO-Math-17k too
  "data_source": "math_dapo",
  "prompt": [{"role": "user", "content": "What is $1+1$?"}],
  "ability": "MATH",
  "reward_model": {"ground_truth": "2", "style": "rule"},
  "extra_info": {"index": 0, "answer": "It is 2."},
}


@pytest.mark.parametrize(
  ("row", "text", "answer", "metadata"),
  [
    (GSM8K, GSM8K["question"], "1072", {}),
    (MATH, "What is $1+1$?", "It is $\\boxed{2}$.", {"level", "type"}),
    (
      MATH_500,
      "What is $1+1$?",
      "2",
      {"level", "type", "solution", "unique_id"},
    ),
    (
      VERL,
      "What is $1+1$?",
      "2",
      {"data_source", "ability", "reward_model", "extra_info"},
    ),
  ],
  ids=["gsm8k", "math", "math-500", "verl"],
)
def test_published_layouts_are_known(tmp_path, row, text, answer, metadata):
  path = written(tmp_path, [json.dumps(row)] * 2)
  for prompt in data.read(path):
    assert (prompt.text, prompt.answer) == (text, answer)
    assert sorted(prompt.metadata) == sorted(metadata)


def test_a_column_may_be_within_another(tmp_path):
  path = written(tmp_path, [json.dumps(VERL)])
  (prompt,) = data.read(path, answer="extra_info.answer")
  assert prompt.answer == "It is 2."


def test_a_column_that_is_named_is_the_only_one_looked_at(tmp_path):
  path = written(tmp_path, [json.dumps(MATH_500)])
  (prompt,) = data.read(path, answer="solution")
  assert prompt.answer == MATH["solution"]
  with pytest.raises(ValueError, match="has no 'text'; it has 'problem'"):
    data.read(path, prompt="text")


def test_only_a_last_line_is_a_final_answer(tmp_path):
  rows = [{"prompt": "a", "answer": x} for x in ("#### 7\nno", "a #### 7")]
  path = written(tmp_path, map(json.dumps, rows))
  assert [x.answer for x in data.read(path)] == [x["answer"] for x in rows]


def test_columns_may_have_other_names(tmp_path):
  row = {"question": "1+1=", "solution": 2.5, "extra": {"a": 1}, "answer": 0}
  path = written(tmp_path, [json.dumps(row)])
  assert data.read(
    path, prompt="question", answer="solution", metadata="extra"
  ) == [types.Prompt(text="1+1=", answer="2.5", metadata={"a": 1, "answer": 0})]


@pytest.mark.parametrize(
  ("line", "match"),
  [
    ("{", ":2 is no JSON"),
    ("[1]", ":2 is \\[1\\], expected an object"),
    (
      '{"query": "a", "answer": "b"}',
      ":2 has no 'prompt' or 'question' or 'problem'; it has 'query', 'answer'",
    ),
    ('{"prompt": ""}', ":2: the prompt is ''"),
    ('{"prompt": []}', ":2: the prompt is \\[\\]"),
    (
      '{"prompt": [{"role": "user"}]}',
      ":2: the prompt is .*expected some text",
    ),
    ('{"prompt": 3}', ":2: the prompt is 3"),
    ('{"prompt": "a", "answer": [1]}', ":2: the answer is \\[1\\]"),
    ('{"prompt": "a", "answer": true}', ":2: the answer is True"),
    ('{"prompt": "a", "answer": NaN}', ":2: the answer is nan"),
    ('{"prompt": "a", "metadata": 1}', ":2: metadata is 1"),
  ],
)
def test_a_row_that_is_no_prompt_is_refused_by_its_line(tmp_path, line, match):
  path = written(tmp_path, ['{"prompt": "a"}', line])
  with pytest.raises(ValueError, match=match):
    data.read(path)


def test_a_file_that_has_no_prompts_is_refused(tmp_path):
  with pytest.raises(ValueError, match="has no rows"):
    data.read(written(tmp_path, [""]))
  with pytest.raises(ValueError, match="There is no file"):
    data.read(tmp_path / "other.jsonl")
  with pytest.raises(ValueError, match="ends in .jsonl or .parquet"):
    data.read(tmp_path / "prompts.csv")


def test_prompts_of_parquet(tmp_path):
  pyarrow = pytest.importorskip("pyarrow")
  from pyarrow import parquet

  path = tmp_path / "prompts.parquet"
  rows = [
    {"prompt": CHAT, "answer": "4", "metadata": {"source": "me"}, "level": 3}
  ]
  parquet.write_table(pyarrow.Table.from_pylist(rows), path)
  assert data.read_parquet(path) == data.read(path) == PROMPTS[1:2]
  parquet.write_table(pyarrow.Table.from_pylist([{"prompt": ""}]), path)
  with pytest.raises(ValueError, match="row 1: the prompt is ''"):
    data.read(path)


def test_parquet_says_what_it_needs(tmp_path, monkeypatch):
  path = tmp_path / "prompts.parquet"
  path.touch()
  monkeypatch.setitem(sys.modules, "pyarrow", None)
  with pytest.raises(ImportError, match="needs pyarrow"):
    data.read(path)

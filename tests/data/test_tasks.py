"""Procedural prompts: pure functions, with right answers."""

from __future__ import annotations

import collections
import functools
import re
import sys
import types as std_types

import numpy as np
import pytest

from rlinf_jax import data, types

TASKS = [
  data.arithmetic,
  functools.partial(data.arithmetic, operators="+-*", num_terms=4),
  data.sorting,
  data.countdown,
]


@pytest.mark.parametrize("task_fn", TASKS)
def test_a_prompt_is_a_function_of_index_and_seed(task_fn):
  assert task_fn(3, 5) == task_fn(3, 5)
  prompts = [task_fn(i, seed) for i in range(20) for seed in range(20)]
  assert len({prompt.text for prompt in prompts}) > 350


def test_prompts_stay_what_they_were():
  # A run that is resumed after an update of this project, or of Python, must
  # see its prompts again.
  assert [task_fn(7, 1).text for task_fn in TASKS] == [
    "69+57=",
    "69-57*8*66=",
    "sort 56 83 11 5 31=",
    "make 48 from 31 39 60 4=",
  ]


@pytest.mark.parametrize(
  ("options", "pattern"),
  [
    ({}, r"\d{1,2}\+\d{1,2}="),
    ({"max_digits": 3, "operators": "-"}, r"\d{1,3}-\d{1,3}="),
    ({"min_digits": 2}, r"[1-9]\d\+[1-9]\d="),
    ({"num_terms": 3, "operators": "*+"}, r"\d+[*+]\d+[*+]\d+="),
  ],
)
def test_arithmetic_is_right(options, pattern):
  for index in range(300):
    prompt = data.arithmetic(index, 0, **options)
    assert re.fullmatch(pattern, prompt.text)
    assert prompt.answer == str(eval(prompt.text.removesuffix("=")))


def test_numbers_of_one_digit_are_half_of_those_of_up_to_two():
  counts = collections.Counter(
    prompt.metadata["terms"][0] // 10
    for prompt in data.Procedural(data.arithmetic, size=1800)
  )
  # 900 below 10, and 100 in each ten above; the deviations of binomials are
  # sqrt(1800 * 0.5 * 0.5) = 21.2 and sqrt(1800 * 0.056 * 0.944) = 9.7.
  assert 815 < counts[0] < 985
  assert all(60 < counts[tens] < 140 for tens in range(1, 10))


def test_sorting_is_right():
  lengths = set()
  for prompt in data.Procedural(data.sorting, size=300):
    items = prompt.text.removeprefix("sort ").removesuffix("=").split()
    assert prompt.answer == " ".join(sorted(items, key=int))
    lengths.add(len(items))
  assert lengths == {3, 4, 5, 6}


@pytest.mark.parametrize("num_items", [2, 3, 6])
def test_countdown_has_a_solution(num_items):
  task_fn = functools.partial(data.countdown, num_items=num_items)
  operators = set()
  for prompt in data.Procedural(task_fn, size=300):
    items, target = prompt.metadata["items"], prompt.metadata["target"]
    assert prompt.text == f"make {target} from {' '.join(map(str, items))}="
    assert eval(prompt.answer) == target
    assert 1 <= target <= 999
    assert len(items) == num_items
    operators |= set(prompt.answer) & set("+-*/")
  assert operators == set("+-*/")


@pytest.mark.parametrize(
  ("task_fn", "options", "match"),
  [
    (data.arithmetic, {"min_digits": 0}, "min_digits=0"),
    (data.arithmetic, {"min_digits": 3}, "min_digits=3, max_digits=2"),
    (data.arithmetic, {"operators": "+/"}, "operators='\\+/'"),
    (data.arithmetic, {"operators": ""}, "operators=''"),
    (data.sorting, {"min_items": 7}, "min_items=7"),
    (data.countdown, {"num_items": 1}, "num_items=1"),
    (data.countdown, {"max_value": 1000}, "max_value=1000"),
  ],
)
def test_settings_out_of_range_are_refused(task_fn, options, match):
  with pytest.raises(ValueError, match=match):
    task_fn(0, 0, **options)


def test_a_procedural_data_set_is_a_sequence():
  prompts = data.Procedural(data.sorting, size=5, seed=3)
  assert list(prompts) == [data.sorting(i, 3) for i in range(5)]
  assert prompts[-1] == prompts[4]
  assert prompts[1:3] == [prompts[1], prompts[2]]
  with pytest.raises(IndexError, match="index 5"):
    prompts[5]
  with pytest.raises(ValueError, match="size=0"):
    data.Procedural(data.sorting, size=0)


class FakeGym(std_types.ModuleType):
  """What `data.reasoning_gym` asks of the package."""

  def create_dataset(self, name, *, size, seed, **config):
    if name != "chain_sum":
      raise ValueError(f"Dataset '{name}' not registered")
    return [
      {
        "question": f"{seed} + {i}?",
        "answer": seed + i,
        "metadata": {
          "terms": (np.int64(seed), i),
          "names": {1: np.str_("a")},
          **config,
        },
      }
      for i in range(size)
    ]


def test_a_task_of_reasoning_gym_by_its_name(monkeypatch):
  monkeypatch.setitem(sys.modules, "reasoning_gym", FakeGym("reasoning_gym"))
  prompts = data.reasoning_gym(
    "chain_sum", size=3, seed=4, config={"min_terms": 2}
  )
  assert len(prompts) == 3
  assert prompts[1] == types.Prompt(
    text="4 + 1?",
    answer="5",
    metadata={
      "gym": {
        "name": "chain_sum",
        "config": {"min_terms": 2},
        "entry": "{'terms': (4, 1), 'names': {1: 'a'}, 'min_terms': 2}",
      }
    },
  )
  with pytest.raises(ValueError, match="no task 'sums'"):
    data.reasoning_gym("sums", size=3)


def test_reasoning_gym_says_how_it_is_installed(monkeypatch):
  monkeypatch.setitem(sys.modules, "reasoning_gym", None)
  with pytest.raises(ImportError, match=r"pip install -e '.\[reasoning-gym\]'"):
    data.reasoning_gym("chain_sum", size=3)


def test_the_package_itself_gives_prompts():
  pytest.importorskip("reasoning_gym")
  prompts = data.reasoning_gym("chain_sum", size=3, seed=4)
  assert [prompt.answer for prompt in prompts] == [
    str(eval(prompt.text.split(":")[-1].split("=")[0])) for prompt in prompts
  ]

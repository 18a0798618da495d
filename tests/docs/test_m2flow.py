"""The example of docs/m2flow.md runs, and keeps what the page promises."""

import pathlib
import re

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.optimised
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "m2flow.md"


@pytest.mark.slow
def test_the_example_is_planned_and_bitwise_eager():
  (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
  names = {}
  # Written as a user writes: without this project's strictness in tests.
  with (
    jax.numpy_rank_promotion("allow"),
    jax.numpy_dtype_promotion("standard"),
  ):
    exec(compile(snippet, str(PAGE), "exec"), names)
  assert names["run"].label == "bitwise"
  jax.tree.map(np.testing.assert_array_equal, names["planned"], names["eager"])

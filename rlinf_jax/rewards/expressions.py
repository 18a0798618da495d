"""Rewards for expressions with the right value."""

from __future__ import annotations

import ast
import fractions
import operator
import re

from rlinf_jax import types
from rlinf_jax.rewards import extraction

_OPERATIONS = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
  ast.Div: operator.truediv,
}
_MAX_CHARACTERS = 200
_EXPRESSION = re.compile(r"[0-9+\-*/() ]+")


def countdown(
  extract_fn: extraction.ExtractFn = extraction.whole,
) -> types.RewardFn:
  """Returns a reward of 1 for an expression that solves `data.countdown`.

  It must have the value of the metadata's "target", exactly, and each number
  of "items" once. Else the reward is 0.

  Args:
    extract_fn: finds the expression in a response.
  """

  def reward(completion: types.Completion) -> float:
    text = extract_fn(completion.response)
    if text is None or len(text) > _MAX_CHARACTERS:
      return 0.0
    if _EXPRESSION.fullmatch(text) is None:
      return 0.0
    numbers: list[int] = []
    try:
      value = _value(ast.parse(text.strip(), mode="eval").body, numbers)
    except (SyntaxError, ZeroDivisionError, _NotArithmeticError):
      return 0.0
    items = completion.metadata["items"]
    return float(
      value == completion.metadata["target"]
      and sorted(numbers) == sorted(items)
    )

  return reward


class _NotArithmeticError(Exception):
  """There is more in an expression than numbers, +, -, * and /."""


def _value(node: ast.expr, numbers: list[int]) -> fractions.Fraction:
  """Returns the value of an expression, and appends the numbers in it."""
  if isinstance(node, ast.Constant) and isinstance(node.value, int):
    numbers.append(node.value)
    return fractions.Fraction(node.value)
  if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
    left, right = _value(node.left, numbers), _value(node.right, numbers)
    return _OPERATIONS[type(node.op)](left, right)
  raise _NotArithmeticError

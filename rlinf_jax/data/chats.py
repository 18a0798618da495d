"""Prompts as the text that a model was trained to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlinf_jax import types

TemplateFn = Callable[[Sequence[Mapping[str, str]]], str]
"""Messages, each with "role" and "content" -> the text that a model continues.

A Hugging Face tokenizer's method `apply_chat_template` is one, when called with
`tokenize=False, add_generation_prompt=True`.
"""


def render(
  prompt: types.Prompt,
  template_fn: TemplateFn | None = None,
  *,
  system: str | None = None,
) -> str:
  """Returns the text of a prompt, for a tokenizer.

  Args:
    prompt: a text is a chat of one message of the role "user".
    template_fn: None gives the text as it is, for a model without a template.
    system: a message that goes before all others; a chat that begins with its
      own keeps that.

  Raises:
    ValueError: the prompt is a chat, or system is given, without a template.
  """
  if template_fn is None:
    if prompt.messages or system is not None:
      given = "a system message" if system is not None else "a chat"
      raise ValueError(
        f"Given {given} without a chat template, expected plain prompts. Use a "
        "model whose tokenizer has a template, or pass template_fn."
      )
    return prompt.text
  messages = list(prompt.messages) or [{"role": "user", "content": prompt.text}]
  if system is not None and messages[0]["role"] != "system":
    messages.insert(0, {"role": "system", "content": system})
  return template_fn(messages)

"""The program that generates by vLLM.

    python main.py CHANNEL TRAINER

CHANNEL is the number of an inherited socket, TRAINER that of the process which
started this one: with it this one ends, and all that it has started.
"""

import sys

try:
  import loop
except ModuleNotFoundError as error:
  # Before there is a channel to say it by: what is printed last is shown.
  sys.exit(
    f"{sys.executable} has no module {error.name!r}. Run `make vllm`, or give"
    " the Python of an environment that has vLLM by --rollout_python"
  )


def main() -> None:
  """Generates until the channel is closed."""
  loop.run(_make)


def _make(settings):
  import generation  # after `loop` has begun to watch the trainer

  return generation.Generator(settings)


if __name__ == "__main__":
  main()

"""The program that generates by vLLM.

    python main.py CHANNEL TRAINER

CHANNEL is the number of an inherited socket, TRAINER that of the process which
started this one: with it this one ends, and all that it has started.
"""

import loop


def main() -> None:
  """Generates until the channel is closed."""
  loop.run(_make)


def _make(settings):
  import generation  # after `loop` has begun to watch the trainer

  return generation.Generator(settings)


if __name__ == "__main__":
  main()

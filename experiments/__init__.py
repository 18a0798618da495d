"""Command lines: absl flags and wiring. Run as `python -m experiments.NAME`."""

"""Environments: pure functions of one simulation, found by name.

`envs.make("cartpole_swingup")` returns an `Env`; `envs.names()` lists what
there is. Importing this package imports no task and no simulator.
"""

from envs.registry import MakeFn, make, names, register
from envs.state import (
  Box,
  Discrete,
  Env,
  State,
  initial_state,
  next_state,
)

__all__ = [
  "Box",
  "Discrete",
  "Env",
  "MakeFn",
  "State",
  "initial_state",
  "make",
  "names",
  "next_state",
  "register",
]

"""Stages and loops: what a macro flow is written with.

A macro flow is an ordinary Python function over *stages*. It runs as it
stands, eagerly, one jitted stage at a time, under a debugger; or fused into
one program, on one device or over a mesh, with `fuse`:

    @flow.stage(items={1: 0})
    def act(params, obs_b): ...

    @flow.stage(items={1: 0}, reduces="sum")
    def grad(params, batch_b): ...

    def iteration(state, key):
      ...
      sim_b, step_tb = flow.loop(body, state.sim, key_tb)

    run = flow.fuse(iteration, donate=(0,))

A stage is one equation of the jaxpr of the flow, so that a transformation can
see it. Batch "items" are what may be divided: between granules, quanta and
devices.
"""

from rlinf_jax.flow.calls import Spec
from rlinf_jax.flow.fusion import fuse
from rlinf_jax.flow.loops import loop, sync
from rlinf_jax.flow.stages import Stage, stage

__all__ = ["Spec", "Stage", "fuse", "loop", "stage", "sync"]

"""Reinforcement learning as a transformation: see `rlinf_jax.flow`."""

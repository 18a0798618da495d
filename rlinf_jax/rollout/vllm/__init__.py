"""Generation by vLLM, in a process group that ends with this one."""

from rlinf_jax.rollout.vllm.engine import VllmEngine, WeightSync

__all__ = ["VllmEngine", "WeightSync"]

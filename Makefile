# Every target creates and updates the environment it runs in by itself.
#   make train ARGS="--env=cheetah_run --num_steps=10_000_000"
#   make test PYTHON=python3.12

ARGS ?=
PYTEST_ARGS ?=
VENV := .venv
BENCH_VENV := .venv-bench
VLLM_VENV := .venv-vllm
RUN := $(VENV)/bin/python -m

# On a machine with an NVIDIA GPU: Warp, and JAX for the CUDA that its driver and
# its chip can run (CUDA 13: from driver 580 and Turing on).
GPU = $(shell nvidia-smi --query-gpu=driver_version,compute_cap \
  --format=csv,noheader 2>/dev/null | awk -F', *' 'NR == 1 && $$1 + 0 > 0 \
  { print ($$1 + 0 >= 580 && $$2 + 0 >= 7.5) ? ",warp,gpu" : ",warp,gpu-cuda12" }')
EXTRAS ?= dev$(GPU)

# Read by libraries as they start, hence set here and in no module.
export TF_CPP_MIN_LOG_LEVEL ?= 2
ifndef MUJOCO_GL # headless rendering, where it can work
ifneq ($(shell PATH="$$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | \
  grep -F libEGL.so.1),)
export MUJOCO_GL := egl
endif
endif
export PYTHON

# Without it Brax's PPO hangs on two cores: every thread of XLA waits for work.
BENCH_XLA_FLAGS := --xla_cpu_enable_concurrency_optimized_scheduler=false

.DEFAULT_GOAL := help
.PHONY: help train reason test test-fast test-long lint format types bench \
  vllm clean setup

help: ## lists these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' \
	  $(firstword $(MAKEFILE_LIST))

train: setup ## trains a robot policy; ARGS="--help" lists the flags
	@$(RUN) experiments.embodied $(ARGS)

reason: vllm ## post-trains a tiny language model by GRPO; ARGS="--help"
	@$(RUN) experiments.reasoning \
	  $(if $(GPU),--rollout_python=$(VLLM_VENV)/bin/python) $(ARGS)

test: lint types ## lint, types, all tests but the long; PYTEST_ARGS="-k NAME"
	@$(RUN) pytest -n 2 --dist worksteal $(PYTEST_ARGS)

test-fast: setup ## the tests that are not slow, in 3.5 minutes on 2 cores
	@$(RUN) pytest -n 2 --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-long: setup ## what takes minutes to compile and is in no other target
	@$(RUN) pytest -n 2 --dist worksteal -m long $(PYTEST_ARGS)

lint: setup ## checks format and style
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .

format: setup ## formats, and mends what can be mended safely
	@$(RUN) ruff check --fix-only --quiet .
	@$(RUN) ruff format .

types: setup ## checks the types
	@$(RUN) mypy

bench: ## compares with other PPOs, from an environment of its own
	@.ci/venv $(BENCH_VENV) -r benchmarks/requirements.txt \
	  -e '.[brax$(GPU)]'
	@XLA_FLAGS="$$XLA_FLAGS $(BENCH_XLA_FLAGS)" \
	  $(BENCH_VENV)/bin/python -m benchmarks.compare_ppo $(ARGS)

vllm: setup ## installs vLLM, to generate with: on a CPU into the environment
	@.ci/vllm $(VENV) $(VLLM_VENV)

setup: ## creates or updates the environment and does nothing else
	@.ci/venv $(VENV) -e '.[$(EXTRAS)]'

clean: ## removes the environments and every cache; runs/ stays
	rm -rf $(VENV) $(BENCH_VENV) $(VLLM_VENV) build dist *.egg-info .jax_cache \
	  .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

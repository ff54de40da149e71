# Every target makes and uses its own virtual environment; a second run installs nothing.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export OMP_WAIT_POLICY ?= passive
export MPLBACKEND ?= Agg

.PHONY: help demo test lint unit interpreter soak bench docs plots gpu-check sanitize clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/'

$(STAMP): pyproject.toml setup.py
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## train on the digits data set, predict with uncertainty, write the report
	$(BIN)/python scripts/train.py configs/digits_mlp.yaml --set output_dir=checkpoints/demo --overwrite
	$(BIN)/python scripts/mc_predict.py --checkpoint checkpoints/demo --passes 100 --out results/demo --overwrite

test: lint unit interpreter  ## everything CI runs

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(STAMP)  ## the tests that need neither a GPU nor Triton's interpreter
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow and not interpreter and not gpu"

interpreter: $(STAMP)  ## the Triton kernels, on the CPU, in Triton's interpreter
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -n 2 -m "interpreter and not slow"

soak: $(STAMP)  ## longer statistical and fuzz runs
	$(BIN)/python -m pytest -q -m "slow and not interpreter and not gpu"
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -m "interpreter and slow"

bench: $(STAMP)  ## benchmarks for this machine's device, printed only
	KINETO_LOG_LEVEL=99 $(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.engine_memory
	if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	    $(BIN)/python -m benchmarks.engine_allocator; fi

docs: $(STAMP)  ## docs/api.md, from the docstrings
	$(BIN)/python docs/make_api.py

plots: $(STAMP)  ## plots of benchmarks/results
	$(BIN)/python -m benchmarks.plots

# On a GPU machine the installed torch is used: name another interpreter with GPU_PYTHON.
GPU_PYTHON ?= python3
GPU_JOBS ?= 8
BENCH_OPTIONS ?=
gpu-check:  ## GPU tests, on all GPUs, then benchmarks: one table
	failed=0; \
	$(GPU_PYTHON) -m pytest -q -p no:benchmark -n $(GPU_JOBS) -m gpu || failed=1; \
	KINETO_LOG_LEVEL=99 $(GPU_PYTHON) -m benchmarks.run $(BENCH_OPTIONS) || failed=1; \
	exit $$failed

# memcheck finds what is read or written out of bounds; without torch's cache an access beyond a
# tensor meets no other tensor's memory. racecheck finds shared memory that is read before it is
# there, or overwritten while it is read. Kernels run tens of times slower here, so small tests of
# each are chosen: tails, strides, every launcher.
SANITIZED ?= tests/ops/linear/test_exact.py tests/ops/linear/test_grouped.py
SANITIZED_TESTS ?= integer_inputs_are_exact or strided
SANITIZER ?= compute-sanitizer
sanitize:  ## GPU tests of the kernels under compute-sanitizer's memcheck and racecheck
	@command -v $(SANITIZER) >/dev/null || { echo "make sanitize needs $(SANITIZER), which comes" \
	    "with the CUDA toolkit: install it, or name it with SANITIZER=/path/to/compute-sanitizer" >&2; \
	    exit 1; }
	for tool in memcheck racecheck; do \
	    PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(SANITIZER) --tool $$tool --error-exitcode 9 \
	        $(GPU_PYTHON) -m pytest -q -p no:benchmark -m gpu -k "$(SANITIZED_TESTS)" $(SANITIZED); \
	done

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

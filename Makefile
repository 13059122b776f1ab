# Two commands matter: `make serve` and `make test`. Both make .venv first when it is missing or out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL ?=
ARGS ?=
# STRICT=1: a test that cannot run here is a failure (CI). Without it, what is left out is said loudly.
STRICT ?=

.PHONY: serve test install lint types unit browser bench soak peers gpu gpu-wheels constraints clean help

help:  ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

serve: install  ## serve the demo model on http://127.0.0.1:8000; MODEL=... serves another, ARGS="--port 9000" adds options
	@exec $(BIN)/carousel serve $(MODEL) $(ARGS)

install: $(STAMP)  ## make .venv with pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Carousel needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)"; exit 1; }
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m kernels.cpu || true
	@touch $(STAMP)

test: install browser lint types unit  ## lint, types and all tests

lint: install  ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: install  ## mypy
	@$(BIN)/mypy

unit: install  ## every test
	@CAROUSEL_STRICT=$(STRICT) $(BIN)/python -m pytest -p tests.both_ends

browser: install  ## bring a Chromium for the browser tests, if there is none
	@CAROUSEL_STRICT=$(STRICT) $(BIN)/python -m tests.chromium

bench: install  ## the CPU benchmarks; results go to benchmarks/results/
	@$(BIN)/python -m benchmarks.batching
	@$(BIN)/python -m benchmarks.http_overhead
	@$(BIN)/python -m benchmarks.people_first
	@$(BIN)/python -m benchmarks.hostile
	@$(BIN)/python -m benchmarks.linear_layers
	@$(BIN)/python -m benchmarks.cpu_attention
	@$(BIN)/python -m benchmarks.sampling
	@$(BIN)/python -m benchmarks.neighbours
	@$(BIN)/python -m benchmarks.token_latency
	@$(BIN)/python -m benchmarks.scheduler_cost
	@for part in "live --runs 5" "tenants --runs 5" "overload --runs 3" check "million --requests 125000"; do \
		$(BIN)/python -m benchmarks.scheduling $$part || exit 1; done
	@$(BIN)/python -m benchmarks.start

soak: install  ## 30 minutes of kills, leaving clients and floods beside clients whose answers are checked; ARGS="--minutes 240"
	@$(BIN)/python -m benchmarks.soak $(ARGS)

peers: install  ## compare with other servers on a CPU; sets them up first, outside the tree (5 GB, half an hour)
	@$(BIN)/python -m benchmarks.peers

# For a machine with a GPU that cannot fetch anything: its own python with torch and Triton. What the engine needs
# besides (msgspec), and the pytest that the configuration asks for, is fetched beforehand by `make gpu-wheels`, for that
# machine's Python, and travels in build/wheels.
GPU_PYTHON ?= python3
GPU_PYTHON_VERSION ?= 3.12

# What runs on a device and nowhere else the same; OUT=folder keeps a copy of the results and what the tests said there,
# CAROUSEL_COMMIT=... says which commit they are of where there is no .git.
GPU_TESTS := $(patsubst %,tests/kernels/test_%.py,attention decode_step few_rows invariant log_probs noise norm_and_gate rope_and_cache sample) \
  tests/engine/test_on_device.py
OUT ?=

# Loaded once before several processes at a time wait for a cold disk: torch, Triton, a context and the matrix library.
WARM_UP := import torch, triton; x = torch.zeros(1, 1, device="cuda" if torch.cuda.is_available() else "cpu"); x @ x

# Who waits for a device that hangs runs no signal handler: a test's time is kept by a thread, which ends the process.
gpu: SHELL := bash
gpu:  ## device tests and benchmarks on the GPU of this machine, under 8 minutes
	@if ls build/wheels/*.whl >/dev/null 2>&1; then \
	  $(GPU_PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target build/gpu-site build/wheels/*.whl; fi
	@export PYTHONPATH=build/gpu-site:.; failed=0; set -o pipefail; \
	echo "Loading torch and Triton, and compiling the CPU kernels ..."; \
	timeout --kill-after 5 35 $(GPU_PYTHON) -c '$(WARM_UP)' & \
	timeout --kill-after 5 35 $(GPU_PYTHON) -m kernels.cpu; wait; \
	echo "Device tests ..."; $(if $(OUT),mkdir -p '$(OUT)';) \
	workers=$$($(GPU_PYTHON) -c 'import xdist' 2>/dev/null && echo '-n 8'); \
	timeout --signal INT --kill-after 10 130 $(GPU_PYTHON) -m pytest -q $$workers -rfE --tb=short -o addopts= -o timeout=100 \
	  -o timeout_method=thread -o faulthandler_timeout=95 -o filterwarnings=default $(GPU_TESTS) 2>&1 | tee $(if $(OUT),'$(OUT)/tests.log') || failed=1; \
	echo "Benchmarks ..."; \
	timeout --signal INT --kill-after 10 295 $(GPU_PYTHON) -m benchmarks.gpu $(if $(OUT),--also-in '$(OUT)') || failed=1; \
	exit $$failed

gpu-wheels: install  ## fetch what `make gpu` needs on a machine without a network
	@$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --dest build/wheels --constraint constraints.txt \
	  --python-version $(GPU_PYTHON_VERSION) --implementation cp --platform manylinux_2_28_x86_64 \
	  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 msgspec pytest pytest-asyncio

constraints: install  ## pin what is installed now
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.new && mv constraints.new constraints.txt

clean:  ## remove everything that was made here
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

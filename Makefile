# Two commands matter: `make serve` and `make test`. Both make .venv first when it is missing or out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL ?=
ARGS ?=
# STRICT=1: a test that cannot run here is a failure (CI). Without it, skipped tests are listed with their reasons.
STRICT ?=
# Test processes.
JOBS ?= 2
# Marker expression that selects tests of `make test` and `make unit`, such as SELECT="not emulated".
SELECT ?=
# COVERAGE=1: also measure the share of lines of app/ and engine/ that the quick tests run, and refuse less than `fail_under`.
COVERAGE ?=
# Each worker begins with half of the tests, and takes over some of the other's when it has none left.
PYTEST = CAROUSEL_STRICT=$(STRICT) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
COVER = $(if $(COVERAGE),--cov --cov-report=term)
SELECTED = $(if $(SELECT),($(SELECT)) and )
# Hundreds of processes of the same code are started; without bytecode each of them would compile all of it.
export PYTHONDONTWRITEBYTECODE :=
# For `make sanitize`: compile the kernels with sanitizers; their runtime must be loaded first.
SANITIZE := KERNELS_CXXFLAGS="-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined" \
  ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0

# Written by npm when it has installed the packages of package-lock.json.
JS_STAMP := node_modules/.package-lock.json

.PHONY: serve model test install lint types js unit quick coverage nightly planted emulated sanitize browser docs bench soak fleet takeovers ray laws formats harness peers clients gpu-check gpu-figures gpu-wheels constraints clean help

help:  ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

serve: install  ## serve a small chat model on http://127.0.0.1:8000; MODEL=... serves another, ARGS="--port 9000" adds options
	@exec $(BIN)/carousel serve $(MODEL) $(ARGS)

model: install  ## fetch the small chat model that `make serve` serves (93 MB), if it is not there
	@$(BIN)/carousel fetch

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

js: $(JS_STAMP)  ## types and format of static/js; needs npm
	@npm run --silent check

$(JS_STAMP): package.json package-lock.json
	@command -v npm > /dev/null || { echo "make js needs npm, which comes with Node.js"; exit 1; }
	@npm ci --silent --no-audit --no-fund
	@touch $@

# With coverage the quick tests run first, since all others would be slower in a process that measures it.
unit: install  ## every test
ifeq ($(COVERAGE),)
	@$(PYTEST) $(if $(SELECT),-m "$(SELECT)")
else
	@$(PYTEST) $(COVER) -m "$(SELECTED)quick"; quick=$$?; $(PYTEST) -m "$(SELECTED)not quick" && exit $$quick
endif

quick: install  ## the tests that need no server, browser or compiler
	@$(PYTEST) $(COVER) -q -m quick

coverage:  ## the same tests, and the share of lines of app/ and engine/ that they run
	@$(MAKE) --no-print-directory quick COVERAGE=1

nightly: install browser  ## every test with all random cases and the largest sizes; an hour
	@SUITE_PROFILE=nightly $(PYTEST) --durations 40 $(if $(SELECT),-m "$(SELECT)")

planted: install  ## plant known bugs one by one, each of which a test of the suite must find; ARGS="pages stops" plants some
	@$(BIN)/python -m tests.planted $(ARGS)

emulated: install  ## GPU kernels and their launches on emulators
	@$(PYTEST) -m emulated

sanitize: install  ## the C++ kernels' tests with AddressSanitizer and UndefinedBehaviorSanitizer; needs g++
	@$(SANITIZE) CXX=g++ $(BIN)/python -m kernels.cpu
	@$(SANITIZE) CXX=g++ LD_PRELOAD="$$(g++ -print-file-name=libasan.so)" $(BIN)/python -m pytest -q \
	  tests/kernels tests/engine/models/test_fused_step.py -k "(cpu or fused_step) and not other_processors"

browser: install  ## bring a Chromium for the browser tests, if there is none
	@CAROUSEL_STRICT=$(STRICT) $(BIN)/python -m tests.chromium

docs: install  ## write the tables of options into docs/operations.md
	@$(BIN)/python -m docs.option_tables

bench: install  ## the CPU benchmarks; results go to benchmarks/results/
	@$(BIN)/python -m benchmarks.batching
	@$(BIN)/python -m benchmarks.http_overhead
	@$(BIN)/python -m benchmarks.people_first
	@$(BIN)/python -m benchmarks.hostile
	@$(BIN)/python -m benchmarks.linear_layers
	@$(BIN)/python -m benchmarks.cpu_attention
	@$(BIN)/python -m benchmarks.sampling
	@$(BIN)/python -m benchmarks.sampling_rows
	@$(BIN)/python -m benchmarks.neighbours
	@$(BIN)/python -m benchmarks.token_latency
	@$(BIN)/python -m benchmarks.scheduler_cost
	@for part in "live --runs 5" "tenants --runs 5" "overload --runs 3" check "million --requests 125000"; do \
		$(BIN)/python -m benchmarks.scheduling $$part || exit 1; done
	@$(BIN)/python -m benchmarks.start

laws: install  ## laws of the grammars and parsers of tool calls, 20,000 random cases; half an hour
	@LAW_EXAMPLES=420 $(PYTEST) -q --timeout 14400 tests/app/text/tools/test_laws.py

soak: install  ## 30 minutes of kills, leaving clients and floods beside clients whose answers are checked; ARGS="--minutes 240"
	@$(BIN)/python -m benchmarks.soak $(ARGS)

fleet: install  ## faults of one of two engines, of the network and of API processes beside clients whose answers are checked; ARGS="--rounds 5"
	@$(BIN)/python -m benchmarks.fleet_faults $(ARGS)
	@$(BIN)/python -m benchmarks.api_takeovers --kills 10

takeovers: install  ## 50 kills of one of two API processes beside clients that resume their answers; ARGS="--kills 5"
	@$(BIN)/python -m benchmarks.api_takeovers $(ARGS)

formats: install  ## formats of answers: their cost, validity of 500 schemas, the JSON-Schema-Test-Suite; 30 minutes
	@$(BIN)/python -m app fetch
	@for part in suite valid cost; do $(BIN)/python -m benchmarks.formats $$part || exit 1; done

harness: install  ## lm-eval's log-likelihoods on this server and on transformers
	@$(BIN)/python -m app fetch
	@$(BIN)/python -m benchmarks.harness

peers: install  ## compare with other servers on a CPU; sets them up first, outside the tree (5 GB, half an hour)
	@$(BIN)/python -m benchmarks.peers

ray: install  ## engines and API processes in a real Ray cluster on this machine, with kills; installs Ray, a minute
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,ray]'
	@mkdir -p build && umask 077 && $(BIN)/python -c 'import secrets; print(secrets.token_hex())' > build/ray-token
	@RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$(CURDIR)/build/ray-token $(BIN)/python -m pytest tests/ray_cluster/service.py $(ARGS)

clients: install browser  ## try clients of other projects, installed outside the tree (18 GB), and write their table; ARGS="AI LangChain" tries some
	@$(BIN)/python -m tests.clients $(ARGS)

# For a machine with a GPU for minutes, and without a network: its own Python with torch and Triton. All other packages are
# fetched beforehand by `make gpu-wheels`, for that machine's Python, and travel in build/wheels. ARGS are those of
# `python -m benchmarks.gpu_parts`, such as --no-early-launch; OUT is a folder for logs and results.
GPU_PYTHON ?= python3
GPU_PYTHON_VERSION ?= 3.12
GPU_PACKAGES := starlette uvicorn sse-starlette websockets httptools pydantic pydantic-core annotated-types \
  typing-extensions typing-inspection python-multipart msgspec llguidance sortedcontainers \
  prometheus-client tomlkit pytest pytest-asyncio hypothesis
OUT ?= build/gpu

gpu-check:  ## on a machine with a GPU: ceilings, device tests, one server, in at most 330 s
	@$(GPU_PYTHON) -m benchmarks.gpu_parts check --out '$(OUT)' $(ARGS)

gpu-figures:  ## on a machine with a GPU: the engine against its ceilings, in at most 520 s
	@$(GPU_PYTHON) -m benchmarks.gpu_parts figures --out '$(OUT)' $(ARGS)

gpu-wheels: install  ## fetch packages for both on a machine without a network
	@$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --dest build/wheels --constraint constraints.txt \
	  --python-version $(GPU_PYTHON_VERSION) --implementation cp --platform manylinux_2_31_x86_64 \
	  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 $(GPU_PACKAGES)

constraints: install  ## pin what is installed now
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.new && mv constraints.new constraints.txt

clean:  ## remove everything that was made here
	rm -rf $(VENV) node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# Everything a developer runs. `make` alone lists it. Needs Python 3.11+ and make; `setup` brings the rest into .venv.

PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synced
PYTEST := $(BIN)/pytest
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# A process for each core; two where tests wait for brokers most of the time, but for the slow ones: some of them say how
# late a job may be. Each has a broker of its own, whose start costs 3 s of a core. Who gets which: tests/conftest.py.
SPREAD := --dist loadgroup --no-loadscope-reorder
SIDE_BY_SIDE := -n $(CORES) $(SPREAD)
WAITING := -n $(shell echo $$((2 * $(CORES)))) $(SPREAD)
# Tests of core, and of the protocol upon it: they reach every branch of core. Tracing the others too doubles their time.
OF_CORE := tests/unit/core $(wildcard tests/unit/test_*.py)
# Files that tests make are nobody's, and a disk is asked to keep thousands of them: in memory, where there is room.
IN_MEMORY := $(shell grep -qs ' /dev/shm .*noexec' /proc/mounts || df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 3e6 { print "/dev/shm" }')
ifneq ($(IN_MEMORY),)
test slow coverage unit conformance integration acceptance nemesis kill-points browser: export TMPDIR := $(IN_MEMORY)
endif
unexport PYTHONDONTWRITEBYTECODE # or each of a thousand processes compiles all that it imports

.DEFAULT_GOAL := help
.PHONY: help setup demo dev test slow check lint format type layers unit conformance sim integration acceptance nemesis kill-points bench coverage wheel clean browser pictures

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## bring everything into .venv (uv included), as locked

$(STAMP): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@UV_PROJECT_ENVIRONMENT=$(VENV) UV_PYTHON_DOWNLOADS=never $(BIN)/uv sync --quiet --locked --inexact --all-extras --python $(BIN)/python
	@touch $@

demo: $(STAMP) ## the product's main job on real input against a real broker
	@$(BIN)/dueline demo

dev: $(STAMP) ## a real Kafka, a dispatcher and a worker, until Ctrl-C
	@$(BIN)/dueline dev

test: coverage ## unit (core with coverage), conformance, short simulation, integration, acceptance; but for the slow ones
	@$(PYTEST) tests --ignore=tests/nemesis --ignore=tests/browser $(OF_CORE:%=--ignore=%) $(WAITING) -m "not slow" --durations=15

slow: $(STAMP) ## what `make test` leaves out: one broker's worth of crashes, protocols and known holes
	@$(PYTEST) tests --ignore=tests/nemesis --ignore=tests/browser $(SIDE_BY_SIDE) -m slow --durations=15

check: lint type layers test slow browser sim ## everything that must be green before a commit lands

lint: $(STAMP) ## ruff: format and rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

format: $(STAMP) ## let ruff put the code in shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

type: $(STAMP) ## mypy --strict
	@$(BIN)/mypy

layers: $(STAMP) ## import-linter: low layers never import high ones
	@$(BIN)/lint-imports

unit: $(STAMP) ## unit tests alone
	@$(PYTEST) tests/unit $(SIDE_BY_SIDE)

conformance: $(STAMP) ## one suite over the real adapters and their in-memory twins
	@$(PYTEST) tests/conformance

sim: $(STAMP) ## the full simulation: DUELINE_SIM_SEEDS seeds (default 2000), in a process for each core
	@PYTHONPATH=tests $(BIN)/python -m sim

integration: $(STAMP) ## against the real embedded broker
	@$(PYTEST) tests/integration

acceptance: $(STAMP) ## the command line in subprocesses
	@$(PYTEST) tests/acceptance

browser: $(STAMP) ## the console in a real Chromium, which must be installed (Debian: apt-get install chromium)
	@$(PYTEST) tests/browser $(SIDE_BY_SIDE) --durations=5

pictures: $(STAMP) ## the pictures of docs/console.md, from the installation of the browser tests
	@PYTHONPATH=tests $(BIN)/python -m browser.pictures docs/pictures

nemesis: $(STAMP) ## dispatchers and workers killed and frozen at every step; rules left out that must be caught
	@$(PYTEST) tests/nemesis

kill-points: $(STAMP) ## six of the 24 kill points, other ones with each commit
	@DUELINE_KILL_POINT_TURN=$${DUELINE_KILL_POINT_TURN:-$$(git rev-list --count HEAD 2>/dev/null || echo $$(($$(date +%s) / 86400)))} \
		$(PYTEST) tests/nemesis/test_kill_points.py

bench: $(STAMP) ## each figure of this machine and store beside a bare loop
	@$(BIN)/dueline bench

coverage: $(STAMP) ## unit tests of core and the protocol with branch coverage; core must stay at 100 %
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run -m pytest $(OF_CORE) $(SIDE_BY_SIDE) -m "not slow"
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --include='pipeline/core/*' --fail-under=100

wheel: $(STAMP) ## build the wheel into dist/
	@$(BIN)/uv build --quiet --wheel --out-dir dist

clean: ## remove what the other targets made, .venv included
	@rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*

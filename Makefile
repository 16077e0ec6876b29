# The targets that a user or developer needs; `make help` lists them.
#
# Set-up happens in .venv and is remembered by stamps: what did not change is not done again.

PYTHON ?=
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.set-up
BENCH_STAMP := $(VENV)/.set-up-bench
DLIO_STAMP := $(VENV)/.set-up-dlio
HEAVY_STAMP := $(VENV)/.set-up-heavy
PYTEST_ARGS ?=
# Most tests wait for a daemon, a clock or a disk: more processes than the two cores of a small machine.
WORKERS ?= 4
SOAK_LISTS ?= 300

.PHONY: help setup test test-all soak check format demo bench bench-dlio clean
.DEFAULT_GOAL := help

help:
	@echo 'make setup   system packages (as root), .venv with volfs, the client and the tools'
	@echo 'make demo    two mounts of one directory, each promise shown'
	@echo 'make test    setup, check and the whole test suite in WORKERS (4) processes; PYTEST_ARGS="-k name" for a part'
	@echo 'make test-all  the same with the tests that take minutes or heavy packages (Spark needs Java 17)'
	@echo 'make soak    SOAK_LISTS (300) lists simulated, a store that hangs for a minute, then daemons killed for'
	@echo '             SOAK_MINUTES (20) and what they acknowledged compared; SOAK_SEED repeats'
	@echo 'make check   ruff, mypy --strict, import-linter'
	@echo 'make format  let ruff rewrite the sources'
	@echo 'make bench   volfs and the peers that are installed at the same work over a slow store, as root; needs'
	@echo '             19 GB in BENCH_DIR (/tmp) and an hour; BENCH_ONLY=cp,sequential BENCH_PEERS=volfs,rclone'
	@echo '             BENCH_ROUNDS (5) BENCH_SCALE (1); JSON and plot in BENCH_OUTPUT (build/bench)'
	@echo 'make bench-dlio  DLIO (MLPerf-like) on a mount of a local directory and on the directory itself, as root'
	@echo 'make clean   remove .venv and caches'

setup: $(STAMP)

$(STAMP): pyproject.toml client/pyproject.toml .ci/system-packages
	python=$$(PYTHON='$(PYTHON)' .ci/system-packages) && \
	{ [ -x $(PY) ] && $(PY) -c 'import sys' || "$$python" -m venv --clear $(VENV); }
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --editable ./client
	@touch $@

check: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

test: $(STAMP) check
	$(PY) -m pytest -n $(WORKERS) --dist worksteal -m 'not long' $(PYTEST_ARGS)

test-all: $(HEAVY_STAMP) check
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

soak: $(STAMP)
	VOLFS_SIMULATION_EXAMPLES=$(SOAK_LISTS) $(PY) -m pytest --quiet tests/simulation
	VOLFS_HANG_S=60 $(PY) -m pytest --quiet tests/mount/test_hanging_store.py
	$(PY) -m tests.soak

demo: $(STAMP)
	$(PY) -m tests.demo

bench: $(BENCH_STAMP)
	$(PY) -m tests.bench

bench-dlio: $(DLIO_STAMP)
	BENCH_ONLY=dlio $(PY) -m tests.bench

$(BENCH_STAMP): $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@touch $@

# Its own requirements cannot be had from one index, and its PyTorch half does without most of them; later
# versions of pydftracer lack what it imports.
$(DLIO_STAMP): $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev,dlio]'
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps dlio-benchmark==2.0.0 pydftracer==1.0.2
	@touch $@

$(HEAVY_STAMP): $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev,heavy]'
	@touch $@

clean:
	rm -rf $(VENV) build client/build *.egg-info client/src/*.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

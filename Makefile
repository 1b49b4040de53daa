# All targets set up the environment they need on first use.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Stages of the environment, each installed on first use: what running needs, and then what developers use.
READY  := $(VENV)/.ready
DEV    := $(VENV)/.dev
TORCH  := $(VENV)/.torch
BENCH  := $(VENV)/.bench
FRESH  := $(VENV)/.kernels
WARM   := $(VENV)/.test-kernels
LOWEST := .venv-lowest

INSTALL := $(BIN)/python scripts/install.py

# Where it is set, every process compiles all Python source that it imports, which takes longer than the imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-slow bench bench-scaling bench-cohort gpu bench-selection lint clean
help:
	@echo "make demo       simulate a heart-failure cohort, fit it, write demo/report.html"
	@echo "make check      lint, types, import layers and the quick tests (ARGS=tests/report for others)"
	@echo "make test       lint, types, import layers, tests, doctests"
	@echo "make test-slow  long tests: kill loops, many seeds, a million patients"
	@echo "make test-attack  damaged files, hostile input and interruptions at random moments; minutes"
	@echo "make test-lowest  tests with the lowest versions that pyproject.toml allows"
	@echo "make wheel      build wheel and sdist in dist/"
	@echo "make bench      time and memory compared with tensorly, matcouply and parafac2 (ARGS=--quick for a short run)"
	@echo "make bench-scaling  time per iteration as a function of data, rank and threads"
	@echo "make bench-startup  seconds to compile, and to start a process"
	@echo "make bench-cohort   fifty million events to a saved cohort: seconds and memory"
	@echo "make bench-selection  how often each rule selects the true rank; 900 fits on the DE-SynPUF slice"
	@echo "make bench-federated  federated and pooled fits: differences, bytes, starts, noise"
	@echo "make bench-tensors  the tensor methods: seconds an iteration and memory, ten million non-zeros"
	@echo "make bench-disk  a cohort four times larger than its memory limit: seconds, memory, bytes of disk"
	@echo "make docs       build the documentation in site/"
	@echo "make gpu        tests and benchmark on a GPU"
	@echo "make clean      remove everything that make created"

setup: $(READY)
$(READY): pyproject.toml constraints.txt scripts/install.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "phenotaste needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -q && apt-get install -yq python3-venv; \
	  else echo "please run: sudo apt-get install python3-venv"; exit 1; fi
	@echo "installing what running needs ..."
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e .
	@touch $@

$(DEV): $(READY)
	@echo "installing the developers' tools ..."
	@$(INSTALL) -e '.[dev]'
	@touch $@

# Compiled before the tests, so that their workers need not do so at the same time.
$(FRESH): $(READY) $(shell find src/phenotaste/core -name "*.py")
	@echo "compiling the kernels ..."
	@nice $(BIN)/python -m compileall -qq -x /tests/ $(VENV)/lib & \
	  $(BIN)/phenotaste demo --patients 60 --out $(VENV)/first-run --json > /dev/null; failed=$$?; wait; exit $$failed
	@touch $@

# What most tests need besides.
$(WARM): $(FRESH) scripts/compile_kernels.py
	@$(BIN)/python scripts/compile_kernels.py
	@touch $@

demo: $(FRESH)
	$(BIN)/phenotaste demo --out demo

# The tests start their own PostgreSQL server and open the review page in Debian's Chromium; without these they fail in
# CI and are skipped elsewhere.
.PHONY: debian
debian:
	@missing=""; ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || missing="postgresql"; \
	  test -x /usr/bin/chromium || missing="$$missing chromium"; \
	  if [ -z "$$missing" ]; then exit 0; fi; \
	  if [ "$$(id -u)" = 0 ]; then echo "installing $$missing ..."; apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends $$missing > /dev/null; \
	  else echo "for all tests, please run: sudo apt-get install $$missing"; fi

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Only the recurrent baselines need torch. The version is pinned because others may install gigabytes of GPU libraries;
# and pip installs it, because uv does not search the folders of wheels that pip is set up for.
$(TORCH): $(DEV)
	$(BIN)/pip install -q --disable-pip-version-check --no-compile -c constraints.txt torch==2.13.0
	@touch $@

# The mathematics, cohorts, files and the estimator: under 90 seconds on two cores. ARGS= names others.
QUICK := $(addprefix tests/,core storage cohort simulate) $(filter-out tests/test_packaging.py,$(wildcard tests/test_*.py))
# $(AT_ONCE) makes what does not depend on each other at the same time: the kernels beside lint, types and downloads.
AT_ONCE := @$(MAKE) --no-print-directory -j
.PHONY: check
check: $(DEV)
	$(AT_ONCE) lint $(WARM)
	$(BIN)/pytest -q -n 2 -m "not slow and not attack" $(or $(ARGS),$(QUICK))

test: $(DEV)
	$(AT_ONCE) lint debian $(TORCH) $(WARM)
	$(BIN)/pytest -n 2 -m "not slow and not attack"

.PHONY: test-attack
test-attack: $(DEV) $(WARM)
	$(BIN)/pytest -m attack tests

test-slow: $(DEV)
	$(AT_ONCE) debian $(TORCH) $(WARM)
	$(BIN)/pytest -m slow

# The packages for the tests, without anndata and ehrdata: with them pip did not resolve the versions in ten minutes.
TOOLS := pytest hypothesis polars 'meds>=0.4,<0.5' playwright tensorly matcouply pyyaml
# The lowest versions declared in pyproject.toml, in a separate environment, with the package installed as by users.
.PHONY: test-lowest
test-lowest: $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest -q -m "not slow and not gpu and not attack" -o addopts="-ra --strict-markers" \
	  --ignore=tests/ecosystem --ignore=tests/docs $(or $(ARGS),tests)

$(LOWEST)/.ready: pyproject.toml scripts/lowest.py $(shell find src -name '*.py')
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) scripts/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/pip install -q --disable-pip-version-check -c $(LOWEST)/constraints.txt '.[dask]' $(TOOLS)
	@touch $@

# Warnings are errors, as in the tests. Open site/index.html, or run mkdocs serve.
.PHONY: docs
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# See the release checklist in CONTRIBUTING.md.
.PHONY: wheel
wheel: $(DEV)
	rm -rf dist
	$(BIN)/python -m build --no-isolation

$(BENCH): $(READY)
	@$(INSTALL) -e '.[bench]'
	@touch $@

bench: $(BENCH) $(FRESH)
	$(BIN)/python -m benchmarks.run $(ARGS)

bench-scaling: $(BENCH) $(FRESH)
	$(BIN)/python -m benchmarks.scaling $(ARGS)

# Runs from src/ with the python3 that has torch; installs nothing.
gpu:
	@export PYTHONPATH=src:. PYTHONUNBUFFERED=1; failed=0; \
	  $(PYTHON) -m pytest -m gpu -p no:cacheprovider -o addopts="-ra --strict-markers" tests/engines/test_cuda_engine.py || failed=1; \
	  $(PYTHON) -m benchmarks.gpu $(ARGS) || failed=1; exit $$failed

.PHONY: bench-disk
bench-disk: $(FRESH)
	$(BIN)/python -m benchmarks.disk $(ARGS)

.PHONY: bench-tensors
bench-tensors: $(FRESH)
	$(BIN)/python -m benchmarks.tensors $(ARGS)

.PHONY: bench-startup
bench-startup: $(READY)
	$(BIN)/python -m benchmarks.startup

bench-cohort: $(READY)
	$(BIN)/python -m benchmarks.cohort $(ARGS)

.PHONY: bench-federated
bench-federated: $(FRESH)
	$(BIN)/python -m benchmarks.federated $(ARGS)

bench-selection: $(FRESH)
	$(BIN)/python -m benchmarks.selection $(ARGS)

clean:
	rm -rf $(VENV) $(LOWEST) demo dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Two commands matter: `make run` and `make test`. `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Hashes for everything, and builds (ours, and pyspark's sdist) with the locked setuptools instead of a fetched one.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation
LOCKED := $(INSTALL) --require-hashes

BUILD := from setuptools import build_meta as b; b.build_sdist("dist"); b.build_wheel("dist")

EXTRAS := fast arrow nats dns spark lakehouse metrics experiments plan postgres peers test check packages lock
# What the default suite uses; the other extras have locks too and are installed by those who want them.
SUITE := fast arrow nats dns spark lakehouse metrics experiments postgres test
LOCKS := $(foreach extra,$(SUITE),requirements/$(extra).txt)

.PHONY: help run test check format campaign bench bench-compare experiments mutants lock dist java clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

run: $(VENV)/installed-nats $(VENV)/installed-fast $(VENV)/installed-spark java  ## install what is needed and run the main job
	$(BIN)/python examples/agree.py

test: $(VENV)/installed-suite java  ## the whole default test suite, with the time per room
	$(BIN)/python -m pytest -n 3 --no-loadscope-reorder

check: $(VENV)/installed-suite $(VENV)/installed-check java  ## format, lint, import rules, types, tidy, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m pytest -n 3 --no-loadscope-reorder

format: $(VENV)/installed-check  ## rewrite the sources in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

campaign: $(VENV)/installed-suite java  ## the long runs that the default suite leaves out; goes on where it was stopped
	UNISONO_HYPOTHESIS=campaign $(BIN)/python -m pytest -n 3 --no-loadscope-reorder -m campaign --resume $(ARGS)

mutants: $(VENV)/installed-suite  ## plant every listed bug in a copy of the sources; its tests must fail; goes on likewise
	$(BIN)/python -m tests.mutants.runner $(ARGS)

bench: $(VENV)/installed-suite  ## run every benchmark and append its rows to benchmarks/results
	$(BIN)/unisono bench all

bench-compare: $(VENV)/installed-suite  ## run every benchmark and show ratios to the last row, appending nothing
	$(BIN)/unisono bench all --compare

experiments: $(VENV)/installed-suite  ## every figure: tables, pictures, paper versus ours, into experiments/
	$(BIN)/unisono experiment all

lock: $(VENV)/installed-lock  ## remake requirements/*.txt, all with the same versions
	$(BIN)/python requirements/lock.py $(EXTRAS)

dist: $(VENV)/installed-core  ## a wheel and a source archive, into dist/
	rm -rf dist build
	$(BIN)/python -c '$(BUILD)' > /dev/null
	rm -rf build
	@ls dist

java:
	@.ci/java

clean:  ## remove the virtual environment and the caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("unisono needs Python 3.11 or newer; try: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV) || { .ci/apt python3-venv && $(PYTHON) -m venv $(VENV); }

$(VENV)/installed-core: requirements/build.txt requirements/core.txt pyproject.toml | $(BIN)/python
	$(LOCKED) -r requirements/build.txt
	$(LOCKED) -r requirements/core.txt
	$(INSTALL) --no-deps -e .
	@touch $@

$(VENV)/installed-suite: $(LOCKS) $(VENV)/installed-core
	$(LOCKED) $(foreach lock,$(LOCKS),-r $(lock))
	@touch $@

$(VENV)/installed-%: requirements/%.txt $(VENV)/installed-core
	$(LOCKED) -r $<
	@touch $@

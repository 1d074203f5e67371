# `make train` and `make test` are the two commands a new machine needs: each makes .venv and installs the pinned versions itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help train test quick check format picture bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[all]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[all,dev]'
	@touch $@ $(VENV)/.run

train: $(VENV)/.run ## the main job, end to end, no download
	$(BIN)/lowtide train

test: $(VENV)/.dev ## every test
	$(BIN)/python -m pytest -n 2 -m "not serial"
	$(BIN)/python -m pytest -m serial

quick: $(VENV)/.dev ## the tests that take seconds
	$(BIN)/python -m pytest -n 2 -m "not slow and not serial" -q

check: $(VENV)/.dev ## format, lint, types, layers, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

format: $(VENV)/.dev ## rewrite files in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

picture: $(VENV)/.dev ## RSS over time of the known cures, drawn by memory-profiler's counter
	$(BIN)/python -m benchmarks.picture

bench: $(VENV)/.dev ## every benchmark, each figure beside its baseline
	$(BIN)/python -m benchmarks.run

clean: ## what the other targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info

# Every job is one target; CI calls these and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
MODEL ?= smollm2-135m
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help serve build test lint types

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -U pip

# Native sources or the project's own metadata changed: install again (the build folder is kept, so it is quick).
SOURCES := $(wildcard forno/kernels/cpu/src/*.* forno/kernels/cpu/src/*/*.*)
$(VENV)/.installed: pyproject.toml CMakeLists.txt $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install -q "scikit-build-core>=0.10" "nanobind>=2.4" ninja
	$(BIN)/python -m pip install -q --no-build-isolation -e ".[test]"
	@touch $@

build: $(VENV)/.installed ## Make .venv and build the native module

serve: build ## Serve MODEL on PORT (extra flags in ARGS)
	@$(BIN)/forno serve --model $(MODEL) --port $(PORT) $(ARGS)

test: build ## Run the fast tests
	@$(BIN)/python -m pytest

lint: $(BIN)/python ## Check style with ruff
	@$(BIN)/python -m pip install -q ruff
	$(BIN)/ruff check forno tests benchmarks
	$(BIN)/ruff format --check forno tests benchmarks

types: build ## Check types with mypy
	@$(BIN)/python -m pip install -q mypy
	$(BIN)/mypy

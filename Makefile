# Every job is one target; CI calls these and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
MODEL ?= smollm2-135m
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help serve build test test-slow test-hf format lint types sanitize bench bench-llamacpp bench-accuracy bench-kernels lm-eval clean

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

test-slow: build ## Run the tests that take minutes
	@$(BIN)/python -m pytest -m slow

$(VENV)-hf/.installed: pyproject.toml CMakeLists.txt $(SOURCES)
	$(PYTHON) -m venv $(VENV)-hf
	$(VENV)-hf/bin/python -m pip install -q -U pip
	$(VENV)-hf/bin/python -m pip install -q "scikit-build-core>=0.10" "nanobind>=2.4" ninja
	$(VENV)-hf/bin/python -m pip install -q --no-build-isolation -e ".[test,hf]" -C build-dir=build/hf
	@touch $@

test-hf: $(VENV)-hf/.installed ## Compare with transformers (installs torch beside .venv)
	@$(VENV)-hf/bin/python -m pytest -m hf

format: $(BIN)/python ## Rewrite sources in the project's style
	@$(BIN)/python -m pip install -q ruff
	$(BIN)/ruff check --fix forno tests benchmarks
	$(BIN)/ruff format forno tests benchmarks

lint: $(BIN)/python ## Check style with ruff
	@$(BIN)/python -m pip install -q ruff
	$(BIN)/ruff check forno tests benchmarks
	$(BIN)/ruff format --check forno tests benchmarks

types: build ## Check types with mypy
	@$(BIN)/python -m pip install -q mypy
	$(BIN)/mypy

# The native tests once more, against a build with address and undefined-behaviour sanitizers.
# libstdc++ comes with it: the sanitizer must find the real __cxa_throw when Python starts, before our module loads.
ASAN := $(shell $(CXX) -print-file-name=libasan.so 2>/dev/null) $(shell $(CXX) -print-file-name=libstdc++.so.6 2>/dev/null)
sanitize: build ## Run the native tests under sanitizers
	@$(BIN)/cmake --version >/dev/null 2>&1 || $(BIN)/python -m pip install -q cmake
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DFORNO_SANITIZE=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python >/dev/null
	$(BIN)/cmake --build build/sanitize
	LD_PRELOAD="$(ASAN)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 HYPOTHESIS_PROFILE=sanitize \
	  $(BIN)/python -m pytest --native $$(ls build/sanitize/_native*.so) tests/kernels tests/runner

# Measurements (benchmarks/BENCHMARKS.md); flags of each script in ARGS. Peers live outside the repository.
bench: build ## Measure prefill and decode next to what the machine allows
	@$(BIN)/python -m benchmarks.engine --model $(MODEL) $(ARGS)

bench-llamacpp: build ## Compare with llama.cpp built natively, in one run (10 minutes; the first time builds it)
	@$(BIN)/cmake --version >/dev/null 2>&1 || $(BIN)/python -m pip install -q cmake
	@$(BIN)/python -m benchmarks.compare --model $(MODEL) $(ARGS)

bench-accuracy: build ## Compare perplexity and KL against fp32 with llama.cpp's
	@$(BIN)/cmake --version >/dev/null 2>&1 || $(BIN)/python -m pip install -q cmake
	@$(BIN)/python -m benchmarks.accuracy --model $(MODEL) $(ARGS)

bench-kernels: build ## Measure single kernels against their ceilings
	@for script in benchmarks/kernels/[a-z]*.py; do echo "$$script"; $(BIN)/python -m "$$(echo $${script%.py} | tr / .)" || exit 1; done

# Needs a running server (make serve). lm-eval tokenizes through the server, so it needs no Hub and no torch.
LM_EVAL := .venv-lm-eval/bin
$(LM_EVAL)/lm_eval:
	$(PYTHON) -m venv .venv-lm-eval
	$(LM_EVAL)/python -m pip install -q "lm_eval[api]>=0.4.9"

lm-eval: $(LM_EVAL)/lm_eval ## Run a small lm-eval task against the server on PORT
	HF_DATASETS_OFFLINE=1 $(LM_EVAL)/lm_eval run --model local-completions --include_path benchmarks/lm_eval \
	  --tasks common_sense,finish --batch_size 5 \
	  --model_args model=$(MODEL),base_url=http://127.0.0.1:$(PORT)/v1/completions,tokenizer_backend=remote,num_concurrent=4

clean: ## Remove everything that was built
	rm -rf $(VENV) build dist

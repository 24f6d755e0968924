# Every job is one target; CI calls these and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
MODEL ?= smollm2-135m
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help serve build test test-slow test-hf test-prometheus format lint types sanitize bench bench-qwen bench-peers bench-llamacpp bench-accuracy bench-codecs bench-kernels bench-steps bench-counts bench-streaming bench-recording bench-explained lm-eval clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# Native sources or the project's own metadata changed: install again (the build folder is kept, so it is quick).
SOURCES := $(wildcard forno/kernels/cpu/src/*.* forno/kernels/cpu/src/*/*.*)

%/bin/python:
	$(PYTHON) -m venv $*
	$@ -m pip install -q -U "pip>=25.1"
.PRECIOUS: %/bin/python

$(VENV)/.installed: pyproject.toml CMakeLists.txt $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install -q --group build
	@echo "Building the native kernels: a few minutes the first time"
	$(BIN)/python -m pip install -q --no-build-isolation -e ".[test]"
	@touch $@

build: $(VENV)/.installed ## Make .venv and build the native module

serve: build ## Serve MODEL on PORT (more flags in ARGS)
	@$(BIN)/forno serve --model $(MODEL) --port $(PORT) $(ARGS)

test: build ## Run the fast tests
	@$(BIN)/python -m pytest

test-slow: build ## Run the tests that take minutes
	@$(BIN)/python -m pytest -m slow

# An environment and a build folder of its own: torch stays out of the one that serves.
HF := $(VENV)-hf
$(HF)/.installed: pyproject.toml CMakeLists.txt $(SOURCES) | $(HF)/bin/python
	$(HF)/bin/python -m pip install -q --group build
	$(HF)/bin/python -m pip install -q --no-build-isolation -e ".[test,hf]" -C build-dir=build/hf
	@touch $@

test-hf: $(HF)/.installed ## Compare with transformers (installs torch beside .venv)
	@$(HF)/bin/python -m pytest -m hf

# Debian's package has the server and promtool; it is not installed here.
test-prometheus: build ## Run deploy/'s rules and dashboard in a real Prometheus
	@command -v prometheus promtool >/dev/null || { echo "prometheus is missing: apt-get install prometheus" >&2; exit 1; }
	@$(BIN)/python -m pytest -m prometheus

format: | $(BIN)/python ## Rewrite sources in the project's style
	@$(BIN)/python -m pip install -q --group lint
	$(BIN)/ruff check --fix forno tests benchmarks deploy
	$(BIN)/ruff format forno tests benchmarks deploy

lint: | $(BIN)/python ## Check style with ruff
	@$(BIN)/python -m pip install -q --group lint
	$(BIN)/ruff check forno tests benchmarks deploy
	$(BIN)/ruff format --check forno tests benchmarks deploy

types: build ## Check types with mypy
	@$(BIN)/python -m pip install -q --group types
	$(BIN)/mypy

# The native tests once more, against a build with address and undefined-behaviour sanitizers.
# libstdc++ comes with it: the sanitizer must find the real __cxa_throw when Python starts, before our module loads.
ASAN = $(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libstdc++.so.6)
sanitize: build ## Run the native tests under sanitizers
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DFORNO_SANITIZE=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python >/dev/null
	$(BIN)/cmake --build build/sanitize
	LD_PRELOAD="$(ASAN)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/python -m pytest --native $$(ls build/sanitize/_native*.so) tests/kernels tests/runner

# Measurements (benchmarks/BENCHMARKS.md); flags of each script in ARGS. Peers live outside the repository.
bench: build ## Measure prefill and decode next to what the machine allows
	@$(BIN)/python -m benchmarks.engine --model $(MODEL) $(ARGS)

bench-qwen: build ## Measure every weight format on a model of Qwen2.5-0.5B's shape (makes it first)
	@$(BIN)/python -m benchmarks.formats $(ARGS)

bench-peers: build ## Compare with llama.cpp, OpenVINO, vLLM and transformers (half an hour or more; the first time sets them up)
	@$(BIN)/python -m benchmarks.compare --model $(MODEL) $(ARGS)

LLAMACPP := forno,llama.cpp,llama.cpp Q4_0,llama.cpp BF16
bench-llamacpp: build ## Compare with llama.cpp alone (10 minutes; the first time builds it)
	@$(BIN)/python -m benchmarks.compare --model $(MODEL) --engines "$(LLAMACPP)" --served "$(LLAMACPP)" \
	  --measures prefill-512,generate-128,decode-8,decode-32,start,chat-1,chat-8,chat-32 $(ARGS)

bench-accuracy: build ## Compare perplexity and KL against fp32 with llama.cpp's
	@$(BIN)/python -m benchmarks.accuracy --model $(MODEL) $(ARGS)

bench-codecs: build ## Compare every weight format and cache type with fp32
	@$(BIN)/python -m benchmarks.codecs --model $(MODEL) $(ARGS)

bench-kernels: build ## Measure every kernel against its ceiling (2 minutes with AVX-512; ARGS="--quick" or "--isa avx2")
	@$(BIN)/python -m benchmarks.kernels $(ARGS)

bench-steps: build ## Measure how far predicted step times are off (ARGS="--isa avx2"; benchmarks/step_model.py fits them)
	@$(BIN)/python -m benchmarks.step_model measure --model $(MODEL) $(ARGS)

bench-counts: build ## Check every kernel's instruction count against the table (ARGS="--update" makes it anew)
	@$(BIN)/python -m benchmarks.counts $(ARGS)

bench-streaming: build ## Measure what streaming costs besides the kernels
	@$(BIN)/python -m benchmarks.streaming --model $(MODEL) $(ARGS)

# Needs a running server (make serve). lm-eval tokenizes through the server, so it needs no Hub and no torch.
LM_EVAL := $(VENV)-lm-eval
$(LM_EVAL)/bin/lm_eval: | $(LM_EVAL)/bin/python
	$(LM_EVAL)/bin/python -m pip install -q "lm_eval[api]>=0.4.9"

bench-recording: build ## Measure what recording steps and requests costs, on against off
	@$(BIN)/python -m benchmarks.recording --model $(MODEL) $(ARGS)

bench-explained: build ## Hold explanations of 200 random requests against what their clients measured
	@$(BIN)/python -m benchmarks.explained --model $(MODEL) $(ARGS)

lm-eval: $(LM_EVAL)/bin/lm_eval ## Run a small lm-eval task against the server on PORT
	HF_DATASETS_OFFLINE=1 $(LM_EVAL)/bin/lm_eval run --model local-completions --include_path benchmarks/lm_eval \
	  --tasks common_sense,finish --batch_size 5 \
	  --model_args model=$(MODEL),base_url=http://127.0.0.1:$(PORT)/v1/completions,tokenizer_backend=remote,num_concurrent=4

clean: ## Remove everything that was built
	rm -rf $(VENV) $(HF) $(LM_EVAL) build dist

# Octavo. `make` lists the targets; each installs what it needs, says what it does, and can be run twice.
SHELL := /bin/bash
PYTHON ?= python3
PY := .venv/bin/python
NODES ?= 1
export OCTAVO_CACHE ?= $(HOME)/.cache/octavo
# uv does not read pip's settings, so what a machine says to pip by environment is said to uv as well.
ifneq ($(PIP_CERT),)
export SSL_CERT_FILE ?= $(PIP_CERT)
endif
ifneq ($(PIP_INDEX_URL),)
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

.DEFAULT_GOAL := help
.PHONY: help install check lint types imports unit interpret slow aot gpu-check test e2e demo cluster-up cluster-down \
  cluster-status images bench crds

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/.installed ## Make .venv with everything pinned in constraints.txt

.venv/.installed: pyproject.toml constraints.txt
	@echo "==> installing into .venv (the first time takes one to three minutes: torch is 5 GB unpacked)"
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt uv
	@timeout 1800 .venv/bin/uv pip install -q --python $(PY) -c constraints.txt -e '.[operator,runtime,dev]'
	@touch $@

check: lint types imports unit ## Lint, types, imports and unit tests: minutes, no cluster

lint: install
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .

types: install
	@.venv/bin/mypy

imports: install
	@.venv/bin/lint-imports --no-logo

unit: install
	@OMP_NUM_THREADS=1 .venv/bin/pytest -q -n 2 -m 'not slow and not gpu' tests

slow: install ## The unit tests that make check leaves out: equality with transformers, training, big fuzz
	@OMP_NUM_THREADS=1 .venv/bin/pytest -q -n 2 -m slow tests

# Interpreter and compiler do not mix in one process, so these tests have one of their own.
interpret: install ## The Triton kernels against the specification, in Triton's interpreter
	@TRITON_INTERPRET=1 OMP_NUM_THREADS=1 .venv/bin/pytest -q -n 2 tests/kernels/triton

aot: install ## Compile every Triton kernel for every GPU generation, without a GPU: registers, spills, instructions
	@$(PY) -m octavo_kernels.aot

gpu-check: install ## The same tests and a benchmark on this machine's CUDA device
	@$(PY) -m tests.gpu

test: ## Everything that needs no GPU, the end-to-end path on a real cluster included
	@$(MAKE) -s .build-in-background
	@$(MAKE) -s check
	@$(MAKE) -s interpret
	@$(MAKE) -s slow
	@$(MAKE) -s aot
	@$(MAKE) -s e2e
	@echo "GPU tests: none were run; this machine's make test never needs one"

e2e: install ## End-to-end tests on a real cluster (built from packages the first time)
	@.venv/bin/pytest -q -m cluster -o faulthandler_timeout=1200 -o timeout=1200 e2e

demo: ## From nothing to an answer: cluster, chart, a small model, a question
	@$(MAKE) -s .build-in-background
	@$(MAKE) -s install
	@$(PY) -m e2e.demo

# Compiling Kubernetes and downloading torch do not get in each other's way, so the first starts while the second runs.
# e2e/cluster takes a lock: whoever needs the programs next waits for this one and shows its progress.
.PHONY: .build-in-background
.build-in-background:
	@mkdir -p $(OCTAVO_CACHE)/logs
	@if [ -z "$$OCTAVO_KUBECONFIG" ]; then \
	  nohup nice -n 5 $(PYTHON) -m e2e.cluster build > $(OCTAVO_CACHE)/logs/build.log 2>&1 & \
	fi

cluster-up: install ## A real Kubernetes on this machine (NODES=2 for two nodes)
	@$(PY) -m e2e.cluster up --nodes $(NODES)

cluster-down: ## Remove every trace of it; images and programs stay in the cache
	@test ! -x $(PY) || $(PY) -m e2e.cluster down

cluster-status: install ## What of it runs
	@$(PY) -m e2e.cluster status

images: install ## Build both images and push them to the cluster's registry (or OCTAVO_REGISTRY)
	@$(PY) -m images push

bench: install ## Benchmarks: every published figure has its command in benchmarks/
	@$(PY) -m benchmarks all

crds: install ## Regenerate crds/ and the chart's copy from the pydantic models
	@$(PY) -m octavo_operator.api.crd --write && mkdir -p helm/octavo/files/crds && cp crds/*.yaml helm/octavo/files/crds/

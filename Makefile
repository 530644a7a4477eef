# Octavo. `make` lists the targets; each installs what it needs, says what it does, and can be run twice.
SHELL := /bin/bash
PYTHON ?= python3
PY := .venv/bin/python
NODES ?= 1
export OCTAVO_CACHE ?= $(HOME)/.cache/octavo

.DEFAULT_GOAL := help
.PHONY: help install check lint types imports unit test e2e demo cluster-up cluster-down cluster-status images crds clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/.installed ## Make .venv with everything pinned in constraints.txt

.venv/.installed: pyproject.toml constraints.txt
	@echo "==> installing into .venv (the first time takes one to three minutes: torch is 5 GB unpacked)"
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt uv
	@SSL_CERT_FILE=$${SSL_CERT_FILE:-$$PIP_CERT} timeout 1800 .venv/bin/uv pip install -q --python $(PY) -c constraints.txt -e '.[operator,runtime,dev]'
	@touch $@

check: lint types imports unit ## Lint, types, imports and unit tests: minutes, no cluster

lint: install
	@.venv/bin/ruff check . && .venv/bin/ruff format --check .

types: install
	@.venv/bin/mypy

imports: install
	@.venv/bin/lint-imports --no-logo

unit: install
	@OMP_NUM_THREADS=1 .venv/bin/pytest -q -n 2 tests

test: check e2e ## Everything that needs no GPU, the end-to-end path on a real cluster included

e2e: install ## End-to-end tests on a real cluster (built from packages the first time)
	@OCTAVO_E2E=1 .venv/bin/pytest -q -m cluster e2e

crds: install ## Regenerate crds/ and the chart's copy from the pydantic models
	@$(PY) -m octavo_operator.api.crd --write

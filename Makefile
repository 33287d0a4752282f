# The commands of the README. Everything is installed into .venv beside this file.
#
#   TORCH   what pip installs first, for example TORCH=torch==2.13.0
#   PYTHON  the Python that makes .venv (3.11 or newer)
TORCH ?= torch
PYTHON ?= python3
VENV ?= .venv
STEPS ?= 20
# Two processes, a file's tests in one of them: what a module's tests share is made once.
PARALLEL ?= -n 2 --dist loadfile

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input
# A stamp's name holds what was installed, so that another TORCH or project file installs again.
SUM := $(shell { printf '%s\n' '$(TORCH)'; cat pyproject.toml; } | cksum | cut -d' ' -f1)
DEMO_STAMP := $(VENV)/.installed-train-$(SUM)
DEV_STAMP := $(VENV)/.installed-dev-$(SUM)

.PHONY: demo test check long gate installed clean

demo: $(DEMO_STAMP) ## Fine-tune a small real model, streamed, and compare its answers
	@$(BIN)/poros demo

test: $(DEV_STAMP) ## All tests but the long ones
	@$(BIN)/python -m pytest -q $(PARALLEL) -m "not alone and not gpu and not long"
	@# Those that tell time, when no other test runs; only their files, for reading all takes seconds.
	@$(BIN)/python -m pytest -q -m "alone and not long" $$(grep -rl --include='test_*.py' 'mark\.alone' tests)

check: $(DEV_STAMP) ## Format, lint, import contracts, types, the site of docs/
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/mypy
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

gate: $(DEMO_STAMP) ## The parity gate on the demo's model, with its mutants
	@$(BIN)/poros parity --demo --steps $(STEPS) --mutants

long: $(DEV_STAMP) ## Tests that take minutes, and the scripts in tests/long
	@$(BIN)/python -m pytest -q -m long --timeout 0 || [ $$? -eq 5 ]
	@for script in tests/long/*.sh; do [ ! -e "$$script" ] || PATH="$(abspath $(BIN)):$$PATH" bash "$$script" || exit 1; done

installed: $(DEV_STAMP) ## Only make .venv

clean: ## Remove .venv and caches
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "python -m venv failed (Debian and Ubuntu: apt install python3-venv)"; exit 1; }

$(DEMO_STAMP): | $(BIN)/python
	@echo "Installing $(TORCH) and Poros into $(VENV) (minutes at the first time) ..."
	@$(PIP) '$(TORCH)'
	@$(PIP) -e '.[train]'
	@rm -f $(VENV)/.installed-* && touch $@

$(DEV_STAMP): $(DEMO_STAMP)
	@echo "Installing the test tools into $(VENV) ..."
	@$(PIP) -e '.[train,dev]'
	@touch $@

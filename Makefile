# Two commands are all a new user needs: `make demo` and `make test`.
# The environment is made once, and again only when its inputs change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-fast test-all lint format docs test-browser mutants audit bench clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(READY) ## Train ERM, RandAugment and PEER on the embedded digits and compare them
	$(BIN)/peerdg demo

# Two workers with one thread each: more threads than cores make torch wait for itself. Compiled
# files are kept whatever the environment says, for the workers and the processes they start.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2

test: $(READY) ## Run the tests
	$(PYTEST) -m "not slow"

test-fast: $(READY) ## Run the tests that neither train runs nor start processes
	$(PYTEST) -m "not slow and not runs"

test-all: $(READY) ## Run all tests, also those that take minutes, every command in a new interpreter
	REAL_PROCESSES=1 $(PYTEST)

test-browser: $(READY) ## Open pages in Chromium, which must be installed
	$(PIP) playwright
	-npm install --silent --no-save --prefix build/axe axe-core@4.14.0
	$(BIN)/pytest tests/browser

lint: $(READY) ## Check style, types, the direction of imports and English
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.prose

format: $(READY) ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Paths in `examples` and `results` belong to the site, so its source is the whole project.
docs: $(READY) ## Build the documentation site in build/site
	$(BIN)/sphinx-build -q -W --keep-going -c docs -d build/doctrees . build/site

mutants: $(READY) ## Check that the tests notice mistakes (hours, can be resumed)
	$(BIN)/python -m tests.mutants

audit: $(READY) ## Look for published vulnerabilities of pinned packages
	$(PIP) pip-audit
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

bench: $(READY) ## Measure speed (nothing else should run)
	$(BIN)/python -m benchmarks

clean: ## Remove the environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "torch==2.13.0"
	$(PIP) -e ".[dev]"
	touch $@

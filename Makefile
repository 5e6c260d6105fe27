# Two commands are all a new user needs: `make demo` and `make test`.
# The environment is made once and made again only when its inputs change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-all lint mutants audit bench clean

demo: $(READY)
	$(BIN)/peerdg demo

# Two workers with one thread each: more threads than cores make torch wait for itself. Compiled
# files are kept whatever the environment says, for the workers and the hundred processes they start.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2

test: $(READY)
	$(PYTEST) -m "not slow"

test-all: $(READY)
	$(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Whether the tests notice mistakes: hundreds of them, one at a time; hours, and it can be resumed.
mutants: $(READY)
	$(BIN)/python -m tests.mutants

# Exit code 0: every pinned package was checked and none has a published vulnerability. 1: one has.
# 2: the database of advisories could not be asked, so nothing is known.
audit: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit
	$(BIN)/python -m tests.audit

bench: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

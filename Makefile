# `make demo` and `make test` need Python >= 3.10 and git, nothing else: they make their own environment. The first run
# fetches packages and the funcy source from the package index; after that, no network, key or model is needed.

PYTHON ?= python3
VENV ?= .venv
# Two more test processes than cores: much of their time they wait for what they started.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 2)
TESTS ?= tests
EXTRAS ?= dev
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Where it is set, each of the hundreds of processes that tests start would compile this package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make demo    the whole loop on real bugs with a scripted model (SIMULATION), offline after set-up; DEMO=--fast"
	@echo "make test    the tests; VALVE_TEST_ALL=1 adds the heavy ones and makes missing tools a failure"
	@echo "make lint    formatting, style, types, layers"
	@echo "make audit   known holes in the lowest versions that pyproject.toml allows, where their data can be reached"
	@echo "make docs    write the command reference from the commands"
	@echo "make site    build the documentation as a web site in site/"
	@echo "make bench   the benchmarks; each ends with its figures"
	@echo "make clean   remove the environment and caches"
	@echo "PYTHON=python3.12 chooses the interpreter; JOBS=2 the number of test processes."

# The stamps say what the environment holds; they age when the declaration of dependencies changes.
define ENVIRONMENT
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed; set PYTHON=")'
@echo "making the environment in $(VENV): packages are fetched, which takes a minute or two" >&2
$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
endef

$(VENV)/.runtime: pyproject.toml
	$(ENVIRONMENT)
	$(PIP) install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml
	$(ENVIRONMENT)
	$(PIP) install --quiet --editable '.[$(EXTRAS)]'
	touch $(VENV)/.runtime $@

$(BIN)/mkdocs: | $(VENV)/.dev
	$(PIP) install --quiet --editable '.[docs]'

.PHONY: dev
dev: $(VENV)/.dev

.PHONY: demo
demo: $(VENV)/.runtime
	@echo "The demo takes about two minutes on two idle cores, with DEMO=--fast about one; the first time, two more." >&2
	$(BIN)/valve demo $(DEMO)

.PHONY: test
test: $(VENV)/.dev
	@echo "The tests take about five minutes on two idle cores; TESTS=tests/cli runs some of them." >&2
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(TESTS)

.PHONY: lint
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: audit
audit: $(VENV)/.dev
	$(BIN)/python -m tests.audit

.PHONY: docs
docs: $(VENV)/.dev
	$(BIN)/python -m tests.docs.cli_reference

.PHONY: site
site: $(BIN)/mkdocs
	$(BIN)/mkdocs build --strict --quiet

.PHONY: bench
bench: $(VENV)/.dev
	for file in $$(grep -l __main__ benchmarks/*.py); do echo "== $$file"; $(BIN)/python "$$file" || exit; done

.PHONY: clean
clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist site

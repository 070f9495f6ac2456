# make run: set up, train on the embedded digits, write a report.
# make check: lint and the quick tests, in a minute.    make test: lint and all tests but the long ones.
# make long: the long tests, which train until something is learned.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run check quick test long lint format bench docs clean

run: $(VENV)/.installed
	$(BIN)/airscene train digits --out runs/digits --resume

check: $(VENV)/.installed-dev
	$(MAKE) --jobs=2 lint quick

quick: $(VENV)/.installed-dev
	$(BIN)/pytest -m quick

test: $(VENV)/.installed-dev lint
	$(BIN)/pytest -n auto --dist worksteal -m "not long"

long: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto --dist worksteal -m long

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo --no-cache

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/python bench/bench.py

docs: $(VENV)/.installed-docs  # into site/; the variable silences a notice of the theme's makers
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .hypothesis

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "airscene needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

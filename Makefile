# make run: set up, train on the embedded digits, write a report.
# make check: lint and the quick tests, in a minute.    make test: lint and all tests but the long ones.
# make long: the long tests, which train until something is learned.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Programs are compiled in half the time, and their last bits differ: not for stored numbers.
FAST := XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

.PHONY: run check quick test tests contract long lint format bench docs dist clean

run: $(VENV)/.installed
	$(BIN)/airscene train digits --out runs/digits --resume

check: $(VENV)/.installed-dev
	$(MAKE) --jobs=2 lint quick

quick: $(VENV)/.installed-dev
	$(FAST) $(BIN)/pytest -m quick --ignore tests/contract

test: $(VENV)/.installed-dev
	$(MAKE) --jobs=3 lint tests contract

tests: $(VENV)/.installed-dev
	$(FAST) $(BIN)/pytest -n auto --dist worksteal -m "not long" --ignore tests/contract

contract: $(VENV)/.installed-dev
	$(BIN)/pytest -m "not long" tests/contract

long: $(VENV)/.installed-dev
	$(FAST) $(BIN)/pytest -n auto --dist worksteal -m long --ignore tests/contract
	$(BIN)/pytest -n auto --dist worksteal -m long tests/contract

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

dist: $(VENV)/.installed-dev  # the wheel and the sdist, each tried in an environment of its own
	rm -rf dist build/try
	$(BIN)/python -m hatchling build
	for file in dist/*; do \
	  rm -rf build/try && $(PYTHON) -m venv build/try \
	  && build/try/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $$file \
	  && (cd build && try/bin/airscene --version \
	  && try/bin/airscene infer digits ../docs/front/edited.png > /dev/null) || exit 1; \
	done

clean:
	rm -rf $(VENV) site dist build .pytest_cache .ruff_cache .hypothesis

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

# Everything runs in .venv, made here from constraints.txt. CI calls `make test` and then `make check`. Python compiles what
# is installed when it is first imported, which is a small part of it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
CHECK_STAMP := .venv/.installed-for-check

.PHONY: setup demo test lint ruff mypy pytest check docs examples wheel bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[test]"
	touch $(STAMP)

# What the documentation and the examples need beside the tests.
$(CHECK_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[test,docs,examples,ray]"
	touch $(CHECK_STAMP)

# One thread, so that the figures do not depend on the number of cores.
demo: setup
	OMP_NUM_THREADS=1 $(BIN)/bayesbits demo

lint: ruff mypy

ruff: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy: setup
	$(BIN)/mypy

# Workers get neighboring tests, which share networks, and take over what others have left at the end.
pytest: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# mypy, which has one core at most, runs beside the tests.
test: ruff
	$(MAKE) --jobs 2 mypy pytest

# What takes longer or needs more packages: the documentation, tests marked `check` (the examples, for one), and the
# wheel in an empty environment.
check: docs examples wheel

docs: $(CHECK_STAMP)
	$(BIN)/python -m sphinx -b html -W --keep-going -n -q docs build/docs

examples: $(CHECK_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m check --numprocesses auto --maxprocesses 8 --dist worksteal

wheel: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.wheel

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build

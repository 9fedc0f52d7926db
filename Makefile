PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt

.PHONY: demo credit docs install test test-slow test-gpu test-lowest lint types check clean

demo: install  ## Train ten clients on data that needs no download
	rm -rf runs/demo
	$(BIN)/fedweave run experiments/digits.toml --out runs/demo

credit: install  ## A page about six lenders; needs $$FEDWEAVE_DATA with credit/credit.npz
	$(BIN)/python examples/credit/story.py

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedweave needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=python3.12 or so."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]'
	touch $@

test: install  ## The whole suite, some minutes on two cores
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder

test-slow: install  ## The longer checks
	$(BIN)/python -m pytest -m slow

test-gpu: install  ## The numbers of a GPU against those of the CPU, where there is one; else skipped with the reason
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/test_gpu.py

test-lowest:  ## The suite with the oldest versions of libraries that pyproject.toml allows
	$(MAKE) test VENV=$(VENV)-lowest CONSTRAINTS=constraints-lowest.txt

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

docs: install  ## The documentation as a site in build/site; runs the tutorials; warnings are errors
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict

check: lint types docs test  ## What CI runs

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

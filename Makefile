# laconic: `make` lists the targets. Everything happens in .venv; the system's Python packages are never used.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH
unexport PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help demo demo-distributed smoke test test-slow test-all lint types format docs docs-serve docs-check evidence-check dist bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: laconic needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Say PYTHON=/path/to/python3.11." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: pyproject.toml $(VENV)/.python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# PyTorch is pinned to a version that is to be had as a CPU build; the extras themselves take any recent one.
$(VENV)/.extras: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all]' torch==2.13.0
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

demo: $(VENV)/.core  ## compare optimizers on bundled data, about a minute
	$(BIN)/laconic compare

demo-distributed: $(VENV)/.core  ## train with four processes and a learned outer step, kill one on the way; under two minutes
	$(BIN)/python benchmarks/kill_demo.py

smoke: $(VENV)/.core  ## reproduce the two shortest of the paper's experiments in small, on Fashion-MNIST; minutes
	rm -rf build/smoke
	$(BIN)/laconic reproduce fig-ablation --scale smoke --out build/smoke/fig-ablation
	$(BIN)/laconic reproduce fig-h-transfer --scale smoke --out build/smoke/fig-h-transfer

test: $(VENV)/.dev  ## run the tests (what needs real data runs if LACONIC_DATA has it, and says so if not)
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" -rs

test-slow: $(VENV)/.dev  ## run the tests that take longer
	$(BIN)/python -m pytest -n $(WORKERS) -m slow -rs

test-all: $(VENV)/.extras test test-slow  ## run every test there is, those of the optional extras too

lint: $(VENV)/.dev  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## check types
	$(BIN)/pyright

format: $(VENV)/.dev  ## put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.docs  ## build the documentation into site/; a broken link or reference is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs-serve: $(VENV)/.docs  ## show the documentation in a browser, and follow what you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

docs-check: $(VENV)/.core  ## run all code of README and the how-to pages in fresh environments, half an hour; PAGES=… for some
	$(BIN)/python tests/check_pages.py --record results/docs-check.jsonl $(if $(PAGES),--pages $(PAGES))

evidence-check: $(VENV)/.core  ## recompute the numbers of README, docs and cards from the records, without the package
	$(BIN)/python -m evidence.check

dist: $(VENV)/.dev  ## build the wheel and the source distribution into dist/
	$(BIN)/python -m build --no-isolation

bench: $(VENV)/.dev  ## measure speed and memory against plain JAX and a textbook implementation
	$(BIN)/laconic bench round
	$(BIN)/laconic bench server-step
	$(BIN)/laconic bench meta-train
	$(BIN)/python benchmarks/federated.py --rounds 100

clean:  ## remove what was built
	rm -rf $(VENV) dist build site *.egg-info .pytest_cache .ruff_cache

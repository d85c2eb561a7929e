# Two commands do everything on a fresh machine with Python 3.11 or later: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
BENCH := .venv-bench

.DEFAULT_GOAL := help
.PHONY: help demo test setup system-packages lint types floors docs bench-setup clean

help:  ## list what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(DONE)  ## set up, run the first question on real data, end with a verdict and report.html
	$(BIN)/factory demo --report report.html

test: setup  ## set up and run all tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --maxprocesses 8

setup: $(DONE) system-packages  ## make .venv and install everything into it

$(DONE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): some minutes, about 2 GB ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,reference,pages,optimizers,harness]'
	touch $@

system-packages:
	@sh tools/system-packages.sh

lint: $(DONE)  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DONE)  ## check types, strictly
	$(BIN)/mypy

floors: $(DONE)  ## check that imports only go down
	$(BIN)/lint-imports

docs: $(DONE)  ## write docs/commands.md anew from the command line itself
	$(BIN)/python tools/command_reference.py > docs/commands.md

bench-setup:  ## install the peers that benchmarks/ compares with, into .venv-bench
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet -c constraints.txt -e '.[dev,reference,optimizers]'
	# without its own requirements: it asks for a huggingface-hub older than that of transformers
	$(BENCH)/bin/python -m pip install --quiet -c constraints.txt --no-deps litgpt==0.5.13
	$(BENCH)/bin/python -m pip install --quiet -c constraints.txt 'lightning>=2.6.1' 'jsonargparse[signatures]>=4.37'

clean:  ## remove both virtual environments and the workspace of the demo
	rm -rf $(VENV) $(BENCH) .factory report.html

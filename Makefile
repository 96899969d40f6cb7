# make demo: translate a few sentences.   make test: run the tests.   make lint: what CI checks first.
# make docs: the documentation as HTML in build/docs.
# Each makes a virtual environment in .venv if there is none. Choose another torch with
# `make demo TORCH=torch` (the newest, with CUDA libraries of several gigabytes on Linux).
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
RUN := $(VENV)/bin/python
SOURCES := setup.py pyproject.toml $(shell find csrc -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test lint format docs
demo: $(VENV)/installed
	$(RUN) -m examples.demo

test: $(VENV)/installed-test
	$(RUN) -m pytest

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(RUN) -m mypy
	find csrc -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs $(VENV)/bin/clang-format --dry-run --Werror

format: $(VENV)/installed-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	find csrc -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs $(VENV)/bin/clang-format -i

docs: $(VENV)/installed-docs
	$(RUN) -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet $(TORCH)

# An editable install compiles csrc/; it is repeated when the sources change.
$(VENV)/installed: $(VENV)/bin/python $(SOURCES)
	$(RUN) -m pip install --quiet --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/bin/python $(SOURCES)
	$(RUN) -m pip install --quiet --editable .[test]
	touch $@ $(VENV)/installed

$(VENV)/installed-dev: $(VENV)/bin/python $(SOURCES)
	$(RUN) -m pip install --quiet --editable .[dev]
	touch $@ $(VENV)/installed $(VENV)/installed-test

$(VENV)/installed-docs: $(VENV)/bin/python $(SOURCES)
	$(RUN) -m pip install --quiet --editable .[docs]
	touch $@ $(VENV)/installed

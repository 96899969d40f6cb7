# make demo: translate a few sentences.   make test: run the tests.   make lint: what CI checks first.
# make docs: the documentation as HTML in build/docs.
# make cuda: whether all CUDA files compile; it needs nvcc and no GPU.
# make aarch64: the CPU kernels for aarch64, cross-compiled and run under QEMU.
# make soak: everything at once for 30 minutes; SOAK="--minutes 5 --device cuda" for less, or a GPU.
# make sanitize: the CPU engine's tests under the compiler's sanitizers; SANITIZE=--quick, some of them.
# make wheel: the sdist and, from it, a wheel of this machine's Python, in dist.
# make audit: known vulnerabilities of the packages that the library and its tests use.
# Each makes a virtual environment in .venv if there is none, says what it does, and which command
# failed. Choose another torch with `make demo TORCH=torch` (the newest, with CUDA libraries of
# several gigabytes on Linux); PYTEST="-n 2" runs the tests in two processes.
PYTHON ?= python3
TORCH ?= torch==2.13.0
PYTEST ?=
SANITIZE ?=
SOAK ?=
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check
BUILD := $(RUN) setup.py --quiet build_ext --inplace
SPHINX := $(RUN) -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
CXX_FILES := find csrc -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh'
SOURCES := setup.py pyproject.toml $(shell $(CXX_FILES))

# $(call phase,what it does,command): with the seconds it took, or the command that failed.
define phase
@echo "== $(1)"; began=$$(date +%s); if $(2); \
then echo "   $$(( $$(date +%s) - began )) s"; \
else echo "== $(1): failed. To see it again, run:" >&2; echo '   $(subst ','\'',$(2))' >&2; exit 1; fi
endef

.PHONY: demo test lint format docs cuda sanitize aarch64 soak wheel audit
demo: $(VENV)/installed
	$(call phase,Translate with models/demo,$(RUN) -m examples.demo)

test: $(VENV)/installed-test
	$(call phase,Run the tests,$(RUN) -m pytest $(PYTEST))

sanitize: $(VENV)/installed-test
	$(call phase,Run tests of the CPU engine under sanitizers,$(RUN) -m tests.sanitize $(SANITIZE))

cuda: $(VENV)/tools
	$(call phase,Compile the CUDA engine as far as PTX,$(RUN) -m tests.compile_cuda)

aarch64: $(VENV)/torch
	$(call phase,Run the kernels for aarch64 under QEMU,$(RUN) -m tests.aarch64)

soak: $(VENV)/installed-test
	$(call phase,Run everything at once and look at memory,$(RUN) -m tests.faults.soak $(SOAK))

lint: $(VENV)/installed-dev
	$(call phase,Check Python's style,$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .)
	$(call phase,Check types,$(RUN) -m mypy)
	$(call phase,Check the style of C++,$(CXX_FILES) | xargs $(VENV)/bin/clang-format --dry-run --Werror)

format: $(VENV)/installed-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(CXX_FILES) | xargs $(VENV)/bin/clang-format -i

docs: $(VENV)/installed-docs
	$(call phase,Make the documentation,$(SPHINX))

wheel: $(VENV)/tools
	$(call phase,Build the sdist and the wheel in dist,$(RUN) -m build --quiet --no-isolation)

# --strict: a package of which nothing is known fails, too.
audit: $(VENV)/installed-dev
	$(call phase,Install pip-audit,$(PIP) pip-audit)
	$(call phase,List what is installed,$(RUN) -m pip freeze --exclude-editable > build/installed.txt)
	$(call phase,Ask for its vulnerabilities,$(RUN) -m pip_audit --strict --no-deps --disable-pip -r build/installed.txt)

$(VENV)/tools:
	$(call phase,Make a virtual environment in $(VENV),$(PYTHON) -m venv $(VENV))
	$(call phase,Install build tools,$(PIP) --upgrade pip "setuptools>=77" "pybind11>=2.13" ninja build)
	@touch $@

$(VENV)/torch: $(VENV)/tools
	$(call phase,Install $(TORCH),$(PIP) "$(TORCH)")
	@touch $@

# Installed in place: only changes of these files need another run, which compiles what they change.
$(VENV)/installed: $(VENV)/torch $(SOURCES)
	$(call phase,Compile the engine,DECODING_KERNELS=0 $(BUILD))
	$(call phase,Install what it needs,DECODING_KERNELS=0 $(PIP) --no-build-isolation --editable .)
	@touch $@

$(VENV)/installed-test: $(VENV)/torch $(SOURCES)
	$(call phase,Compile the engine and its kernels for tests,$(BUILD))
	$(call phase,Install what the tests need,$(PIP) --no-build-isolation --editable ".[test]")
	@touch $@ $(VENV)/installed

$(VENV)/installed-dev: $(VENV)/torch $(SOURCES)
	$(call phase,Compile the engine and its kernels for tests,$(BUILD))
	$(call phase,Install the tools of developers,$(PIP) --no-build-isolation --editable ".[dev]")
	@touch $@ $(VENV)/installed $(VENV)/installed-test

$(VENV)/installed-docs: $(VENV)/installed
	$(call phase,Install what makes the documentation,DECODING_KERNELS=0 $(PIP) --no-build-isolation --editable ".[docs]")
	@touch $@

# Two commands for a fresh machine with Python 3.11 or newer and pip: `make demo` and `make test`.
# Each makes .venv on first use; `make PYTHON=python3.12 demo` chooses another interpreter.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
EXTRAS ?= dev
TORCH  := torch==2.13.0
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: help demo test test-slow test-all test-trl bench base lint format clean

help:
	@echo "make demo       train no-KL, GRPO and SAGE-Branch from the shipped base, evaluate exactly (ARGS='--steps 40')"
	@echo "make test       the fast tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-all   both"
	@echo "make test-trl   the tests of the TRL adapter, in an environment of their own (.venv-trl)"
	@echo "make bench      speed of the reference engine against transformers.generate and a textbook GRPO step"
	@echo "make base       rebuild the shipped base policy from recipes/countdown/sft.yaml"
	@echo "make lint       ruff and mypy"
	@echo "make format     ruff format and its import order, written to the files"
	@echo "make clean      remove .venv and caches; runs/ stays"

demo: $(VENV)/.installed
	$(BIN)/sage-rlvr demo $(ARGS)

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed-dev
	$(PYTEST) -m slow $(ARGS)

test-all: $(VENV)/.installed-dev
	$(PYTEST) $(ARGS)

test-trl:
	$(MAKE) VENV=.venv-trl EXTRAS=dev,trl .venv-trl/.installed-dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 .venv-trl/bin/python -m pytest -n 2 tests/engines/test_trl.py tests/seams $(ARGS)

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/loop.py $(ARGS)

base: $(VENV)/.installed
	$(BIN)/sage-rlvr sft recipes/countdown/sft.yaml --run runs/base --out src/sage_rlvr/assets/countdown_base $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix-only --select I .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-trl .pytest_cache .hypothesis .mypy_cache .ruff_cache

# The environment. An existing one is kept, together with whatever build of torch stands in it, if the version is right.
# torch goes first and alone: it is the large download, and a second attempt then starts behind it.
NEEDS := import sys; v = sys.version_info; v >= (3, 11) or sys.exit("sage-rlvr needs Python 3.11 or newer, not %d.%d; \
name another: make PYTHON=python3.12 test" % v[:2])
define install
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(PYTHON) -c '$(NEEDS)' && $(PYTHON) -m venv $(VENV); }
	$(PIP) "$(TORCH)"
	$(PIP) -e "$(1)"
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call install,.)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	$(call install,.[$(EXTRAS)])
	@touch $(VENV)/.installed $@

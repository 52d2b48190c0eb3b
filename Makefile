# `make demo` and `make test` need only make and Python 3.11 or later: they build .venv first.
PYTHON ?= python3

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.installed

export MPLBACKEND := Agg
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Two pytest workers on two cores would otherwise fight for them.
check test test-all: export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help install check test test-all demo clean

help:
	@echo "make install   build .venv with the package and its developer tools"
	@echo "make check     ruff (lint and format), mypy and the docstring examples"
	@echo "make test      check, then the tests that take seconds"
	@echo "make test-all  check, then every test, the slow ones included"
	@echo "make demo      run examples/demo.py; its output goes to demo-output/"
	@echo "make clean     remove .venv, caches and output"
	@echo "Another interpreter: make PYTHON=python3.12 install"

install: $(STAMP)

# The stamp exists only while the environment is whole. If it is missing, an install may have broken
# off halfway, so the environment is rebuilt (pip's cache keeps the downloads); if it is merely older
# than pyproject.toml, what changed is installed on top.
$(STAMP): pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "error: '$(PYTHON)' was not found; install Python 3.11 or later, or set PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: '$(PYTHON)' is" "$$("$(PYTHON)" --version 2>&1);" \
			"pyro_fnbg needs Python 3.11 or later (set PYTHON=...)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: '$(PYTHON)' lacks venv or ensurepip;" \
			"on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@if [ ! -e $(STAMP) ] || ! $(PY) -c 'import pip' 2>/dev/null; then \
		"$(PYTHON)" -m venv --clear $(VENV); fi
	@rm -f $(STAMP)
	@echo "Installing into $(VENV); the first install downloads torch and takes minutes."
	@$(PY) -m pip install -qq -e '.[dev]' || { \
		echo "error: the install failed; the next make starts it afresh" >&2; exit 1; }
	@touch $(STAMP)

check: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -q --doctest-modules pyro_fnbg

test: check
	$(PY) -m pytest -n 2 -m "not slow"

test-all: check
	$(PY) -m pytest -n 2 -m ""

demo: $(STAMP)
	$(PY) examples/demo.py

clean:
	rm -rf $(VENV) demo-output build dist docs/_build *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find pyro_fnbg tests examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

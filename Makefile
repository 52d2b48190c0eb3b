# `make demo` and `make test` need only make and Python 3.11 or later: they build .venv first.
PYTHON ?= python3

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.installed
EXTRAS := dev,docs

# Version 1 of ArviZ needs Python 3.12. What is found must also run: pyenv puts a python3.12 on the
# path that may only say that another version is switched on.
PYTHON312 ?= $(shell for python in python3.12 \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.12*/bin/python3.12; do \
	"$$python" -c '' 2>/dev/null && echo "$$python" && break; done)
VENV_ARVIZ1 := .venv-arviz1
TESTS_ARVIZ1 := $(addprefix tests/,results/test_export.py results/test_pointwise.py results/test_estimates.py \
	results/test_function_space.py results/test_nested.py test_support.py test_kernel.py \
	test_examples.py stock/test_processes.py stores/test_runs.py stores/test_contents.py \
	stores/test_predictions.py drivers/test_store_hook.py command_line)

# What make smoke tries the wheel on
PYTHONS ?= 3.11 3.12 3.13

# Benchmarks need packages that nothing else here does
VENV_BENCH := .venv-bench
# A folder that holds MNIST/raw, for make bench and make bench-full; random numbers without it. For
# make bench-uci, one that holds airfoil.data and so on
DATA ?=

# What make bench-uci compares with; one pins old packages, and neither is imported here
VENV_PEERS := .venv-peers
PEERS := sklearn-contrib-bde==1.0.2 numpyro==0.22.0
# Samplers of others, which need newer versions of the same
VENV_SAMPLERS := .venv-samplers
OTHER_SAMPLERS := blackjax==1.7.1 numpyro==0.22.0
# What repeats the paper's experiments, in their order there; scripts share chains
PAPER := blocks exact_and_approximate depth_and_acceptance depth_and_predictions traces \
	batch_size_and_likelihood batch_size_and_predictions chain_length_and_predictions augmentation \
	uncertainty cost_of_minibatches
# Further arguments: make bench-uci DATA=FOLDER UCI="--sets airfoil --seeds 0"
UCI ?=

export MPLBACKEND := Agg
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Two pytest workers on two cores would otherwise fight for them.
check test test-all test-exactness test-arviz1 frozen: export OMP_NUM_THREADS := 1
# Tests start many processes, each of which would compile the same modules again
check test test-all test-exactness test-arviz1 frozen: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install check test test-all test-exactness test-arviz1 frozen bench bench-full \
	bench-uci bench-samplers demo paper docs dist smoke bounds clean

help:
	@echo "make install      build .venv with the package and its developer tools"
	@echo "make check        ruff (lint and format), mypy and the docstring examples"
	@echo "make test         check, then all tests but the slow ones"
	@echo "make test-all     check, then every test, the slow ones included"
	@echo "make test-exactness  run what make test leaves out: seeded faults, long chains, ..."
	@echo "make test-arviz1  the tests that touch ArviZ, with its version 1; needs Python 3.12"
	@echo "make frozen       record anew what tests/test_frozen.py holds results to, bit for bit; only"
	@echo "                  for a change that is meant to alter results"
	@echo "make bench        time everything in minutes; the JSON goes to bench-output/, the tables to"
	@echo "                  docs/benchmarks.md; DATA=FOLDER times on MNIST, not on random numbers"
	@echo "make bench-full   the same at length, which takes up to an hour"
	@echo "make bench-uci    score chains beside other methods on the sets in DATA=FOLDER; takes hours, and"
	@echo "                  goes on where it was; the tables go to docs/uci.md"
	@echo "make bench-samplers  effective draws a second beside NUTS and slice sampling, in an hour or two; needs"
	@echo "                  DATA=FOLDER; the tables go to docs/samplers.md"
	@echo "make demo         run examples/demo.py; its output goes to demo-output/"
	@echo "make paper        quick runs of all the paper's experiments, in examples/paper/; tables and pictures"
	@echo "                  go to paper-output/quick/; DATA=FOLDER takes rows of real data"
	@echo "make docs         build the documentation into docs/_build/html; warnings are errors"
	@echo "make dist         build wheel and source distribution into dist/, and check them"
	@echo "make smoke        try the wheel, not the checkout, on Python $(PYTHONS); 6 GB at a time"
	@echo "make bounds       the same on Python 3.11 with the lowest versions of all dependencies"
	@echo "make clean        remove .venv, caches and output"
	@echo "Another interpreter: make PYTHON=python3.12 install"

install: $(STAMP)

# The stamp exists only while the environment is whole. If it is missing, an install may have broken
# off halfway, so the environment is rebuilt (pip's cache keeps the downloads); if it is merely older
# than pyproject.toml, what changed is installed on top.
$(STAMP): pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "error: '$(PYTHON)' was not found; install Python 3.11 or later, or set PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c '' 2>/dev/null || { \
		echo "error: '$(PYTHON)' does not run; under pyenv, set PYTHON to the python in" \
			"~/.pyenv/versions/VERSION/bin" >&2; exit 1; }
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
	@started=$$(date +%s); $(PY) -m pip install -e '.[$(EXTRAS)]' || { \
		echo "error: the install failed; the next make starts it afresh (it needs about 7 GB;" \
			"free here: $$(df -Ph . | awk 'NR == 2 {print $$4}'))" >&2; exit 1; }; \
	echo "Installed in $$(($$(date +%s) - started)) s."
	@touch $(STAMP)

check: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -q -n 2 --doctest-modules pyro_fnbg

test: check
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow" --durations 10

test-all: check
	$(PY) -m pytest -n 2 --dist worksteal -m ""

test-exactness: $(STAMP)
	$(PY) -m pytest -n 2 --dist worksteal -m slow -k "not without_a_fault"

# The folder has a stamp of its own, kept by the rule for $(STAMP) above
test-arviz1:
	@python="$(PYTHON312)"; [ -n "$$python" ] || { \
		echo "error: found no Python 3.12, which ArviZ 1 needs, on the path or under pyenv;" \
			"install one or set PYTHON312=..." >&2; exit 1; }; \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { \
		echo "error: ArviZ 1 needs Python 3.12 or later, but '$$python' is" \
			"$$("$$python" --version 2>&1) (set PYTHON312=...)" >&2; exit 1; }; \
	$(MAKE) --no-print-directory install VENV=$(VENV_ARVIZ1) PYTHON="$$python"
	@$(VENV_ARVIZ1)/bin/python -W ignore -c \
		'import arviz, sys; sys.exit(int(arviz.__version__.split(".")[0]) < 1)' || { \
		echo "error: $(VENV_ARVIZ1) has no ArviZ 1; remove that folder and try again" >&2; exit 1; }
	$(VENV_ARVIZ1)/bin/python -m pytest -n 2 $(TESTS_ARVIZ1)

frozen: $(STAMP)
	PYTHONPATH=tests $(PY) -W ignore::FutureWarning -m frozen.record

bench: export BENCH_LENGTH ?= bench
bench-full: export BENCH_LENGTH := full
bench bench-full: export BENCH_DATA := $(DATA)
bench bench-full:
	@$(MAKE) --no-print-directory install VENV=$(VENV_BENCH) EXTRAS=dev,bench
	@mkdir -p bench-output
	# pytest would keep, and so slow down, what Pyro's driver logs after every draw
	$(VENV_BENCH)/bin/python -m pytest tests/benchmarks -o python_files='bench_*.py' -p no:logging \
		--benchmark-json=bench-output/$@.json --benchmark-quiet
	PYTHONPATH=tests $(VENV_BENCH)/bin/python -m benchmarks.report bench-output/$@.json docs/benchmarks.md

bench-uci: $(STAMP) $(VENV_PEERS)/.installed
	PYTHONPATH=tests $(PY) -m benchmarks.uci --data "$(DATA)" --peer $(VENV_PEERS)/bin/python $(UCI)

$(VENV_PEERS)/.installed:
	"$(PYTHON)" -m venv --clear $(VENV_PEERS)
	$(VENV_PEERS)/bin/python -m pip install -qq $(PEERS)
	@touch $@

bench-samplers: $(STAMP) $(VENV_SAMPLERS)/.installed
	PYTHONPATH=tests $(PY) -m benchmarks.samplers --data "$(DATA)" --peer $(VENV_SAMPLERS)/bin/python

$(VENV_SAMPLERS)/.installed:
	"$(PYTHON)" -m venv --clear $(VENV_SAMPLERS)
	$(VENV_SAMPLERS)/bin/python -m pip install -qq $(OTHER_SAMPLERS)
	@touch $@

demo: $(STAMP)
	$(PY) examples/demo.py

paper: $(STAMP)
	@for script in $(PAPER); do \
		echo; echo "== examples/paper/$$script.py --quick"; \
		$(PY) examples/paper/$$script.py --quick $(if $(DATA),--data "$(DATA)") || exit 1; \
	done

# -E reads every page anew: a warning about a page that has not changed since would not come again
docs: $(STAMP)
	$(PY) -m sphinx -q -E -W --keep-going -b html docs docs/_build/html
	@echo "The pages are in docs/_build/html; begin with index.html."

dist: $(STAMP)
	rm -rf dist
	$(PY) -m build
	$(PY) -m twine check --strict dist/*

smoke: dist
	.ci/smoke $(PYTHONS)

bounds: dist
	BOUNDS=1 .ci/smoke 3.11

clean:
	rm -rf $(VENV) $(VENV_ARVIZ1) $(VENV_BENCH) $(VENV_PEERS) $(VENV_SAMPLERS)
	rm -rf demo-output bench-output paper-output build dist docs/_build *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find pyro_fnbg tests examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Every task of this repository; `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# uv installs the same locked packages in a fifth of pip's time. PySpark comes as source, so that a
# wheel of 450 MB is built first: compressed for nothing, it would take three times as long.
UV     := $(BIN)/uv
INSTALL = $(UV) pip install --quiet --python $(BIN)/python --require-hashes \
	--config-settings-package=pyspark:--build-option=--compression=stored
# What runs, with all extras, and what compiles it; and what tests need beside it.
STAMP  := $(VENV)/.installed
TESTS  := $(VENV)/.tests-installed
# The oldest supported PySpark, beside the environment: a few tests run with it in front of sys.path.
OLD_SPARK := $(VENV)/pyspark-4.2
# What Kafka and Spark load at each start, for the JVMs of the tests; with it comes what lets Spark's
# Python workers start faster.
JAVA_CLASSES := $(VENV)/java-classes/spark.jsa

# Images set it; every process would compile its modules and those of all packages again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup build at-hand servers check quick test test-all test-ecosystem bench mutants peers demo demo-cache format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(UV): requirements-uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "shardstream needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 2; }
	@command -v java >/dev/null || { echo "shardstream needs Java 17 or newer on PATH"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.lock
	@touch $@

$(STAMP): requirements.lock pyproject.toml $(UV)
	$(INSTALL) -r requirements.lock
	@rm -f $(BIN)/shardstream
	@touch $@

$(TESTS): requirements-tests.lock $(STAMP)
	$(INSTALL) -r requirements-tests.lock
	@touch $@

$(OLD_SPARK)/.installed: requirements-spark-4.2.lock | $(TESTS)
	rm -rf $(OLD_SPARK)
	$(INSTALL) --no-deps --no-build-isolation --target $(OLD_SPARK) -r requirements-spark-4.2.lock
	@touch $@

$(JAVA_CLASSES): $(TESTS)
	$(BIN)/python -m tests.java_classes

setup: $(TESTS)  ## create the environment in .venv

build: $(STAMP)  ## install in place, compiled; SHARDSTREAM_PURE_PYTHON=1 skips the compiler
	@if [ -x $(BIN)/shardstream ] && $(BIN)/python -c 'import setup, sys; sys.exit(not setup.is_compiled_current())'; then \
		echo "shardstream: the compiled modules are up to date"; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
			--config-settings editable_mode=compat --editable . && $(BIN)/shardstream version; \
	fi

# What the demos run: the compiled modules if there are some. Compiling takes two minutes, and the
# rows of a demo can do without.
at-hand: $(STAMP)
	@if $(BIN)/python -c 'import setup, sys; sys.exit(not setup.compiled_in_place())'; then \
		$(MAKE) --no-print-directory build; \
	elif [ ! -x $(BIN)/shardstream ]; then \
		SHARDSTREAM_PURE_PYTHON=1 $(MAKE) --no-print-directory build; \
	fi

check: $(TESTS)  ## lint, types, layout and the words of the docs, under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q --noconftest -p no:tests.build_state \
		tests/test_imports.py tests/test_layout.py tests/docs/test_references.py tests/docs/test_words.py

quick: build $(TESTS)  ## the tests that need no servers, under a minute
	$(BIN)/python -m pytest -q --numprocesses auto --hypothesis-profile=quick -m 'not servers and not full' tests

# Tests mostly wait for servers, so two cores have time for three jobs. Each starts its own, which
# with Spark take about 6 GB.
JOBS ?= 3

test: build $(TESTS) $(JAVA_CLASSES)  ## the tests that take seconds each, on real servers
	$(BIN)/python -m tests --numprocesses $(JOBS) tests

test-all: build $(TESTS) $(JAVA_CLASSES) $(OLD_SPARK)/.installed  ## all tests, then the containers, an hour; or PART=sinks, one folder
	$(BIN)/python -m tests -m '' --numprocesses $(JOBS) $(PART:%=tests/%) $(if $(PART),,tests)
ifndef PART
	@$(MAKE) --no-print-directory test-ecosystem
endif

test-ecosystem: build $(TESTS) $(JAVA_CLASSES)  ## docker/compose.yaml on a Docker engine, which root on Debian gets without one
	$(BIN)/python -m tests.ecosystem

bench: build $(TESTS)  ## run the benchmarks; writes benchmarks/results/latest.json
	$(BIN)/python -m benchmarks

mutants: $(TESTS)  ## the share of all mutants of the pure cores that their tests notice; half an hour
	$(BIN)/python -m tests.mutants

peers: $(TESTS)  ## the servers' own regression suites, their logs against SELECT; hours, Debian only
	$(BIN)/python -m tests.peers $(OPTIONS)

# The servers come over the network while the compiler needs the processors. What cannot be fetched
# is said by the command that needs it.
servers: $(STAMP)  ## fetch the servers that the demo starts
	-@$(BIN)/python -m shardstream local fetch >/dev/null 2>&1

demo:  ## the whole system at work, with a live shard split, in two minutes
	@$(MAKE) --no-print-directory --jobs 2 at-hand servers
	$(BIN)/shardstream demo

demo-cache:  ## a shop behind a cache, with replicas that lag; OPTIONS=--plain adds ordinary caches
	@$(MAKE) --no-print-directory --jobs 2 at-hand servers
	$(BIN)/shardstream demo --cache $(OPTIONS)

format: $(TESTS)  ## format the code and apply ruff's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove everything built here, but not the downloaded servers
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name '*.so' -not -path './$(VENV)/*' -delete

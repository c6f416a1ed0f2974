# Each target sets up what it needs and does nothing twice: what was done is remembered by stamp files, which are
# older than the files that they depend on as soon as those change. Needs Python >= 3.11 and make, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check
CHECKED := $(wildcard src tests tools benchmarks)

# Whatever the user's shell says: Python keeps what it compiled. Brokers, commands and tests are thousands of
# processes, and each would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup demo test test-fast test-all soak simulate bench bench-clients bench-pipeline bench-audit lint format lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed jars/spark/.rehearsed jars/kafka/.verified jars/zookeeper/.verified ## make .venv with the gapless command, fetch the jars

demo: $(VENV)/.installed jars/spark/.rehearsed ## the same orders twice, through the same faults: everyday settings, and Gapless
	$(BIN)/gapless demo

# Two processes more than a small machine has cores, because tests often wait: for a broker that starts, for a session
# that ends. tests/services.py decides which tests share a process.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 0
test: setup lint ## everything that guards a promise, in a quarter of an hour: what CI runs (PYTEST_ARGS="-k word" for some of it)
	$(PYTEST) -m "not slow and not soak" $(PYTEST_ARGS)

# Without the tests of clients that mostly wait: for brokers to die and to come back, for partitions, for time-outs.
WAITING := $(addprefix tests/client/,test_relay.py $(addprefix consuming/,test_crashes.py test_low_level.py test_outages.py test_rebalances.py) \
	$(addprefix producing/,test_crashes.py test_fallback.py test_folders.py test_recovery.py test_resending.py test_sealer.py))
FAST := tests/wire tests/core tests/storage tests/simulator tests/client $(addprefix --ignore=,$(WAITING))
test-fast: $(VENV)/.installed ## no JVM, no server, in two minutes: run it before each commit
	$(PYTEST) -m "not server and not slow and not soak" $(FAST) $(PYTEST_ARGS)

test-all: export GAPLESS_SPARK_COMPILES = true
test-all: setup lint ## all tests, the client matrix on three brokers and on Apache Kafka, a minute of soak: within an hour
	$(PYTEST) -m "not soak" $(PYTEST_ARGS)
	$(PYTEST) -m "not soak" tests/compat --peer cluster
	$(PYTEST) -m "not soak" tests/compat --peer apache
	$(BIN)/python -m tests.cluster.soak --seed $(SEED) --minutes 1

SEED ?= $(shell date +%s)
SOAK := $(BIN)/python -m pytest -o faulthandler_timeout=0
soak: setup ## random faults: ten minutes against three brokers (SEED=n repeats them), 100 to 200 kills of clients and pipeline
	$(BIN)/python -m tests.cluster.soak --seed $(SEED) --minutes 10
	GAPLESS_KILLS=200 $(SOAK) tests/client/producing/test_crashes.py -m "slow and not soak" -k killed_at_random_moments --timeout 1800
	$(SOAK) tests/client/consuming/test_crashes.py -m soak --timeout 1800
	GAPLESS_KILLS=100 $(SOAK) tests/pipeline/sinks/kafka/test_driver_kills.py --timeout 7200
	$(SOAK) tests/pipeline/test_deaths.py -m soak

simulate: $(VENV)/.installed ## the core through 10,000 seeds of faults, then every famous mistake: is it found?
	$(BIN)/gapless simulate --seeds 10000
	$(BIN)/gapless simulate --mutants

bench: setup ## this broker and Apache Kafka in the same run, then the clients and the pipeline
	$(BIN)/python -m benchmarks
	$(MAKE) bench-clients bench-pipeline bench-audit

RESULTS := benchmarks/results
bench-clients: setup ## spool, producer, consumer and marks, each against doing it by hand
	$(BIN)/python -m benchmarks.scenarios.spool --out $(RESULTS)/spool.json
	$(BIN)/python -m benchmarks.scenarios.client_producer --out $(RESULTS)/client_producer.json
	$(BIN)/python -m benchmarks.scenarios.client_consumer --out $(RESULTS)/client_consumer.json
	$(BIN)/python -m benchmarks.scenarios.marks --out $(RESULTS)/marks.json

bench-pipeline: setup ## the pipeline's sinks and dedup, each against Spark's own
	$(BIN)/python -m benchmarks.scenarios.pipeline_kafka --out $(RESULTS)/pipeline_kafka.json
	$(BIN)/python -m benchmarks.scenarios.pipeline_postgres --out $(RESULTS)/pipeline_postgres.json
	$(BIN)/python -m benchmarks.scenarios.pipeline_dedup --out $(RESULTS)/pipeline_dedup.json

bench-audit: setup ## an audit against a count of the same topic by Spark
	$(BIN)/python -m benchmarks.scenarios.audit --out $(RESULTS)/audit.json

lint: $(VENV)/.linted ## ruff and strict mypy

# Folders are prerequisites as well as files, because deleting a file changes only its folder.
$(VENV)/.linted: $(VENV)/.installed $(shell find $(CHECKED) -name __pycache__ -prune -o \( -name '*.py' -o -type d \) -print)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy $(CHECKED)
	@touch $@

format: $(VENV)/.installed ## let ruff lay out the code
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

lock: $(VENV)/.installed ## pin all dependencies anew, with hashes
	$(BIN)/python tools/lock.py

clean: ## remove all that `make` made
	rm -rf $(VENV) jars build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is too old: Gapless needs Python 3.11 or newer, name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments: install its venv package (Debian: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# No build isolation: what has no wheel is built with the tools pinned in requirements-build.lock and nothing else.
$(VENV)/.locked: $(VENV)/.created requirements-build.lock requirements.lock
	$(PIP) install --require-hashes --only-binary :all: -r requirements-build.lock
	@echo "Installing dependencies (the first time takes some minutes: PySpark is 450 MB)"
	$(PIP) install --require-hashes --no-build-isolation -r requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml src/gapless/__init__.py
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.java: $(VENV)/.installed requirements-java.lock
	@$(BIN)/python -m gapless.java >/dev/null 2>&1 || $(PIP) install --require-hashes --only-binary :all: -r requirements-java.lock
	@$(BIN)/python -m gapless.java
	@touch $@

# Spark starts in two thirds of the time afterwards; a demo alone would not gain by it.
jars/spark/.rehearsed: jars/spark/.verified
	$(BIN)/python -m gapless.demo.rehearsal
	@touch $@

jars/%/.verified: $(VENV)/.java src/gapless/jars/ivy.xml src/gapless/jars/SHA256SUMS
	$(BIN)/python -m gapless.jars $*
	@touch $@

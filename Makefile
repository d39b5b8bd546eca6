# Every target creates .venv and installs what it needs, so each works on a fresh machine.
PYTHON ?= python3
SEEDS  ?= 1000
MINUTES ?= 10
NODES  ?= 1
# Of most tests; Spark and the browser have one beside them, unless it is 1. Tests of clusters wait most
# of the time: three keep two cores busy.
WORKERS ?= 3
BIN    := .venv/bin
# Tests start hundreds of processes: without bytecode each would compile the whole package again.
export PYTHONDONTWRITEBYTECODE :=
# Tests with a browser: Playwright keeps an event loop in the thread of the tests, where others run theirs.
BROWSER := tests/portal
# Tests that share a session of Spark, one for each worker.
SPARK  := tests/spark tests/pipelines
# Some of these start drivers of their own, and run wherever a worker is free.
DRIVERS := tests/pipelines/test_declarative.py tests/pipelines/test_kills.py tests/spark/test_kills.py
MOST   = $(filter-out $(SPARK) $(BROWSER) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/))) \
	$(wildcard tests/test_*.py) $(DRIVERS)
SPARK_WORKERS ?= $(if $(filter 1 2 3,$(WORKERS)),1,2)
PARTS_AT_ONCE := $(if $(filter 1,$(WORKERS)),1,2)
PYTEST := $(BIN)/python -m pytest -rs
# What runs beside others is shown when it ends.
AT_THE_END = >.venv/$@.log 2>&1; status=$$?; cat .venv/$@.log; exit $$status
SECONDS_OF_TESTS := $(CURDIR)/.venv/test-seconds
INSTALLED := --editable '.[spark,otel]' --group dev

.DEFAULT_GOAL := help
.PHONY: help demo up test test-most test-spark test-browser check format proto aio sim soak fuzz mutants bench docs clean

help:            ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

demo: .venv/ready  ## a cluster, a million messages, leaders killed under load, Spark into a table: a minute [KEEP=1]
	$(BIN)/python -m examples.demo $(if $(KEEP),--keep)

up: .venv/ready  ## brokers and the portal in the foreground, until Ctrl-C: NODES=1
	$(BIN)/quiver up --nodes $(NODES)

test: .venv/ready  ## the whole test suite, and its 25 slowest tests: WORKERS=3
	@rm -f $(SECONDS_OF_TESTS)
	@$(MAKE) --no-print-directory --keep-going --jobs=$(PARTS_AT_ONCE) test-most test-spark test-browser; \
		status=$$?; echo "the 25 slowest tests, in seconds:"; sort -rn $(SECONDS_OF_TESTS) | head -25; exit $$status

test-most test-spark test-browser: export SECONDS_OF_TESTS := $(SECONDS_OF_TESTS)

test-most: .venv/ready
	$(PYTEST) -n $(WORKERS) --dist worksteal $(MOST)

test-spark: .venv/ready
	{ $(BIN)/python -m quivermq.spark.class_archive && \
		$(PYTEST) -n $(SPARK_WORKERS) --dist loadfile --no-loadscope-reorder $(SPARK) $(DRIVERS:%=--ignore=%); } $(AT_THE_END)

test-browser: .venv/ready
	$(PYTEST) -n $(SPARK_WORKERS) --dist worksteal $(BROWSER) $(AT_THE_END)

# A test file that cannot be imported fails here within seconds, not after all other tests.
check: .venv/ready  ## lint, format, types, and whether all tests can be collected
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --collect-only --quiet tests >.venv/collected.log || { cat .venv/collected.log; exit 1; }

format: .venv/ready  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: .venv/ready  ## the Python of both protocols, from their quiver.proto
	$(BIN)/python -m grpc_tools.protoc -I src/quivermq/wire --python_out=src/quivermq/wire/generated \
		--pyi_out=src/quivermq/wire/generated quiver.proto
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=src/quivermq/transports/grpc/generated \
		--pyi_out=src/quivermq/transports/grpc/generated quiver/v1/quiver.proto

aio: .venv/ready  ## the asyncio client, from the blocking one
	$(BIN)/python -m tests.client.derive_aio

sim: .venv/ready  ## many seeds: storms of log, core and groups, full states, whole clusters of brokers
	$(BIN)/python -m tests.log.storm --seeds $(SEEDS)
	$(BIN)/python -m tests.raft.cluster --seeds $(SEEDS)
	$(BIN)/python -m tests.queue.storm --seeds $(SEEDS)
	$(BIN)/python -m tests.queue.large
	$(BIN)/python -m tests.limits
	$(BIN)/python -m quivermq.testing --all --seeds $(SEEDS)

soak: .venv/ready  ## real brokers under a random mix of faults, judged: MINUTES=10 [NODES=5] [SEED=7]
	$(BIN)/python -m quivermq.testing.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) --spark \
		$(if $(filter-out 1,$(NODES)),--nodes $(NODES)) --release $(lastword $(sort $(wildcard tests/upgrades/releases/*.whl)))

fuzz: .venv/ready  ## what reads bytes and texts from outside, guided by coverage where atheris installs: MINUTES=10 each
	-$(BIN)/python -m pip install --quiet --group fuzz
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $$($(BIN)/python -c 'import atheris' 2>&- && echo --guided)

mutants: .venv/ready  ## planted bugs: each must be caught
	$(BIN)/python -m tests.mutants

bench: .venv/ready  ## measure, each figure beside its reference
	-$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks

docs: .venv/ready  ## the documentation as a site, in site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

clean:           ## remove what make created
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# uv unpacks and compiles on all cores. Where it cannot be had, or sees no index, pip does the same.
.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "QuiverMQ needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet uv && \
		$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $(INSTALLED) || \
		$(BIN)/python -m pip install --quiet $(INSTALLED)
	touch $@

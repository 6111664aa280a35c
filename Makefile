# Everything a clone needs: Python 3.11+ and make. uv is used where it is there, pip where it is not.

PYTHONS := python3.13 python3.12 python3.11 python3
VENV    := .venv
BIN     := $(VENV)/bin
DEV     := $(VENV)/.dev-installed
BENCH   := $(VENV)/.bench-installed
OLDEST  := $(VENV)/duckdb-oldest
STORES  := $(VENV)/stores
CLASSES := $(VENV)/spark-classes.jsa
WORKERS ?= 2
ARGS    ?=

PYTEST  := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
SUITE   := $(PYTEST) --ignore tests/cross --ignore tests/kafka
CROSS   := INTARSIA_CROSS=$${INTARSIA_CROSS:-short} $(BIN)/python -m pytest -q --timeout 600 tests/cross
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
           --custom-compile-command "make lock"

# uv may be a launcher that cannot run, so it is asked and not only looked up.
HAS_UV := uv --version >/dev/null 2>&1
RECENT := import sys; sys.exit(sys.version_info < (3, 11))

# Tests start many interpreters, which would compile our modules each time.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup lint format test test-all test-fast spark crash property cluster cross kafka stores duckdb-oldest bench bench-spark bench-pipeline bench-iceberg bench-tpch bench-files demo tour lock clean distclean

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  ARGS='-k name' goes to pytest or the benchmark; WORKERS=4 runs more tests at once;"
	@echo "  PYTHON=/path/to/python names the interpreter that .venv is made with."

setup: $(DEV) ## Make .venv with the pinned requirements (done once, and again when the pins change)

$(DEV): requirements/dev.txt pyproject.toml
	@set -e; \
	if ! $(BIN)/python -c '$(RECENT)' 2>/dev/null; then \
	  found=; \
	  for python in $(or $(PYTHON),$(PYTHONS)); do \
	    if "$$python" -c '$(RECENT)' >/dev/null 2>&1; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "intarsia needs Python 3.11 or newer; tried: $(or $(PYTHON),$(PYTHONS))." >&2; \
	    echo "Install one, or name it: make setup PYTHON=/path/to/python" >&2; exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$("$$found" --version)"; \
	  if $(HAS_UV); then \
	    uv venv --quiet --clear --python "$$("$$found" -c 'import sys; print(sys.executable)')" $(VENV); \
	  elif ! "$$found" -m venv --clear $(VENV); then \
	    rm -rf $(VENV); \
	    echo "Python's venv module is not complete here: install it (python3-venv on Debian), or uv." >&2; exit 1; \
	  fi; \
	fi
	@$(call sync,requirements/dev.txt)
	@$(call install,--no-deps --no-build-isolation --editable .)
	@touch $@

$(BENCH): requirements/bench.txt $(DEV)
	@$(call install,--require-hashes --requirement requirements/bench.txt)
	@touch $@

# $(call sync,file): exactly these packages (pip cannot remove the others, uv does).
sync = if $(HAS_UV); then uv pip sync --quiet --require-hashes --python $(BIN)/python $(1); \
       else $(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement $(1); fi
install = if $(HAS_UV); then uv pip install --quiet --python $(BIN)/python $(1); \
          else $(BIN)/python -m pip install --quiet $(1); fi

lint: $(DEV) ## Check style, types and the direction of imports
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(DEV) ## Put the code in shape
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format .

# Spark's classes, ready to be mapped: the tests start dozens of JVMs. Without Java there is no such file.
$(CLASSES): tests/jvm_options.py $(DEV)
	@$(BIN)/python -m tests.jvm_options $@ 2>/dev/null || true

test: lint $(CLASSES) ## Set up, check, and run the tests: the one command
	@$(SUITE) $(ARGS)
	@$(if $(ARGS),,$(CROSS))

test-all: lint $(CLASSES) ## As make test with every case of it, all of Spark and larger samples, on a disk (hours)
	@INTARSIA_CONTRACT=full INTARSIA_SPARK=full INTARSIA_CRASH=sample PYTEST_DEBUG_TEMPROOT=$${TMPDIR:-/tmp} \
	  $(SUITE) --timeout 1200 $(ARGS)
	@$(if $(ARGS),,export INTARSIA_CROSS=full; $(CROSS))

test-fast: $(DEV) ## Run the tests without the checks
	@$(PYTEST) $(ARGS)

spark: $(DEV) ## Run everything that Spark is tested with, not only the core of it
	@INTARSIA_SPARK=full $(PYTEST) --timeout 1200 -m spark $(ARGS)

crash: $(DEV) ## Kill every operation at every system call (long; needs a C compiler)
	@INTARSIA_CRASH=full $(PYTEST) --timeout 7200 tests/crash $(ARGS)

property: $(DEV) ## Run the property tests with many more examples
	@INTARSIA_HYPOTHESIS=full $(PYTEST) --timeout 7200 tests/property tests/spark/test_agrees_with_arrow.py $(ARGS)

cluster: $(DEV) ## Kill workers, tasks and drivers of a real Spark cluster on this machine (minutes)
	@INTARSIA_CLUSTER=1 $(BIN)/python -m pytest -q --timeout 600 tests/cluster $(ARGS)

cross: $(DEV) ## Change Iceberg tables in turns with Spark and its own runtime (minutes; fetches two jars once)
	@$(CROSS) $(ARGS)

kafka: $(DEV) ## Run pipelines over the topics of a real broker of Kafka (minutes; fetches its jars once)
	@INTARSIA_KAFKA=1 $(BIN)/python -m pytest -q --timeout 900 tests/kafka $(ARGS)

# A server that speaks S3 and heeds conditions, of a version that is pinned; its modules go again.
$(STORES)/bin/versitygw:
	@command -v go >/dev/null 2>&1 || { echo "make stores builds versitygw, which needs Go (1.24 or newer)." >&2; exit 1; }
	@echo "Building versitygw (minutes, once)"
	@mkdir -p $(STORES)
	@GOPATH="$(abspath $(STORES))/go" GOBIN="$(abspath $(STORES))/bin" GOFLAGS=-modcacherw \
	  go install -p 1 github.com/versity/versitygw/cmd/versitygw@v1.8.0
	@rm -rf $(STORES)/go

stores: $(DEV) $(STORES)/bin/versitygw ## Faults at every request of an object store, writers on a real server (minutes; needs Go)
	@INTARSIA_STORES=full $(PYTEST) --timeout 3600 -m "not spark" tests/stores $(ARGS)

# The package lies beside the others and comes before the one among them.
$(OLDEST)/.installed: requirements/duckdb-oldest.txt $(DEV)
	@rm -rf $(OLDEST)
	@$(call install,--no-deps --require-hashes --requirement requirements/duckdb-oldest.txt --target $(OLDEST))
	@touch $@

duckdb-oldest: $(OLDEST)/.installed ## Run what DuckDB is tested with on the oldest version that is supported
	@PYTHONPATH=$(OLDEST) $(PYTEST) -m "not spark" -k duckdb tests/duckdb tests/contract tests/spec tests/bad_input \
	  tests/unit/test_auto_engine.py $(ARGS)

bench: $(BENCH) ## Measure against the peers, as ratios in one run
	@$(BIN)/python -m bench $(ARGS)

bench-spark: $(BENCH) ## Measure on Spark against Delta Lake and Iceberg (long; Spark fetches their jars)
	@$(BIN)/python -m bench.spark $(ARGS)

bench-pipeline: $(BENCH) ## Measure a pipeline on Spark against the same by hand in PySpark
	@$(BIN)/python -m bench.spark.pipeline $(ARGS)

bench-files: $(BENCH) ## Measure a small merge at the start, and into many files
	@$(BIN)/python -m bench.files $(ARGS)

bench-iceberg: $(BENCH) ## Measure on an Iceberg table whose spec has evolved, against Iceberg on Spark and PyIceberg
	@$(BIN)/python -m bench.iceberg $(ARGS)

bench-tpch: $(BENCH) ## Measure TPC-H's refresh functions and LHBench's merges against all peers (ARGS="--scale 1 --peers polars")
	@$(BIN)/python -m bench.tpch $(ARGS)

demo: $(DEV) ## Run a shop's pipeline on local Spark: files and a stream, queries, a function; ends with a report
	@$(BIN)/python examples/pipeline_demo.py $(ARGS)

tour: $(DEV) ## Every operation in process, on a generated dataset, with plans and pictures (seconds)
	@$(BIN)/python examples/demo.py $(ARGS)

lock: ## Pin the requirements again (needs uv; make lock ARGS=--upgrade takes newer versions)
	@$(COMPILE) $(ARGS) pyproject.toml requirements/dev.in --output-file requirements/dev.txt
	@$(COMPILE) $(ARGS) requirements/bench.in --output-file requirements/bench.txt
	@$(COMPILE) $(ARGS) requirements/duckdb-oldest.in --output-file requirements/duckdb-oldest.txt

clean: ## Remove caches and build results
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis demo-output
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## Remove .venv as well
	@rm -rf $(VENV)

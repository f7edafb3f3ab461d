# Everything that a fresh checkout needs is done by `make run` and `make test`: Python 3.11 or newer and make are enough.
# With uv on the path it is used, because it is faster; the result is the same: exactly what requirements-dev.txt pins.

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
ARGS  ?=
# Most tests wait for something, so there may be more of them than cores.
JOBS  ?= 3
LOCK  := --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

.DEFAULT_GOAL := help
.PHONY: help run test check format lock clean bench

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1|\2/p' Makefile | awk -F'|' '{ printf "  %-12s %s\n", $$1, $$2 }'

run: $(READY)  ## set up if needed, then serve the demo on http://127.0.0.1:8000
	@$(BIN)/earlybyte serve $(ARGS)

test: $(READY)  ## set up if needed, then run all tests (ARGS="-k name" for some)
	@: # The browser's tests have processes of their own: their driver switches stacks, which other tests do not bear.
	@: # Exit code 5 says that ARGS selects none of a part.
	@# Both run, whatever the first one finds.
	@code=0; \
	$(BIN)/python -m pytest --ignore tests/browser -n $(JOBS) --dist loadfile $(ARGS) || [ $$? -eq 5 ] || code=1; \
	$(BIN)/python -m pytest tests/browser -n 2 --dist load $(ARGS) || [ $$? -eq 5 ] || code=1; \
	exit $$code

check: $(READY)  ## format, lint, types, layers and unit tests, in under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit

format: $(READY)  ## format, and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# CASES="paced fan-out" for some of them, QUICK=1 for a look at all of them in a few minutes.
bench: $(READY)  ## measure the service beside its baselines (CASES="paced idle", QUICK=1); docs/performance.md
	@$(BIN)/python -m benchmarks $(CASES) $(if $(QUICK),--quick) $(ARGS)

# Hashes pin the exact files; the index they come from is the business of whoever installs them.
lock:  ## make requirements*.txt anew from pyproject.toml (needs uv)
	uv pip compile --quiet $(UPGRADE) $(LOCK) pyproject.toml -o requirements.txt
	uv pip compile --quiet $(UPGRADE) $(LOCK) --group dev -c requirements.txt pyproject.toml -o requirements-dev.txt
	uv pip compile --quiet $(UPGRADE) $(LOCK) --group bench -c requirements.txt pyproject.toml -o requirements-bench.txt

clean:  ## remove the environment and what tools left behind
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find app benchmarks migrations tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Made anew when a pin changes; otherwise at once.
$(READY): requirements-dev.txt pyproject.toml
	@set -e; \
	if command -v uv >/dev/null 2>&1; then \
	  [ -x $(BIN)/python ] || uv venv --quiet --no-python-downloads --python '>=3.11' $(VENV); \
	  uv pip sync --quiet --python $(BIN)/python --require-hashes requirements-dev.txt; \
	  uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .; \
	else \
	  if [ ! -x $(BIN)/pip ]; then \
	    found=; \
	    for python in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	      if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
	    done; \
	    [ -n "$$found" ] || { echo 'Python 3.11 or newer is needed, and none was found.' >&2; exit 1; }; \
	    $$found -m venv --clear $(VENV) || { echo 'The venv module is needed (Debian: apt install python3-venv).' >&2; exit 1; }; \
	  fi; \
	  $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt; \
	  $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	fi
	@touch $@

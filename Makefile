# Ksana. `make` alone lists what there is.
SHELL := bash
.DEFAULT_GOAL := help
BIN := .venv/bin
ARGS ?=
# Two workers: the tests also start databases. `make test TEST_WORKERS=8 ARGS='-k queue'` on a big machine.
TEST_WORKERS ?= 2
# Of the random choice of faults in `make torture`: which one, and how many percent of them tests must notice.
SEED ?= 1
LEAST ?= 70
PYTEST = $(BIN)/pytest -q -n $(TEST_WORKERS) --timeout 120

.PHONY: help setup run test quick dev servers check lint types imports pytest bench torture mutants console docs walks conformance format dist ci

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with what Ksana needs; leaves .venv/bin/ksana
	@scripts/setup

run: setup ## Serve on 127.0.0.1:7100, data in ./data (ARGS='--port 7200')
	@exec $(BIN)/ksana serve $(ARGS)

test: dev servers check pytest ## Everything a change must pass: set-up, lint, types, imports, tests

dev: setup
	@scripts/setup dev

servers:
	@scripts/servers
	@scripts/examples
	@scripts/console

check: lint types imports

lint: dev ## Lint and check the format
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }

format: dev ## Format and apply the safe fixes
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

types: dev ## Check the types (strict)
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary --package tests.ground

imports: dev ## Check the direction of imports
	@$(BIN)/lint-imports --no-cache > .venv/.imports.log 2>&1 || { cat .venv/.imports.log; exit 1; }

pytest: dev servers
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(PYTEST) -m "not slow" $(ARGS)

quick: dev ## The tests that need no server: a minute, on any machine
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(PYTEST) -m "not slow" tests/unit tests/architecture tests/engine tests/api $(ARGS)

torture: dev servers ## Every class of faults, the slow tests, the properties with many more examples, 200 faults in the code; RECORD=1 writes the table into the docs
	@rm -f .venv/torture-figures.txt
	@HYPOTHESIS_PROFILE=ci KSANA_TORTURE=.venv/torture.md KSANA_FIGURES=$(CURDIR)/.venv/torture-figures.txt RECORD=$(RECORD) \
		$(PYTEST) --timeout 1800 -m "slow or fault" $(ARGS)
	@if [ -d tests/properties ]; then HYPOTHESIS_PROFILE=torture $(PYTEST) --timeout 1800 tests/properties; fi
	@nice $(BIN)/python -m tests.ground.code --sample 200 --seed $(SEED) --least $(LEAST)

mutants: dev ## Break the program on purpose, one thing at a time; list what no test notices (ARGS='domain')
	@if [ -z "$(ARGS)" ]; then nice $(BIN)/python -m tests.ground.guards && nice $(BIN)/python -m tests.ground.moves; fi
	@nice $(BIN)/python -m tests.ground.code $(ARGS)

bench: dev servers ## Measure; each figure as a ratio to its floor (ARGS='commit_queue')
	@$(BIN)/python -m bench $(ARGS)

console: ## Build the console into the package (needs Node)
	@scripts/console build

docs: dev ## Write the generated pages anew: settings, commands, endpoints, events, diagrams
	@$(BIN)/python -m tests.ground.pages

dist: dev ## Build the wheels and the source archive into dist/
	@scripts/dist

walks: dev ## Take the walks of docs/internals/tour.md anew from a running server
	@$(BIN)/python -W ignore -m tests.ground.walks

conformance: dev ## Which tests prove which item of the contract (ARGS='--require X --names')
	@$(BIN)/python -m tests.ground.conformance $(ARGS)

ci: ## What .ci/run does
	@.ci/run

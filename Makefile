# make demo: mint tasks from real libraries.  make test: all tests.  make check: lint, types, import direction.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_OUT ?= data/demo
# These share one Docker engine, which the first of them starts; the others run two modules at a time.
DOCKER_TESTS := tests/test_sandbox_conformance.py tests/test_sandboxes.py tests/test_both_sandboxes.py \
	tests/test_attack_suite.py

.PHONY: demo test check clean
.DELETE_ON_ERROR:

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("taskgen needs Python 3.11 or newer: make PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq -e '.[dev,judge,train]'
	@touch $@

demo: $(VENV)/.ready
	@sandbox/ensure-bubblewrap.sh
	@rm -rf $(DEMO_OUT)
	$(BIN)/taskgen doctor
	$(BIN)/taskgen build --out $(DEMO_OUT) --only inflection --only xmltodict --only boltons --max-tasks 5
	$(BIN)/taskgen show $(DEMO_OUT)
	@set -e; for task in $$(ls -d $(DEMO_OUT)/tasks/*boltons*feature* | head -1); do \
		echo "$(BIN)/taskgen grade $$task --gold"; \
		$(BIN)/taskgen grade $$task --gold; \
		echo "$(BIN)/taskgen grade $$task --empty"; \
		$(BIN)/taskgen grade $$task --empty || test $$? -eq 4; \
	done

test: $(VENV)/.ready
	@sandbox/ensure-bubblewrap.sh
	@sandbox/ensure-docker.sh
	$(BIN)/python -m pytest -n 2 --dist loadfile $(DOCKER_TESTS:%=--ignore=%)
	$(BIN)/python -m pytest $(DOCKER_TESTS)

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check taskgen trainer tests benchmarks
	$(BIN)/mypy taskgen trainer
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) data/demo

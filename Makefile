# Every target works on a bare machine with Python 3.11 or newer; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help demo test soak lint bench load screenshots lock audit venv translations clean
PY := .venv/bin/python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

demo: translations ## train under faults, report, settle, serve http://127.0.0.1:8000 (ARGS=--no-serve ends after the report)
	@$(PY) manage.py demo $(ARGS)

test: export NEED_SYSTEM_PACKAGES = 1
test: translations ## lint, then the whole suite on PostgreSQL and on SQLite (ARGS='tests/test_x.py -k name' for a part)
	@$(PY) -m tools.suite $(ARGS)

soak: venv ## the agent's long tests: every kill point by itself, then FAULTS=500 random ones from SEED=1
	@$(PY) -m pytest -m "agent and slow"
	@$(PY) -m tests.agent.soak --faults $(or $(FAULTS),500) --seed $(or $(SEED),1)

lint: venv ## ruff, mypy, import-linter, Django's checks, missing migrations
	@$(PY) -m tools.suite --lint

bench: venv ## measure the figures of docs/benchmarks.md into build/bench.json (ONLY=agent|service|KEY,… for a part)
	@$(PY) -m tools.bench --only '$(ONLY)'

load: export NEED_SYSTEM_PACKAGES = 1
load: venv ## 15 minutes of mixed traffic, database and broker killed on the way, everything counted (MINUTES=15, AGENTS=100)
	@$(PY) -m tools.load --minutes $(or $(MINUTES),15) --agents $(or $(AGENTS),100) $(ARGS)

screenshots: translations ## take the pictures of README in chromium (docs/screenshots)
	@$(PY) -m tools.screenshots

LOCK = @$(PY) -m uv pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-annotate \
	--custom-compile-command "make lock" $(ARGS)
lock: venv ## write requirements/*.lock after a change of requirements/*.txt (ARGS=--upgrade takes the newest versions)
	$(LOCK) requirements/service.txt --output-file requirements/service.lock
	@# torchdata alone of the tools needs torch, whose wheel is chosen for the accelerator (docs/security.md)
	$(subst @,@echo "torch; sys_platform == 'never'" | ,$(LOCK)) requirements/dev.txt requirements/service.lock \
		--override /dev/stdin --no-emit-package torch --output-file requirements/dev.lock

audit: venv ## look what the locks pin up in the database of known vulnerabilities; fails if it cannot
	@$(PY) -m uv tool run pip-audit --strict --disable-pip --require-hashes -r requirements/service.lock -r requirements/dev.lock

venv: ## make .venv and install requirements.txt; nothing to do when both are current
	@if [ -n "$$NEED_SYSTEM_PACKAGES" ]; then tools/system_packages.sh; fi
	@tools/venv.sh

translations: venv
	@if [ -n "$$(find locale -name '*.po')" ]; then .venv/bin/pybabel --quiet compile --domain django --directory locale; fi

clean: ## remove what the targets made, except .venv and the demo's database
	@rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache staticfiles

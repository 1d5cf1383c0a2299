"""Run the checks and the whole test suite: what `make lint` and `make test` do.

    .venv/bin/python -m tools.suite [--lint] [PYTEST ARGUMENTS...]

Every step runs even if an earlier one failed; the end lists them all, and the exit status is 1 if any failed.
The tests run in three passes:

1. on PostgreSQL, with Redis and a browser, on all cores: everything but the agent's tests;
2. the agent's tests alone, on one core at a time: they start training processes and measure times (its long matrix of
   every kill point by itself, and a longer soak, are `make soak`);
3. on SQLite, all tests that use a database, since every invariant must hold on both.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tools import services

PYTHON = sys.executable
BIN = os.path.dirname(PYTHON)
NO_TESTS_COLLECTED = 5  # pytest's exit status


class Step(NamedTuple):
    name: str
    command: Sequence[str]


LINT = [
    Step("ruff check", [f"{BIN}/ruff", "check", "."]),
    Step("ruff format", [f"{BIN}/ruff", "format", "--check", "."]),
    Step("mypy", [f"{BIN}/mypy", "agent", "yoco", "tools"]),
    Step("import-linter", [f"{BIN}/lint-imports", "--no-cache"]),
    Step("Django's checks", [PYTHON, "manage.py", "check", "--fail-level=WARNING"]),
    Step("migrations complete", [PYTHON, "manage.py", "makemigrations", "--check", "--dry-run"]),
]

PYTEST = [PYTHON, "-m", "pytest", "--durations=5"]
PARALLEL = ["-n", "auto", "--dist", "loadgroup"]
ON_POSTGRES = Step("tests on PostgreSQL", [*PYTEST, *PARALLEL, "-m", "not agent"])
AGENT = Step("tests of the agent", [*PYTEST, "-m", "agent and not slow"])
ON_SQLITE = Step(
    "tests on SQLite",
    [*PYTEST, *PARALLEL, "-m", "database and not (postgres or redis or browser or agent)"],
)


def run_step(step: Step, environment: Mapping[str, str]) -> tuple[Step, int, float]:
    print(f"\n── {step.name}: {' '.join(step.command)}", flush=True)
    began = time.monotonic()
    status = services.run(step.command, environment)
    return step, status, time.monotonic() - began


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.suite", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lint", action="store_true", help="only the checks, no tests")
    options, selection = parser.parse_known_args(arguments)
    if options.lint and selection:
        parser.error(f"--lint takes no other arguments, found {' '.join(selection)}")
    services.end_on_signals()

    # The developer's own database and broker stay out of it.
    environment = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    results = []
    if options.lint or not selection:
        lint_environment = environment | {"DATABASE_URL": "sqlite://:memory:"}
        results += [run_step(step, lint_environment) for step in LINT]
    if not options.lint:
        try:
            results += run_tests(selection, environment | {"YOCO_TEST_STRICT": "1"})
        except services.ServiceError as error:
            print(f"tests: {error}", file=sys.stderr)
            return 2
    return summary(results, allow_empty=bool(selection))


def run_tests(selection: Sequence[str], environment: Mapping[str, str]) -> list[tuple[Step, int, float]]:
    with services.postgres_and_redis() as (postgres, cache):
        urls = {"TEST_DATABASE_URL": postgres.url, "TEST_REDIS_URL": cache.url}
        results = [
            run_step(Step(step.name, [*step.command, *selection]), {**environment, **urls})
            for step in (ON_POSTGRES, AGENT)
        ]
    results.append(run_step(Step(ON_SQLITE.name, [*ON_SQLITE.command, *selection]), environment))
    return results


def summary(results: Sequence[tuple[Step, int, float]], *, allow_empty: bool) -> int:
    """Print one line per step; return 0 if all succeeded. With `allow_empty` a pass, not all, may find no test."""
    print()
    statuses = [status for _, status, _ in results]
    empty_is_fine = allow_empty and any(status != NO_TESTS_COLLECTED for status in statuses)
    failed = False
    for step, status, seconds in results:
        if status == NO_TESTS_COLLECTED and empty_is_fine:
            verdict = "none selected"
        elif status == 0:
            verdict = "ok"
        else:
            verdict, failed = f"FAILED (exit status {status})", True
        print(f"{step.name:22} {seconds:7.1f} s  {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

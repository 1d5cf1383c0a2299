"""`tools/suite.py` and the marks: nothing that should have run may be missing without a failure."""

import os
import subprocess
import sys

import pytest

from tests.services import ROOT
from tools.suite import LINT, NO_TESTS_COLLECTED, ON_POSTGRES, ON_SQLITE, main, summary

POSTGRES_TEST = "tests/test_services.py::test_the_exit_status_of_the_command_is_passed_on"


def bare_pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as on a machine with no services."""
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("TEST_", "YOCO_TEST_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=ROOT, env=bare | environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_without_services_a_test_that_needs_one_is_skipped_with_the_reason():
    done = bare_pytest(POSTGRES_TEST)
    assert done.returncode == 0
    assert "TEST_DATABASE_URL is not set; `make test` starts a PostgreSQL" in done.stdout
    assert "1 skipped" in done.stdout


def test_under_make_test_that_is_an_error():
    done = bare_pytest(POSTGRES_TEST, YOCO_TEST_STRICT="1")
    assert done.returncode == 1
    assert "needs postgres: TEST_DATABASE_URL is not set" in done.stdout


def test_a_test_with_a_database_is_in_the_pass_on_sqlite_and_one_without_is_not():
    done = bare_pytest("--collect-only", "-m", ON_SQLITE.command[-1], "tests/test_foundation.py")
    assert "test_an_ingest_key_reads_nothing" in done.stdout
    assert "test_midnight_that_does_not_exist" not in done.stdout


@pytest.mark.parametrize(
    ("statuses", "allow_empty", "expected"),
    [
        ([0, 0], False, 0),
        ([0, 1], False, 1),
        ([-9, 0], False, 1),
        ([0, NO_TESTS_COLLECTED], False, 1),
        ([0, NO_TESTS_COLLECTED], True, 0),
        ([NO_TESTS_COLLECTED, NO_TESTS_COLLECTED], True, 1),
    ],
)
def test_the_status_is_0_only_if_every_step_did_its_work(statuses, allow_empty, expected, capsys):
    steps = [LINT[0], ON_POSTGRES]
    results = [(step, status, 1.0) for step, status in zip(steps, statuses, strict=True)]
    assert summary(results, allow_empty=allow_empty) == expected
    assert capsys.readouterr().out.count("FAILED") == (expected and sum(1 for s in statuses if s))


def test_lint_takes_no_tests(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--lint", "tests/test_suite.py"])
    assert ended.value.code == 2
    assert "--lint takes no other arguments, found tests/test_suite.py" in capsys.readouterr().err

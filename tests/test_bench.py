"""The benchmarks' command: which keys it knows, what it judges, what it writes. No benchmark runs here."""

import json
import sys
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

from tools.bench import __main__ as command
from tools.bench.registry import Bench, CannotRun, Goal, Reading

DESIGNED = {
    "service.batch_vs_copy",
    "service.single_vs_hello",
    "service.import_million_lines_s",
    "service.year_report_ms",
    "service.all_years_vs_pass",
    "service.page_vs_sql",
    "service.ledger_verify_postings_s",
}
SMALL = Goal("service.small", "something small", "ms", "<= 20", "<= 5")
BROKEN = Goal("service.broken", "something that breaks", "s", "<= 1")
ABSENT = Goal("service.absent", "something that needs what is not here", "s", "<= 1")


def small(_wanted: Set[str]) -> Iterator[Reading]:
    yield Reading(SMALL.key, [3.00001, 9.0, 4.0], notes=("a note",))


def broken(_wanted: Set[str]) -> Iterator[Reading]:
    raise ZeroDivisionError("no luck")
    yield


def absent(_wanted: Set[str]) -> Iterator[Reading]:
    raise CannotRun("PostgreSQL is missing")
    yield


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command with benchmarks that take no time, in a directory of its own."""
    benches = tuple(Bench((goal,), run) for goal, run in ((SMALL, small), (BROKEN, broken), (ABSENT, absent)))
    monkeypatch.setattr(command, "benches", lambda suite: benches if suite == "service" else ())
    monkeypatch.setattr(command, "end_on_signals", lambda: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "build" / "bench.json"


def test_it_writes_the_file_that_the_design_describes(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "service.small"]) == 0
    assert json.loads(suite.read_text()) == {
        "service.small": {"value": 4.0, "unit": "ms", "goal": "<= 20", "runs": 3, "spread": [3.0, 9.0]}
    }
    assert "stretch  3: 3 to 9" in capsys.readouterr().out


def test_only_keeps_the_other_keys_and_drops_what_could_not_run(
    suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.parent.mkdir()
    suite.write_text(json.dumps({"agent.kept": {"value": 1}, "service.absent": {"value": 2}}))
    assert command.main(["--only", "service.small,service.absent"]) == 0
    assert set(json.loads(suite.read_text())) == {"agent.kept", "service.small"}
    assert "not run: PostgreSQL is missing" in capsys.readouterr().out


def test_a_broken_benchmark_fails_the_command_but_not_the_others(suite: Path) -> None:
    assert command.main([]) == 1
    assert set(json.loads(suite.read_text())) == {"service.small"}


def test_an_unknown_key_is_refused(suite: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--only", "service.nonsense"])
    assert ended.value.code == 2
    assert not suite.exists()


def test_a_failed_condition_misses_the_goal_whatever_the_figure() -> None:
    assert Reading("k", [1.0]).verdict(SMALL) == "stretch"
    assert Reading("k", [10.0]).verdict(SMALL) == "met"
    assert Reading("k", [1.0], checks=(("13 queries (<= 12)", False),)).verdict(SMALL) == "missed"
    assert Reading("k", [20.5]).verdict(SMALL) == "missed"


def test_every_key_of_the_service_is_registered() -> None:
    from tools.bench.service import BENCHES

    assert {goal.key for bench in BENCHES for goal in bench.goals} >= DESIGNED
    assert "tools.bench.server_urls" not in sys.modules  # the view that does nothing is loaded by its server alone

"""A worker that dies after the last step: nothing was left to do, and only the run's own end proves that."""

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.agent.launch import train
from tests.guarantee.facts import facts, placed
from tests.ingest.conftest import AgentClient, agent, now  # noqa: F401  (fixtures)
from tests.ingest.reports import after, heartbeat, report
from tests.people import World
from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.models import Placement, RestatementDue
from yoco.guarantee.selectors import year_report
from yoco.guarantee.services import years_close

CLOSED = datetime.datetime(2027, 10, 5, tzinfo=datetime.UTC)
LAST: dict[str, Any] = {
    "progress__first_step_after": None,
    "progress__samples_after": 76800,
    "progress__samples_per_step": 0,
}


def rule() -> str:
    return Placement.objects.get().rule


def ended(**changes: Any) -> dict[str, Any]:
    return heartbeat(**{"seq": 1, "step": 1200, "run_ended": True, "at": after(120), **changes})


def test_it_is_resolved_once_the_run_has_ended_there(agent: AgentClient, world: World) -> None:  # noqa: F811
    agent.reports(report(**LAST))
    assert rule() == "lost_progress"
    agent.missing(heartbeat(seq=1, step=1200, at=after(115)))
    assert rule() == "lost_progress"
    agent.missing(ended())
    assert rule() == "run_complete"
    placement = Placement.objects.get()
    assert {item["condition"]: item["reason"] for item in placement.evidence} == {
        "live_migration": "ok_live_source",
        "no_lost_progress": "ok_run_complete",
        "no_rollback": "ok_no_checkpoint",
        "no_recompute": "ok_same_samples",
    }
    report_now = year_report(year=world.year)
    assert (report_now.counted, report_now.resolved) == (1, 1)


def test_it_does_not_matter_which_arrives_first(agent: AgentClient, world: World) -> None:  # noqa: F811
    agent.missing(ended())
    agent.reports(report(**LAST))
    assert rule() == "run_complete"


@pytest.mark.parametrize(
    "end",
    [
        {"step": 1199},
        {"step": 1201},
        {"step": None},
        {"at": after(100)},  # before the recovery was over
        {"run_id": "another", "boot_id": "0192f0a0-0000-7000-8000-000000000002"},
        {"run_ended": False},
    ],
)
def test_another_end_proves_nothing(agent: AgentClient, world: World, end: dict[str, Any]) -> None:  # noqa: F811
    agent.reports(report(**LAST))
    agent.missing(ended(**end))
    assert rule() == "lost_progress"


@pytest.mark.parametrize(
    ("lack", "expected"),
    [
        ({"state__digest_received": "cd" * 16}, "no_live_migration"),
        ({"phases__state_verified_at": None}, "no_live_migration"),
        ({"progress__checkpoint_loaded": True}, "rolled_back"),
        ({"progress__samples_after": None}, "recomputed"),
        ({"resolution": "abandoned"}, "no_live_migration"),
    ],
)
def test_the_other_conditions_still_have_to_be_met(
    agent: AgentClient,  # noqa: F811
    world: World,
    lack: dict[str, Any],
    expected: str,
) -> None:
    agent.reports(report(**{**LAST, **lack}))
    agent.missing(ended())
    assert rule() == expected


def test_a_later_run_under_the_same_name_takes_nothing_back(agent: AgentClient, world: World) -> None:  # noqa: F811
    agent.reports(report(**LAST))
    agent.missing(ended())
    agent.missing(ended(boot_id="0192f0a0-0000-7000-8000-000000000002", seq=0, step=2400, at=after(400)))
    assert rule() == "run_complete"
    agent.reports(report(**{**LAST, "incident_id": Placement.objects.get().incident.public_id.hex, "seq": 2}))
    assert rule() == "run_complete"


def test_an_end_that_its_own_boot_takes_back_proves_nothing(agent: AgentClient, world: World) -> None:  # noqa: F811
    agent.reports(report(**LAST))
    agent.missing(ended())
    agent.missing(heartbeat(seq=1, step=1100, at=after(180)))
    assert rule() == "lost_progress"


def test_the_end_of_one_boot_proves_nothing_while_another_goes_on(agent: AgentClient, world: World) -> None:  # noqa: F811
    other = "0192f0a0-0000-7000-8000-000000000002"
    agent.missing(heartbeat(boot_id=other, seq=0, step=1200, at=after(110)))
    agent.missing(ended(seq=0))
    agent.missing(heartbeat(boot_id=other, seq=0, step=1500, at=after(200)))
    agent.reports(report(**LAST))
    assert rule() == "lost_progress"


def test_an_end_told_after_the_close_is_restated(agent: AgentClient, world: World) -> None:  # noqa: F811
    agent.reports(report(**LAST))
    years_close(as_of=CLOSED)
    assert year_report(year=world.year).verdict == "short"
    agent.missing(ended())
    assert RestatementDue.objects.get().reasons == ["run_ended"]
    (restated,) = years_close(as_of=CLOSED).restated
    assert (restated.verdict, restated.reason) == ("met", "run_ended")


def test_a_real_run_reports_what_the_rule_asks_for(tmp_path: Path) -> None:
    """A worker of a real training job is killed after its last step."""
    outcome = train(tmp_path / "run", faults="kill:rank=1,point=end", workers=2, spares=1, steps=3)
    assert outcome.status == 0, outcome.output
    (told,) = outcome.resolved()
    phases = {name: datetime.datetime.fromisoformat(text) for name, text in told["phases"].items()}
    progress = {name: told["progress"][name] for name in IncidentFacts.__slots__ if name in told["progress"]}
    state = {"state_source": told["state"].pop("source"), "state_bytes": told["state"].pop("bytes"), **told["state"]}
    assert (progress["last_committed_step"], progress["first_step_after"]) == (3, None)
    one = facts(**{**phases, **progress, **state, "resolution": told["resolution"]})
    start = phases["started_at"] - datetime.timedelta(days=1)
    span = {"starts_at": start, "guaranteed_from": start}
    span |= dict.fromkeys(("ends_at", "guaranteed_until", "closes_at"), start + datetime.timedelta(days=365))
    assert placed(one, **span) == ("not_resolved", "lost_progress")
    complete = dataclasses.replace(one, run_ended_at=one.resumed_at, run_ended_step=3)
    assert placed(complete, **span) == ("resolved", "run_complete")

"""What was never told: silent runs and gaps become unaccounted until a true report fills them."""

import datetime
import uuid

import pytest

from tests.ingest.conftest import NOW, AgentClient
from tests.ingest.reports import after, detected, heartbeat, report
from tests.people import World
from yoco.contracts.models import GuaranteeTerms
from yoco.guarantee.intake import silences_account
from yoco.incidents.models import AgentBoot, Incident

MINUTE = datetime.timedelta(minutes=1)


def sweep(clock, minutes: float) -> dict[uuid.UUID, int]:
    """Moves the clock to `minutes` after the first sign of life and sweeps."""
    at = NOW + minutes * MINUTE
    clock.move_to(at)
    return silences_account(as_of=at)


def silences() -> list[Incident]:
    return list(Incident.objects.filter(origin="silence").order_by("id"))


@pytest.fixture
def beating(agent: AgentClient) -> AgentClient:
    agent.missing(heartbeat(at=NOW.isoformat(), workload=report()["workload"]))
    return agent


def test_a_silent_run_becomes_unaccounted_once(beating: AgentClient, world: World, now) -> None:
    assert sweep(now, 59) == {}
    (silence,) = silences() if sweep(now, 61) else []
    assert (silence.state, silence.kind, silence.signal, silence.gpus) == ("open", "unplanned", "heartbeat_lost", 2048)
    assert silence.started_at == NOW
    assert silence.placement.outcome == "unaccounted"
    assert silence.trigger_detail["last_step"] == 1200
    assert sweep(now, 62) == {}
    assert sweep(now, 6000) == {}
    assert len(silences()) == 1


def test_the_window_is_the_terms(beating: AgentClient, world: World, now) -> None:
    GuaranteeTerms.objects.create(
        contract=world.contract, version=2, effective_on=datetime.date(2026, 10, 1), silence_window_minutes=10
    )
    assert sweep(now, 9) == {}
    assert sweep(now, 11) == {world.contract.pk: 1}


def test_a_run_that_said_it_ended_is_not_silent(beating: AgentClient, now) -> None:
    beating.missing(heartbeat(at=NOW.isoformat(), run_ended=True))
    assert sweep(now, 600) == {}


def test_a_heartbeat_with_nothing_missing_explains_the_silence(beating: AgentClient, now) -> None:
    sweep(now, 61)
    now.move_to(NOW + 70 * MINUTE)
    beating.missing(heartbeat(at=(NOW + 70 * MINUTE).isoformat(), seq=1))
    assert silences()[0].state == "open", "report 1 is still missing"
    now.move_to(NOW + 71 * MINUTE)
    beating.reports(report(seq=1))
    (silence,) = silences()
    assert (silence.state, silence.revision) == ("resolved", 2)
    assert silence.placement.outcome == "not_counted"


def test_a_run_can_fall_silent_again(beating: AgentClient, now) -> None:
    sweep(now, 61)
    now.move_to(NOW + 70 * MINUTE)
    beating.missing(heartbeat(at=(NOW + 70 * MINUTE).isoformat()))
    assert [one.state for one in silences()] == ["resolved"]
    sweep(now, 131)
    assert [one.state for one in silences()] == ["resolved", "open"]


def test_the_true_report_fills_it_without_counting_twice(beating: AgentClient, now) -> None:
    sweep(now, 61)
    now.move_to(NOW + 90 * MINUTE)
    moment = datetime.timedelta(seconds=20) + NOW
    body = report(
        seq=1,
        boot_id=str(uuid.uuid4()),
        phases={"started_at": moment.isoformat(), "resumed_at": (moment + 80 * MINUTE).isoformat()},
        sent_at=(NOW + 85 * MINUTE).isoformat(),
        resolution="checkpoint_restart",
    )
    assert beating.statuses(body) == ["created"]
    (silence,) = silences()
    assert silence.state == "resolved"
    assert silence.explained_by is not None
    assert (silence.placement.outcome, silence.placement.rule) == ("not_counted", "explained")
    assert str(silence.explained_by.public_id) == body["incident_id"]
    assert sweep(now, 95) == {}


def test_an_unrelated_run_explains_nothing(beating: AgentClient, now) -> None:
    sweep(now, 61)
    body = report(seq=1, workload__run_id="another", boot_id=str(uuid.uuid4()), agent_id="another")
    beating.reports(body)
    assert silences()[0].state == "open"


def test_an_incident_still_open_accounts_for_the_silence(beating: AgentClient, now) -> None:
    beating.reports(detected())
    assert sweep(now, 61) == {}
    assert silences() == []


def test_several_boots_of_one_run_are_one_silence(beating: AgentClient, now) -> None:
    for second in (1, 2):
        beating.missing(heartbeat(at=NOW.isoformat(), agent_id=f"node-{second}", boot_id=str(uuid.uuid4())))
    now.move_to(NOW + MINUTE)
    beating.missing(heartbeat(at=(NOW + MINUTE).isoformat(), agent_id="late", boot_id=str(uuid.uuid4())))
    sweep(now, 60.5)
    sweep(now, 62)
    (silence,) = silences()
    assert len(silence.trigger_detail["boots"]) == 4
    assert silence.revision == 2


def test_a_gap_that_never_fills_becomes_unaccounted_and_filling_explains_it(agent: AgentClient, now) -> None:
    agent.reports(report(seq=1), report(seq=4))
    agent.missing(heartbeat(seq=4, at=NOW.isoformat(), run_ended=True))
    assert sweep(now, 1) == {}
    assert sweep(now, 60) == {}
    assert sweep(now, 61) != {}
    (gap,) = silences()
    assert (gap.trigger_detail["first"], gap.trigger_detail["last"]) == (2, 3)
    assert gap.started_at.isoformat() == after(200).replace("Z", "+00:00")
    assert sweep(now, 200) == {}
    agent.reports(report(seq=2))
    assert silences()[0].state == "open"
    late = report(seq=3)
    agent.reports(late)
    (gap,) = silences()
    assert gap.state == "resolved"
    assert gap.explained_by is not None
    assert AgentBoot.objects.get().accounted_seq == 4
    assert sweep(now, 400) == {}


def test_a_gap_that_fills_in_time_is_nothing(agent: AgentClient, now) -> None:
    agent.missing(heartbeat(seq=2, at=NOW.isoformat(), run_ended=True))
    sweep(now, 1)
    agent.reports(report(seq=1), report(seq=2))
    sweep(now, 90)
    assert silences() == []
    assert AgentBoot.objects.get().gap_since is None


def test_a_later_gap_of_the_same_boot_waits_its_own_window(agent: AgentClient, now) -> None:
    agent.missing(heartbeat(seq=1, at=NOW.isoformat(), run_ended=True))
    sweep(now, 1)
    agent.reports(report(seq=3))
    sweep(now, 62)
    assert [one.trigger_detail["last"] for one in silences()] == [1]
    sweep(now, 63)
    sweep(now, 124)
    assert [one.trigger_detail["last"] for one in silences()] == [1, 2]

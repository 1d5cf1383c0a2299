"""What was never told: silent runs and gaps become unaccounted until a true report fills them."""

import datetime
import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from tests.ingest.conftest import NOW, AgentClient
from tests.ingest.reports import DETECTED, after, detected, heartbeat, report
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


def test_a_slow_clock_is_no_silence(agent: AgentClient, now) -> None:
    """Of a boot whose clock is two hours behind: heard every half hour, then lost; its failure explains the silence."""
    for minutes in (0, 30, 60, 90):
        at = NOW + minutes * MINUTE
        now.move_to(at)
        agent.missing(heartbeat(at=(at - 120 * MINUTE).isoformat(), step=1200))
        assert sweep(now, minutes + 29) == {}
    assert sweep(now, 149) == {}
    (silence,) = silences() if sweep(now, 151) else []
    assert silence.started_at == NOW - 30 * MINUTE  # by its own clock, as whatever it may still tell
    failed = NOW - 30 * MINUTE
    phases = {"phases__started_at": failed.isoformat(), "phases__detected_at": failed.isoformat()}
    agent.reports(detected(**phases, sent_at=failed.isoformat()))
    silence.refresh_from_db()
    assert silence.state == "resolved"


def test_the_window_is_that_of_the_contract_year(beating: AgentClient, world: World, now) -> None:
    """A version that takes effect during a year governs from the next year on."""
    shorter = {"effective_on": datetime.date(2026, 10, 1), "silence_window_minutes": 10}
    GuaranteeTerms.objects.create(contract=world.contract, version=2, **shorter)
    assert sweep(now, 59) == {}
    assert sweep(now, 61) == {world.contract.pk: 1}


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


def failure(minute: float, **changes: Any) -> dict[str, Any]:
    """A failure told of at `minute` after the first sign of life, and not over."""
    moment = NOW + minute * MINUTE
    body = detected(sent_at=(moment + MINUTE / 60).isoformat(), **changes)
    return {**body, "phases": {"started_at": moment.isoformat()}}


def test_a_failure_still_open_accounts_for_the_silence(beating: AgentClient, now) -> None:
    now.move_to(NOW + 2 * MINUTE)
    beating.reports(failure(1))
    assert sweep(now, 70) == {}
    assert sweep(now, 700) == {}
    assert silences() == []


def test_a_failure_open_for_long_covers_only_a_run_that_stands(beating: AgentClient, now) -> None:
    now.move_to(NOW + 2 * MINUTE)
    beating.reports(failure(1))
    for minute, step in ((20, 1200), (40, 1200)):
        now.move_to(NOW + minute * MINUTE)
        beating.missing(heartbeat(at=(NOW + minute * MINUTE).isoformat(), seq=1, step=step))
    assert sweep(now, 101) == {}
    now.move_to(NOW + 110 * MINUTE)
    beating.missing(heartbeat(at=(NOW + 110 * MINUTE).isoformat(), seq=1, step=1300))
    sweep(now, 171)
    (silence,) = silences()
    assert silence.placement.outcome == "unaccounted"


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "planned", "trigger": {"signal": "operator"}},
        {"kind": "preventive", "trigger": {"signal": "thermal", "detail": {"c": 97}}},
    ],
)
def test_an_open_move_hides_no_silence(beating: AgentClient, now, changes: dict[str, Any]) -> None:
    now.move_to(NOW + 2 * MINUTE)
    beating.reports(failure(1, **changes))
    sweep(now, 70)
    (silence,) = silences()
    assert (silence.state, silence.placement.outcome) == ("open", "unaccounted")
    # Nor does it explain one that is noted already.
    beating.reports(failure(2, seq=2, **changes))
    assert silences()[0].state == "open"
    # The true report does: what was to be a move has become a failure. It counts, and it counts once.
    told = failure(1.5, seq=3, resolution="abandoned")
    beating.reports({**told, "type": "incident.resolved"})
    (silence,) = silences()
    assert (silence.state, silence.placement.outcome) == ("resolved", "not_counted")
    assert str(silence.explained_by.public_id) == told["incident_id"]
    assert silence.explained_by.placement.outcome == "not_resolved"


def test_a_failure_of_another_run_covers_nothing(beating: AgentClient, now) -> None:
    now.move_to(NOW + 2 * MINUTE)
    workload = {**report()["workload"], "run_id": "another"}
    beating.reports(failure(1, workload=workload, boot_id=str(uuid.uuid4()), agent_id="another"))
    sweep(now, 70)
    assert "pretraining-7" in [silence.run.run_id for silence in silences()]


def test_a_failure_that_is_over_hides_no_later_silence(beating: AgentClient, now) -> None:
    """Recovered in four minutes, then lost for good a moment later: the second is another failure."""
    body = report(seq=1)
    shift = NOW + MINUTE - DETECTED
    body["phases"] = {
        name: (datetime.datetime.fromisoformat(at) + shift).isoformat() for name, at in body["phases"].items()
    }
    body["sent_at"] = (NOW + 4 * MINUTE).isoformat()
    now.move_to(NOW + 5 * MINUTE)
    assert beating.statuses(body) == ["created"]
    sweep(now, 70)
    (silence,) = silences()
    assert silence.started_at == NOW + 4 * MINUTE


def test_a_silence_after_one_that_a_failure_covered_is_noted(beating: AgentClient, now) -> None:
    """The operators say the run went on; nothing was heard of it since."""
    now.move_to(NOW + 2 * MINUTE)
    elsewhere = {"boot_id": str(uuid.uuid4()), "agent_id": "operators"}
    told = failure(1, **elsewhere)
    beating.reports(told)
    assert sweep(now, 70) == {}
    resumed = {"started_at": (NOW + MINUTE).isoformat(), "resumed_at": (NOW + 30 * MINUTE).isoformat()}
    over = {**told, "id": str(uuid.uuid4()), "type": "incident.resolved", "seq": 2, "phases": resumed}
    beating.reports(over)
    beating.missing(heartbeat(at=(NOW + 20 * MINUTE).isoformat(), seq=2, run_ended=True, **elsewhere))
    assert sweep(now, 85) == {}
    sweep(now, 91)
    (silence,) = silences()
    assert silence.started_at == NOW + 30 * MINUTE


@pytest.mark.parametrize("step", [None, 1199])
def test_a_bare_end_explains_no_silence(beating: AgentClient, now, step: int | None) -> None:
    sweep(now, 61)
    now.move_to(NOW + 70 * MINUTE)
    beating.missing(heartbeat(at=(NOW + 70 * MINUTE).isoformat(), run_ended=True, step=step))
    assert silences()[0].state == "open"
    now.move_to(NOW + 80 * MINUTE)
    beating.missing(heartbeat(at=(NOW + 80 * MINUTE).isoformat(), run_ended=True, step=1200))
    assert silences()[0].state == "resolved"


@pytest.mark.parametrize("step", [None, 1199])
def test_a_bare_end_is_no_end(beating: AgentClient, now, step: int | None) -> None:
    beating.missing(heartbeat(at=(NOW + MINUTE / 60).isoformat(), run_ended=True, step=step))
    sweep(now, 61)
    assert [silence.placement.outcome for silence in silences()] == ["unaccounted"]


def test_a_run_heard_at_an_earlier_step_was_lost(beating: AgentClient, now) -> None:
    sweep(now, 61)
    now.move_to(NOW + 70 * MINUTE)
    beating.missing(heartbeat(at=(NOW + 70 * MINUTE).isoformat(), step=1000))
    assert silences()[0].state == "open"


def test_a_run_that_never_told_a_step_is_heard_by_any_heartbeat(agent: AgentClient, now) -> None:
    agent.missing(heartbeat(at=NOW.isoformat(), step=None))
    sweep(now, 61)
    assert silences()[0].state == "open"
    now.move_to(NOW + 70 * MINUTE)
    agent.missing(heartbeat(at=(NOW + 70 * MINUTE).isoformat(), step=None, run_ended=True))
    assert silences()[0].state == "resolved"


def test_an_end_leaves_open_incidents_open(beating: AgentClient, now) -> None:
    now.move_to(NOW + 2 * MINUTE)
    beating.reports(failure(1))
    beating.missing(heartbeat(at=(NOW + 2 * MINUTE).isoformat(), seq=1, step=1300, run_ended=True))
    incident = Incident.objects.get(origin="agent")
    assert (incident.state, incident.placement.outcome) == ("open", "pending")


def test_a_boot_tells_of_one_run_so_that_the_next_hides_no_lost_one(beating: AgentClient, now) -> None:
    """The run is lost, and its boot goes on with another one: neither that nor its reports is a sign of life of it."""
    at = NOW + 30 * MINUTE
    now.move_to(at)
    second = heartbeat(at=at.isoformat(), run_id="second", step=9000)
    refused = beating.post("heartbeats", second)
    assert (refused.status_code, list(refused.json()["errors"])) == (422, ["$.run_id"])
    beating.missing({**second, "boot_id": str(uuid.uuid4())})
    assert beating.statuses(report(seq=1, workload__run_id="second", sent_at=at.isoformat())) == ["created"]
    sweep(now, 61)
    (silence,) = silences()
    assert (silence.run.run_id, silence.placement.outcome) == ("pretraining-7", "unaccounted")
    assert beating.missing(heartbeat(at=NOW.isoformat(), seq=2)) == [[2, 2]], "its numbers count on"
    sweep(now, 95)
    assert [silence.run.run_id for silence in silences()] == ["pretraining-7", "second"]


def test_no_report_takes_a_silence_over(beating: AgentClient, now) -> None:
    """Under its id a silence would become whatever a report calls it; here a planned move, which never counts."""
    sweep(now, 61)
    (silence,) = silences()
    move = {"kind": "planned", "trigger": {"signal": "operator"}, "incident_id": str(silence.public_id)}
    (refused,) = beating.reports(failure(1, **move))
    assert (refused["status"], refused["path"]) == ("invalid", "$.incident_id")
    (after_it,) = silences()
    assert (after_it.revision, after_it.placement.outcome) == (1, "unaccounted")


def test_silences_are_the_same_in_any_order(world: World, agent: AgentClient, now) -> None:
    """Heartbeats, a failure with its later word, and an end, in every order before and after the sweep."""
    now.move_to(NOW + 61 * MINUTE)
    first = failure(1)
    over = {**first, "id": str(uuid.uuid4()), "type": "incident.resolved", "seq": 2, "resolution": "abandoned"}
    steps: list[Callable[[], object]] = [
        lambda: agent.missing(heartbeat(at=NOW.isoformat(), seq=0)),
        lambda: agent.reports(first),
        lambda: agent.reports(over),
        lambda: silences_account(as_of=NOW + 65 * MINUTE),
    ]
    seen = set()
    for order in itertools.permutations(steps):
        with transaction.atomic():
            for step in (*order, steps[-1]):
                step()
            seen.add(
                tuple(
                    Incident.objects.exclude(placement__outcome="not_counted")
                    .order_by("origin")
                    .values_list("origin", "placement__outcome", "placement__lead")
                )
            )
            transaction.set_rollback(True)
    assert seen == {(("agent", "not_resolved", True),)}


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
    agent.missing(heartbeat(seq=4, step=1201, at=NOW.isoformat(), run_ended=True))
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

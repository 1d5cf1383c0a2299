"""Bad news sticks: no further report makes an incident look better, whatever the order in which they arrive."""

import itertools
import random
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.conftest import NOW, AgentClient
from tests.ingest.reports import after, detected, report
from tests.people import World
from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.facts import SHARED
from yoco.guarantee.rules import Terms, Year, place
from yoco.incidents.models import Incident
from yoco.incidents.payload import report_read
from yoco.incidents.projection import project

LOST = {
    "progress__checkpoint_loaded": True,
    "progress__first_step_after": 1001,
    "progress__samples_after": 64064,
    "resolution": "checkpoint_restart",
}

SHORT = {
    "started_at": 0,
    "detected_at": 5,
    "quiesced_at": 10,
    "spare_ready_at": 15,
    "state_moved_at": 20,
    "state_verified_at": 25,
    "resumed_at": 30,
}


def told(agent: AgentClient, *bodies: dict[str, Any]) -> list[Incident]:
    """One incident for each order in which these reports can arrive."""
    incidents = []
    for order in itertools.permutations(bodies):
        incident_id = str(uuid.uuid4())
        for body in order:
            copy = {**body, "id": str(uuid.uuid5(uuid.UUID(body["id"]), incident_id)), "incident_id": incident_id}
            copy["workload"] = {**body["workload"], "run_id": incident_id}
            assert agent.statuses(copy) == ["created"]
        incidents.append(Incident.objects.select_related("placement").get(public_id=incident_id))
    return incidents


def amended(**changes: Any) -> dict[str, Any]:
    """What a sender says an hour after everything was over."""
    return report(type="incident.amended", sent_at=after(500), seq=9, **changes)


@pytest.mark.parametrize(
    ("bad", "better"),
    [
        ({"kind": "unplanned"}, {"kind": "planned", "trigger__signal": "operator", "trigger__xid": None}),
        ({"kind": "unplanned"}, {"kind": "preventive", "trigger__xid": None, "trigger__detail": {"word": "hot"}}),
        (
            {"kind": "planned", "trigger__signal": "process_exit", "trigger__xid": None},
            {"kind": "planned", "trigger__signal": "operator", "trigger__xid": None},
        ),
        ({"kind": "planned"}, {"kind": "planned", "trigger__signal": "operator", "trigger__xid": None}),
        ({"kind": "preventive"}, {"kind": "planned", "trigger__signal": "operator", "trigger__xid": None}),
        (
            {"kind": "preventive", "trigger__signal": "thermal", "trigger__xid": None, "trigger__detail": {"c": 97}},
            {"kind": "preventive", "trigger__signal": "thermal", "trigger__xid": None, "trigger__detail": {"c": "ok"}},
        ),
        (
            {"trigger__signal": "xid", "trigger__xid": None},
            {
                "trigger__signal": "link",
                "trigger__xid": None,
                "resolution": "path_failover",
                "state": None,
                "progress__samples_after": 76864,
            },
        ),
    ],
)
def test_no_word_takes_a_failure_out_of_the_ratio(
    agent: AgentClient, bad: dict[str, Any], better: dict[str, Any]
) -> None:
    for incident in told(agent, detected(seq=1), report(**bad, **LOST), amended(**better)):
        assert incident.placement.outcome == "not_resolved"
        assert incident.placement.kind in ("unplanned", "preventive")


@pytest.mark.parametrize(
    "bad",
    [
        {"progress__checkpoint_loaded": True},
        {"resolution": "checkpoint_restart"},
        {"resolution": "abandoned"},
        {"state__source": "storage"},
        {"state__digest_received": "cd" * 16},
        {"progress__first_step_after": 1203},
        {"progress__last_committed_step": 1199, "progress__samples_before": 76736},
        {"progress__samples_after": 76900},
        {"state__bytes": 0},
        {"phases__state_verified_at": after(105), "progress__samples_after": 76900},
    ],
)
def test_no_second_story_makes_a_failure_resolved(agent: AgentClient, bad: dict[str, Any]) -> None:
    bodies = (report(**bad), amended())
    for incident in [*told(agent, *bodies), *told(agent, *bodies, {**report(sent_at=after(300), seq=3)})]:
        assert incident.placement.outcome == "not_resolved", bad


def test_a_checkpoint_that_any_report_saw_stays_loaded(agent: AgentClient) -> None:
    early = detected(type="incident.amended", sent_at=after(30), seq=2, progress={"checkpoint_loaded": True})
    for incident in told(agent, detected(seq=1), early, report(seq=3)):
        assert incident.checkpoint_loaded is True
        assert incident.placement.rule == "rolled_back"


def test_the_start_moves_to_no_later_year(agent: AgentClient, world: World) -> None:
    """A failure of one contract year is not amended into the next one, nor out of the guarantee."""
    bodies = [detected(seq=1), report(seq=2, **LOST), amended(phases={"started_at": after(400)})]
    for incident in told(agent, *bodies):
        assert incident.started_at.isoformat() == after(-5).replace("Z", "+00:00")
        assert incident.placement.year == world.year
    (earlier,) = told(agent, amended(phases={"started_at": after(-90)}))[:1]
    assert earlier.started_at.isoformat() == after(-90).replace("Z", "+00:00")


@pytest.mark.parametrize("early", ["2026-08-01T00:00:00Z", "1999-01-01T00:00:00Z"])
def test_the_start_moves_to_no_earlier_year(agent: AgentClient, world: World, early: str) -> None:
    """Nor is it amended into the time before the guarantee, where it would not count."""
    start = {"started_at": early, "detected_at": early}
    end = {**start, "resumed_at": early}
    long_ago = detected(type="incident.amended", seq=2, sent_at=after(100), phases=start)
    over = detected(type="incident.resolved", seq=3, sent_at=after(200), phases=end)
    for story in ([long_ago], [over], [long_ago, over]):
        for incident in told(agent, detected(seq=1), *story):
            assert incident.started_at.isoformat() == "2026-11-01T09:00:00+00:00"
            assert incident.placement.year == world.year
            assert incident.placement.outcome in ("pending", "not_resolved")


def test_what_was_missing_can_still_be_proven(agent: AgentClient) -> None:
    """A report that only fills in is no second story: the late evidence counts."""
    bare = report(seq=1)
    bare["state"] = None
    for incident in told(agent, bare):
        assert incident.placement.rule == "no_live_migration"
    for incident in told(agent, bare, amended()):
        assert incident.placement.outcome == "resolved"


def test_a_second_attempt_that_succeeds_is_told_in_one_account(agent: AgentClient) -> None:
    """A failure during the migration: what the first attempt moved is replaced until the incident is closed."""
    first = report(
        type="incident.amended",
        sent_at=after(60),
        seq=2,
        state__digest_received="cd" * 16,
        phases__state_moved_at=after(40),
        phases__state_verified_at=None,
        phases__resumed_at=None,
        progress__first_step_after=None,
        progress__samples_after=None,
        resolution=None,
        attempts=[{"at": after(50), "outcome": "failed", "reason": "the spare was lost"}],
    )
    final = report(seq=3, attempts=[{"at": after(110), "outcome": "resumed"}])
    for incident in told(agent, detected(seq=1), first, final):
        assert incident.placement.outcome == "resolved"
        assert [one["outcome"] for one in incident.attempts] == ["failed", "resumed"]


def test_costs_never_shrink(agent: AgentClient) -> None:
    spare = {"node": "s", "origin": "preempted", "preempted": {"run_id": "x", "gpus": 8, "lost_seconds": 900}}
    less = {"node": "s", "origin": "pool", "preempted": {"run_id": "x", "gpus": 0, "lost_seconds": 0}}
    bodies = [report(spare=spare, seq=1), amended(spare=less, phases__resumed_at=after(104), workload__gpus=1)]
    for incident in told(agent, *bodies):
        assert (incident.preempted_gpus, incident.preempted_ms, incident.gpus) == (8, 900_000, 2048)
        assert incident.resumed_at is not None
        assert incident.resumed_at.isoformat() == after(110).replace("Z", "+00:00")


def test_the_end_moves_by_an_hour_at_most(agent: AgentClient) -> None:
    """Else one lost failure, amended to end days later, would swallow all that its job meets until then."""
    hours = 3600
    lost = {f"phases__{name}": after(-5 * hours + at) for name, at in SHORT.items()}
    stretched = {**lost, "phases__resumed_at": after(400)}
    for incident in told(agent, report(seq=1, sent_at=after(-4.9 * hours), **lost, **LOST), amended(**stretched)):
        assert incident.resumed_at is not None
        assert incident.resumed_at.isoformat() == after(-4 * hours + SHORT["resumed_at"]).replace("Z", "+00:00")


YEAR = Year(
    id="y",
    starts_at=NOW.replace(month=9),
    ends_at=NOW.replace(year=2027),
    guaranteed_from=NOW.replace(month=9),
    guaranteed_until=NOW.replace(year=2027),
    closes_at=NOW.replace(year=2028),
    terms=Terms(),
)

CHANGES = {
    "type": st.sampled_from(["incident.detected", "incident.resolved", "incident.amended"]),
    "kind": st.sampled_from(["unplanned", "preventive", "planned"]),
    "trigger__signal": st.sampled_from(["process_exit", "xid", "ecc", "link", "operator"]),
    "trigger__xid": st.sampled_from([None, 79, 95]),
    "trigger__detail": st.sampled_from([None, {}, {"c": 97}, {"c": "hot"}]),
    "phases__started_at": st.sampled_from([None, after(-5), after(-3)]),
    "phases__state_moved_at": st.sampled_from([None, after(100), after(101)]),
    "phases__resumed_at": st.sampled_from([None, after(110), after(115)]),
    "progress__last_committed_step": st.sampled_from([None, 1200, 1199]),
    "progress__first_step_after": st.sampled_from([None, 1201, 1202]),
    "progress__samples_after": st.sampled_from([None, 76864, 76928]),
    "progress__checkpoint_loaded": st.sampled_from([None, False, True]),
    "state__source": st.sampled_from([None, "replica", "storage"]),
    "state__digest_received": st.sampled_from([None, "ab" * 16, "cd" * 16]),
    "resolution": st.sampled_from([None, "live_migration", "path_failover", "abandoned"]),
    "sent_at": st.sampled_from([after(second) for second in (1, 150, 200, 300)]),
}
REPORTS = st.builds(lambda changes: report(**changes), st.fixed_dictionaries({}, optional=CHANGES))


def facts_of(bodies: list[dict[str, Any]]) -> IncidentFacts:
    columns = project(report_read(body, received_at=NOW) for body in bodies)
    values = {name: columns[name] for name in SHARED if name != "origin"}
    return IncidentFacts(id="i", run="r", open=columns["state"] == "open", **values)


@given(st.lists(REPORTS, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_facts_depend_on_the_set_of_reports(bodies: list[dict[str, Any]], shuffler: random.Random) -> None:
    shuffled = list(bodies)
    shuffler.shuffle(shuffled)
    received = [report_read(body, received_at=NOW) for body in shuffled]
    assert project(received) == project(report_read(body, received_at=NOW) for body in bodies)


@given(st.lists(REPORTS, max_size=3), REPORTS, st.sampled_from(["incident.resolved", "incident.amended"]))
def test_no_report_improves_an_incident_that_was_told_in_full(
    others: list[dict[str, Any]], further: dict[str, Any], kind_of_report: str
) -> None:
    """Of an incident whose closing report left nothing out, one more report never betters the placing."""
    full = report(sent_at=after(150))
    before = place(facts_of([full, *others]), year=YEAR)
    later = place(facts_of([full, *others, {**further, "type": kind_of_report}]), year=YEAR)
    rank = {"not_resolved": 0, "resolved": 1, "not_counted": 2}
    assert rank[later.outcome] <= rank[before.outcome]

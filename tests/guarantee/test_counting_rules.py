"""Every line of "Counting rules": one test each, named after its case."""

import datetime
from typing import Any

import pytest

from tests.guarantee.facts import END, START, at, facts, failed, placed, year
from yoco.guarantee.evidence import IncidentFacts, evidenced_kind
from yoco.guarantee.rules import (
    Placing,
    Review,
    Tally,
    Terms,
    Year,
    commitment_met,
    failures_still_allowed,
    place,
    place_all,
    share_bounds,
    share_floor,
    tally,
    verdict,
)

MINUTE = datetime.timedelta(minutes=1)


def counted(incidents: list[IncidentFacts], terms: Terms = Terms(), **changes: Any) -> tuple[int, int]:  # noqa: B008
    """k and n of a year with these incidents."""
    counts = tally(place_all(incidents, years=[year(terms, **changes)]))
    return counts.k, counts.n(terms)


def by_id(placings: list[Placing]) -> dict[str, Placing]:
    return {placing.incident: placing for placing in placings}


@pytest.mark.parametrize(
    ("resolved", "n", "met"),
    [(9, 10, True), (8, 10, False), (8_999, 10_000, False), (9_000, 10_000, True), (0, 0, True), (0, 1, False)],
)
def test_verdict_is_decided_in_integers(resolved: int, n: int, met: bool) -> None:
    assert commitment_met(resolved, n, 90, 100) is met
    counts = Tally(resolved=resolved, not_resolved=n - resolved)
    assert verdict(counts, Terms()).name == ("no_failures" if n == 0 else "met" if met else "short")


def test_display_never_rounds_a_breach_up() -> None:
    assert share_floor(89_999, 100_000) == "89.99"
    assert share_floor(8_999, 10_000) == "89.99"
    assert share_floor(2, 3) == "66.66"
    assert share_floor(9, 10) == "90.00"
    assert share_floor(7, 7) == "100.00"
    assert share_floor(1, 30_000) == "0.00"


@pytest.mark.parametrize("n", range(1, 10))
def test_budget_with_one_to_nine_failures_a_single_miss_breaches(n: int) -> None:
    assert failures_still_allowed(n, n, 90, 100) == 0
    assert failures_still_allowed(n - 1, n, 90, 100) == -1
    assert not commitment_met(n - 1, n, 90, 100)


@pytest.mark.parametrize(("k", "n", "allowed"), [(10, 10, 1), (9, 10, 0), (95, 100, 5), (90, 100, 0), (88, 100, -2)])
def test_budget(k: int, n: int, allowed: int) -> None:
    assert failures_still_allowed(k, n, 90, 100) == allowed


def test_the_same_report_twice_is_one_incident() -> None:
    one = facts(at(1))
    assert counted([one, one, one]) == (1, 1)


def test_many_ranks_of_one_event_count_once_and_all_are_kept() -> None:
    ranks = [facts(at(1), root_event="event", rank=rank, node=f"node-{rank}") for rank in range(8)]
    placings = place_all(ranks, years=[year()])
    assert len(placings) == 8
    assert len({placing.unit_key for placing in placings}) == 1
    assert [placing.lead for placing in placings].count(True) == 1
    assert counted(ranks) == (1, 1)


def test_one_rank_that_lost_its_work_makes_the_event_unresolved() -> None:
    ranks = [facts(at(1), root_event="event"), failed(at(1), root_event="event")]
    assert counted(ranks) == (0, 1)


def test_one_event_and_three_workloads_are_three_in_the_guarantee_and_one_event() -> None:
    three = [facts(at(1), root_event="event", run=f"run-{n}") for n in range(3)]
    assert counted(three) == (3, 3)
    assert len({one.root_event for one in three}) == 1
    assert counted(three, Terms(unit="root_event")) == (1, 1)
    assert counted(three, Terms(unit="incident")) == (3, 3)


def test_unit_of_incidents_counts_each_member_of_an_event() -> None:
    ranks = [facts(at(1), root_event="event", rank=rank) for rank in range(4)]
    assert counted(ranks) == (1, 1)
    assert counted(ranks, Terms(unit="incident")) == (4, 4)


def test_a_crash_loop_is_one_incident_with_several_attempts() -> None:
    loop = [failed(at(1) + n * 50 * MINUTE, node="node-1", rank=3) for n in range(5)]
    assert counted(loop) == (0, 1)  # each restart ends 20 minutes before the next failure
    assert counted(loop, Terms(relapse_window_minutes=19)) == (0, 5)
    assert counted(loop, Terms(relapse_window_minutes=20)) == (0, 1)


@pytest.mark.parametrize(
    "difference",
    [{"xid": 94}, {"signal": "process_exit", "xid": None}, {"node": "node-2", "rank": 9}, {"run": "run-2"}],
)
def test_another_cause_place_or_workload_is_another_failure(difference: dict[str, Any]) -> None:
    first = facts(at(1), node="node-1", rank=3)
    second = facts(at(1) + 10 * MINUTE, **{"node": "node-1", "rank": 3, **difference})
    assert counted([first, second]) == (2, 2)
    assert counted([first, facts(at(1) + 10 * MINUTE, node="node-1", rank=3)]) == (1, 1)


def test_the_same_logical_rank_on_its_new_node_is_the_same_place() -> None:
    first = facts(at(1), node="node-1", rank=3)
    again = facts(at(1) + 10 * MINUTE, node="spare-1", rank=3)
    assert counted([first, again]) == (1, 1)


def test_a_restart_for_the_same_cause_soon_after_turns_a_success_into_a_failure() -> None:
    success = facts(at(1), node="node-1")
    assert success.resumed_at is not None
    relapse = failed(success.resumed_at + 30 * MINUTE, node="node-1")
    placings = by_id(place_all([success, relapse], years=[year()]))
    assert (placings[success.id].outcome, placings[success.id].rule) == ("not_resolved", "relapse")
    assert counted([success, relapse]) == (0, 1)
    late = failed(success.resumed_at + 30 * MINUTE + datetime.timedelta(seconds=1), node="node-1")
    assert counted([success, late]) == (1, 2)


def test_a_failure_during_a_migration_is_the_same_incident_and_not_resolved() -> None:
    broken = failed(at(1), resolution="abandoned", resumed_at=None, checkpoint_loaded=None)
    assert placed(broken) == ("not_resolved", "no_live_migration")
    second_spare = facts(at(1), id=broken.id)
    assert placed(second_spare) == ("resolved", "without_loss")


def test_a_cascade_of_xids_counts_once() -> None:
    root = facts(at(1), root_event="event", xid=79)
    switches = [facts(at(1) + datetime.timedelta(seconds=12), root_event="event", xid=20034) for _ in range(3)]
    assert counted([root, *switches]) == (1, 1)


def test_a_user_error_that_was_reviewed_leaves_the_denominator() -> None:
    crash, retry = failed(at(1)), facts(at(30))
    reviews = {crash.id: Review(excluded_for="user_error")}
    placings = place_all([crash, retry], years=[year()], reviews=reviews)
    counts = tally(placings)
    assert (counts.k, counts.n(Terms()), counts.excluded) == (1, 1, 1)
    assert by_id(placings)[crash.id].rule == "excluded_user_error"


def test_a_user_error_and_its_retry_leave_the_denominator_together() -> None:
    """Both are one incident; the retry that worked does not become a failure that was resolved."""
    crash = failed(at(1), node="node-1", root_event=None)
    assert crash.resumed_at is not None
    retry = facts(crash.resumed_at + 5 * MINUTE, node="node-1", root_event=None)
    assert counted([crash, retry]) == (0, 1)
    placings = by_id(place_all([crash, retry], years=[year()], reviews={crash.id: Review(excluded_for="user_error")}))
    assert tally(placings.values()) == Tally(excluded=1)
    assert placings[crash.id].rule == "excluded_user_error"
    assert (placings[retry.id].outcome, placings[retry.id].rule) == ("excluded", "excluded_with_unit")


@pytest.mark.parametrize("state", ["not_resolved", "unaccounted", "pending", "relapse"])
def test_excluding_a_member_never_makes_its_unit_resolved(state: str) -> None:
    other = {
        "not_resolved": failed(at(1), root_event="event"),
        "unaccounted": facts(at(1), root_event="event", origin="silence", open=True, signal="heartbeat_lost", xid=None),
        "pending": facts(at(1), root_event="event", open=True, resumed_at=None),
        "relapse": failed(at(1.2), root_event="event", rank=3),
    }[state]
    success = facts(at(1), root_event="event", rank=3)
    counts = tally(place_all([success, other], years=[year()], reviews={other.id: Review(excluded_for="user_error")}))
    assert (counts.k, counts.excluded) == (0, 1)


def test_excluding_one_of_two_resolved_members_leaves_the_unit_resolved() -> None:
    rows = [facts(at(1), root_event="event") for _ in range(2)]
    placings = place_all(rows, years=[year()], reviews={rows[0].id: Review(excluded_for="user_error")})
    assert tally(placings) == Tally(resolved=1)


def test_excluding_one_of_two_failed_members_leaves_the_unit_failed() -> None:
    rows = [failed(at(1), root_event="event") for _ in range(2)]
    placings = place_all(rows, years=[year()], reviews={rows[0].id: Review(excluded_for="user_error")})
    assert tally(placings) == Tally(not_resolved=1)


def test_an_exclusion_that_the_terms_do_not_list_excludes_nothing() -> None:
    crash = failed(at(1))
    terms = Terms(exclusions=("site_outage",))
    placing = place(crash, year=year(terms), review=Review(excluded_for="user_error"))
    assert placing.outcome == "not_resolved"
    assert place(crash, year=year(terms), review=Review(excluded_for="site_outage")).outcome == "excluded"


def test_an_upheld_dispute_counts_against_the_vendor_whatever_the_kind() -> None:
    planned = facts(at(1), kind="planned", signal="operator", xid=None)
    assert place(planned, year=year(), review=Review(dispute_upheld=True)).outcome == "not_resolved"


@pytest.mark.parametrize("setting", ["counted_unplanned", "counted_preventive", "counted_planned"])
@pytest.mark.parametrize("value", ["always", "evidenced", "never"])
@pytest.mark.parametrize("evidenced", [True, False])
def test_each_kind_is_on_or_off_as_the_terms_say(setting: str, value: str, evidenced: bool) -> None:
    kind = setting.removeprefix("counted_")
    signal = {"unplanned": "link", "preventive": "link", "planned": "operator"}[kind]
    one = facts(at(1), kind=kind, signal=signal, xid=None, trigger_detail={"links_down": [3]} if evidenced else {})
    outcome, rule = placed(one, Terms(**{setting: value}))
    if value == "never":
        assert (outcome, rule) == ("not_counted", "kind_not_counted")
    elif value == "always" or (evidenced and signal != "operator"):
        assert outcome == "resolved"
    else:
        assert (outcome, rule) == ("not_counted", "trigger_not_evidenced")


@pytest.mark.parametrize("kind", ["planned", "preventive"])
@pytest.mark.parametrize("signal", ["process_exit", "heartbeat_lost", "hang"])
def test_a_failure_that_is_called_planned_or_preventive_counts_as_what_it_was(kind: str, signal: str) -> None:
    one = failed(at(1), kind=kind, signal=signal, xid=None)
    assert evidenced_kind(one) == "unplanned"
    placing = place(one, year=year())
    assert (placing.outcome, placing.kind, placing.kind_reported) == ("not_resolved", "unplanned", kind)


def test_a_planned_move_is_ordered_by_an_operator() -> None:
    assert evidenced_kind(facts(kind="planned", signal="operator", xid=None)) == "planned"
    assert evidenced_kind(facts(kind="planned", signal="xid", xid=79)) == "unplanned"
    assert evidenced_kind(facts(kind="planned", signal="xid", xid=None)) == "unplanned"
    assert evidenced_kind(facts(kind="planned", signal="operator", xid=79)) == "unplanned"
    assert evidenced_kind(facts(kind="planned", signal="thermal", xid=79)) == "unplanned"
    assert evidenced_kind(facts(kind="planned", signal="thermal", xid=None)) == "preventive"


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        (START, "year-1"),
        (START - datetime.timedelta(microseconds=1), None),
        (END - datetime.timedelta(microseconds=1), "year-1"),
        (END, "year-2"),
    ],
)
def test_an_incident_belongs_wholly_to_the_year_in_which_it_began(
    started: datetime.datetime, expected: str | None
) -> None:
    end = END + datetime.timedelta(days=366)
    second = year(id="year-2", starts_at=END, ends_at=end, guaranteed_from=END, guaranteed_until=end)
    second = Year(**{**{f: getattr(second, f) for f in second.__slots__}, "closes_at": end})
    one = facts(started)
    assert one.resumed_at is not None
    (placing,) = place_all([one], years=[year(), second])
    assert placing.year == expected
    assert placing.outcome == ("resolved" if expected else "not_counted")


def test_a_crash_loop_across_the_boundary_belongs_to_the_year_in_which_it_began() -> None:
    end = END + datetime.timedelta(days=366)
    second = year(id="year-2", starts_at=END, ends_at=end, guaranteed_from=END, guaranteed_until=end, closes_at=end)
    before = failed(END - 40 * MINUTE, node="node-1")
    after = failed(END + 5 * MINUTE, node="node-1")
    placings = place_all([before, after], years=[year(), second])
    assert {placing.year for placing in placings} == {"year-1"}
    assert sum(placing.lead for placing in placings) == 1


def test_an_incident_before_the_guarantee_began_is_listed() -> None:
    part = {"guaranteed_from": at(24 * 90), "partial": True}
    assert placed(failed(at(24 * 90) - MINUTE), **part) == ("not_counted", "outside_guarantee")
    assert placed(failed(at(24 * 90)), **part)[0] == "not_resolved"
    assert placed(failed(at(1)), guaranteed_from=None, guaranteed_until=None)[1] == "outside_guarantee"


def test_a_late_report_counts_while_the_year_is_closing() -> None:
    one = facts(END - 10 * MINUTE)
    assert placed(one, closed=False)[0] == "resolved"


def test_an_incident_still_open_at_the_close_counts_as_not_resolved() -> None:
    still = facts(at(1), open=True, resumed_at=None, resolution="")
    assert placed(still) == ("pending", "still_open")
    assert placed(still, closed=True) == ("not_resolved", "open_at_close")
    assert placed(still, Terms(open_incident_cutoff="listed"), closed=True) == ("not_counted", "open_at_close_listed")


def test_a_resolution_after_the_close_comes_too_late_however_it_is_told() -> None:
    closes_at = END + datetime.timedelta(days=30)
    told = facts(END - MINUTE, resumed_at=closes_at)
    assert placed(told, closed=True) == ("not_resolved", "open_at_close")
    assert placed(told, closed=False) == ("pending", "still_open")
    in_time = facts(END - MINUTE, resumed_at=closes_at - datetime.timedelta(microseconds=1))
    assert placed(in_time, closed=True)[0] == "resolved"


def test_a_silent_workload_is_unaccounted_until_explained() -> None:
    silent = facts(at(1), origin="silence", open=True, signal="heartbeat_lost", xid=None, resumed_at=None)
    assert placed(silent) == ("unaccounted", "silent")
    assert placed(silent, closed=True) == ("unaccounted", "silent")
    assert counted([silent]) == (0, 1)
    listed = Terms(unaccounted="listed")
    assert placed(silent, listed) == ("unaccounted", "silent_listed")
    assert counted([silent], listed) == (0, 0)
    explained = facts(at(1), origin="silence", explained=True, signal="heartbeat_lost", xid=None, resumed_at=None)
    told = facts(at(1))
    assert counted([explained, told]) == (1, 1)


NO_STATE: dict[str, Any] = {
    "state_source": "",
    "state_bytes": None,
    "digest_algorithm": "",
    "digest_sent": "",
    "digest_received": "",
}
HEALED: dict[str, Any] = {"signal": "link", "xid": None, "resolution": "path_failover", **NO_STATE}


def test_a_path_that_heals_without_a_migration_is_outside_the_ratio_by_default() -> None:
    healed = facts(at(1), **HEALED)
    assert placed(healed) == ("not_counted", "path_failover")
    assert placed(healed, Terms(path_failover_counted=True)) == ("resolved", "path_healed")


@pytest.mark.parametrize(
    "loss",
    [{"checkpoint_loaded": True}, {"checkpoint_loaded": None}, {"first_step_after": 1200}, {"samples_after": None}],
)
def test_a_loss_that_is_called_a_healed_path_counts(loss: dict[str, Any]) -> None:
    one = facts(at(1), **{**HEALED, **loss})
    assert placed(one)[0] == "not_resolved"
    assert placed(one, Terms(path_failover_counted=True))[0] == "not_resolved"


@pytest.mark.parametrize(
    "other",
    [
        {"signal": "hang"},
        {"signal": "xid", "xid": 79},
        {"state_source": "replica"},
        {"state_bytes": 1},
        {"digest_algorithm": "xxh3-128"},
        {"digest_sent": "ab" * 16},
        {"digest_received": "cd" * 16},
    ],
)
def test_a_migration_that_is_called_a_healed_path_counts(other: dict[str, Any]) -> None:
    one = facts(at(1), **{**HEALED, **other})
    assert placed(one) == ("not_resolved", "no_live_migration")
    assert placed(one, Terms(path_failover_counted=True)) == ("not_resolved", "no_live_migration")


def test_an_empty_year_has_no_share_and_meets_the_commitment() -> None:
    assert share_floor(0, 0) is None
    assert share_bounds(Tally(), Terms()) is None
    assert verdict(Tally(), Terms()).name == "no_failures"
    assert failures_still_allowed(0, 0, 90, 100) == 0
    none = verdict(Tally(), Terms(empty_year="no_verdict"))
    assert (none.name, none.rule) == ("undecided", "empty_year_no_verdict")
    assert verdict(Tally(not_counted=5, excluded=2), Terms()).name == "no_failures"


def test_a_partial_year_has_its_own_verdict_or_none() -> None:
    short = Tally(resolved=8, not_resolved=2)
    assert verdict(short, Terms(), partial=True).name == "short"
    none = verdict(short, Terms(partial_year="no_verdict"), partial=True)
    assert (none.name, none.rule) == ("undecided", "partial_year_no_verdict")
    assert verdict(short, Terms(partial_year="no_verdict"), partial=False).name == "short"


@pytest.mark.parametrize(("num", "den"), [(1, 2), (999, 1000), (100, 100), (2, 3)])
def test_any_ratio_can_be_the_threshold(num: int, den: int) -> None:
    terms = Terms(threshold_num=num, threshold_den=den)
    assert verdict(Tally(resolved=num, not_resolved=den - num), terms).name == "met"
    assert verdict(Tally(resolved=num - 1, not_resolved=den - num + 1), terms).name == "short"


def test_pending_failures_leave_the_verdict_open_only_if_they_can_change_it() -> None:
    counts = Tally(resolved=88, not_resolved=9, pending=3)
    assert verdict(counts, Terms()).name == "undecided"
    bounds = share_bounds(counts, Terms())
    assert bounds is not None
    assert (float(bounds[0]), float(bounds[1])) == (0.88, 0.91)
    assert verdict(Tally(resolved=99, not_resolved=1, pending=3), Terms()).name == "met"
    assert verdict(Tally(resolved=8, not_resolved=9, pending=3), Terms()).name == "short"
    assert verdict(Tally(pending=1), Terms()).name == "undecided"


def test_planned_moves_cannot_flatter_the_share() -> None:
    moves = [facts(at(n), kind="planned", signal="operator", xid=None) for n in range(90)]
    failures = [failed(at(100 + 2 * n)) for n in range(10)]
    assert counted([*moves, *failures]) == (0, 10)

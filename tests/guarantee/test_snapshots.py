"""Monthly snapshots: one a month, frozen, made when due, late ones said to be late, with what changed since."""

import datetime
import hashlib
import itertools
import json
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction

from tests.guarantee.facts import at, incident, restart
from tests.people import World
from yoco.contracts.calendar import year_months
from yoco.contracts.models import ContractYear
from yoco.core.models import AuditEntry
from yoco.guarantee import snapshots
from yoco.guarantee.burndown import burn_down
from yoco.guarantee.labels import CHANGES
from yoco.guarantee.models import Placement, Snapshot
from yoco.guarantee.reviews import dispute_decide, dispute_raise
from yoco.guarantee.selectors import year_report
from yoco.guarantee.services import placements_refresh
from yoco.guarantee.snapshots import change_of, rows_frozen, snapshot_days, snapshots_make
from yoco.guarantee.statements import canonical_json, incident_rows
from yoco.guarantee.verify import snapshots_verify
from yoco.incidents.models import Incident

SECOND = datetime.timedelta(seconds=1)
# The first local midnights of October to December 2026 in Madrid; the clock changes on 25 October.
OCTOBER, NOVEMBER, DECEMBER = (
    datetime.datetime(2026, *moment, tzinfo=datetime.UTC) for moment in ((9, 30, 22), (10, 31, 23), (11, 30, 23))
)


def make(as_of: datetime.datetime) -> list[Snapshot]:
    with time_machine.travel(as_of):
        return snapshots_make(as_of=as_of)


def ours(world: World) -> list[Snapshot]:
    return list(Snapshot.objects.filter(year=world.year).order_by("number"))


def stored(world: World, when: datetime.datetime, **changes: Any) -> Incident:
    row = incident(world.contract, when, **changes)
    placements_refresh(incident_ids=[row.pk])
    return row


def named(snapshot: Snapshot) -> dict[str, tuple[str, str | None]]:
    """By incident, why it is named and where it stood before."""
    return {row["id"]: (row["change"], row["outcome_before"]) for row in json.loads(snapshot.canonical)["incidents"]}


def test_a_month_is_frozen_once_when_it_has_ended_where_the_contract_is(world: World) -> None:
    stored(world, at(30))
    stored(world, OCTOBER, run="run-2")  # the first instant of the next month
    assert make(OCTOBER - SECOND) == []
    made = make(OCTOBER)
    assert {row.year_id for row in made} == {world.year.pk, world.stranger_contract.years.get().pk}
    (one,) = ours(world)
    assert (one.number, one.starts_on, one.ends_on) == (1, datetime.date(2026, 9, 1), datetime.date(2026, 10, 1))
    assert (one.counted, one.resolved, one.late, one.created_at) == (1, 1, False, OCTOBER)
    assert one.sha256 == hashlib.sha256(one.canonical.encode()).hexdigest()
    content = json.loads(one.canonical)
    assert canonical_json(content) == one.canonical
    assert content["report"]["counted"] == 1
    assert not {"verdict", "verdict_rule"} & set(content["report"])  # only a statement has one
    assert AuditEntry.objects.filter(action="snapshot.created", subject_id=str(one.pk)).count() == 1
    assert make(OCTOBER + SECOND) == []
    assert make(NOVEMBER - SECOND) == []
    make(NOVEMBER)
    first, second = ours(world)
    assert (second.counted, json.loads(second.canonical)["previous_sha256"]) == (2, first.sha256)
    assert snapshots_verify() == []


@pytest.mark.parametrize("verb", ["UPDATE guarantee_snapshot SET counted = 7", "DELETE FROM guarantee_snapshot"])
def test_the_database_refuses_to_change_one(world: World, verb: str) -> None:
    make(OCTOBER)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(verb)


def test_after_downtime_each_month_is_made_late_and_holds_only_what_began_in_it(world: World) -> None:
    for hours in (30, 31 * 24, 62 * 24):
        stored(world, at(hours), run=f"run-{hours}")
    silent = stored(world, at(40), run="run-40", **restart(at(40)))
    made = DECEMBER + datetime.timedelta(days=3)
    with time_machine.travel(made):
        call_command("tick")
        call_command("tick")
    three = ours(world)
    assert [(row.number, row.counted, row.resolved, row.late) for row in three] == [
        (1, 2, 1, True),
        (2, 3, 2, True),
        (3, 4, 3, True),
    ]
    assert [json.loads(row.canonical)["made_at"][:10] for row in three] == ["2026-12-03"] * 3
    assert [set(named(row).values()) for row in three] == [{("new", None)}] * 3
    assert str(silent.public_id) in named(three[0])
    live = year_report(year=world.year)
    frozen = json.loads(three[-1].canonical)
    assert (frozen["report"]["counted"], frozen["report"]["resolved"]) == (live.counted, live.resolved)
    days = burn_down(snapshot_days(frozen), first=world.year.starts_on, last=three[-1].last_day, terms=three[-1].terms)
    assert days[-1].allowed == frozen["report"]["failures_still_allowed"] == live.failures_still_allowed
    assert rows_frozen(row.canonical for row in three) == {
        row["id"]: row for row in incident_rows(Placement.objects.filter(year=world.year))
    }


def test_it_names_what_changed_since_the_one_before(world: World) -> None:
    upheld, still, gone = (stored(world, at(hours), run=f"run-{hours}") for hours in (10, 20, 50))
    make(OCTOBER)
    with time_machine.travel(OCTOBER + 60 * SECOND):
        objection = dispute_raise(incident=upheld, text="It went back.", actor=world.owner)
    with time_machine.travel(OCTOBER + 120 * SECOND):
        dispute_decide(dispute=objection, accept=True, note="So it did.", actor=world.account_manager)
    late = stored(world, at(60), run="run-60")
    new = stored(world, OCTOBER + 3600 * SECOND, run="run-70")
    Placement.objects.filter(pk=gone.pk).delete()
    make(NOVEMBER)
    first, second = ours(world)
    assert named(second) == {
        str(upheld.public_id): ("dispute_upheld", "resolved"),
        str(late.public_id): ("late_report", None),
        str(new.public_id): ("new", None),
    }
    assert str(still.public_id) in named(first)
    content = json.loads(second.canonical)
    assert [row["id"] for row in content["removed"]] == [str(gone.public_id)]
    assert [(row["incident"], row["state"]) for row in content["disputes"]] == [(str(upheld.public_id), "accepted")]
    assert json.loads(first.canonical)["report"]["resolved"] == 3  # what was frozen stays


def test_what_changed_has_a_code_with_its_words() -> None:
    old = {"rule": "without_loss", "outcome": "resolved", "unit": "a", "lead": True, "revision": 1}
    pending, excluded = {**old, "outcome": "pending"}, {**old, "outcome": "excluded"}
    began = {"started_at": "2026-09-30T22:00:00Z"}
    codes = {
        change_of(before, {**old, **changes}, since=OCTOBER)
        for before, changes in (
            (None, began),
            (None, {"started_at": "2026-09-30T21:59:59.999999Z"}),
            (old, {"rule": "dispute_upheld", "outcome": "not_resolved"}),
            (old, {"rule": "explained", "outcome": "not_counted"}),
            (old, {"outcome": "excluded"}),
            (excluded, {}),
            (pending, {}),
            (old, {"unit": "b"}),
            (old, {"revision": 2}),
            (old, {"outcome": "not_resolved", "rule": "relapse"}),
        )
    }
    assert codes | {"removed"} == set(CHANGES)


def test_a_year_that_fails_keeps_no_other_from_its_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = snapshots.report_compute

    def broken(*, year: ContractYear, **given: Any) -> Any:
        if year.pk == world.year.pk:
            raise RuntimeError("broken on purpose")
        return real(year=year, **given)

    monkeypatch.setattr(snapshots, "report_compute", broken)
    with pytest.raises(ExceptionGroup):
        make(OCTOBER)
    assert [row.year.contract for row in Snapshot.objects.all()] == [world.stranger_contract]
    monkeypatch.undo()
    make(OCTOBER + SECOND)
    assert len(ours(world)) == 1


def test_months_before_the_guarantee_have_none(world: World) -> None:
    ContractYear.objects.filter(pk=world.year.pk).update(guaranteed_from=OCTOBER + SECOND)
    make(DECEMBER)
    assert [row.number for row in ours(world)] == [2, 3]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("2027-01-31", "2028-01-31", ["01-31", "02-28", "03-31", "04-30", "05-31", "06-30"]),
        ("2028-02-29", "2029-03-01", ["02-29", "03-29", "04-29", "05-29", "06-29", "07-29"]),
        ("2026-09-01", "2026-10-15", ["09-01", "10-01"]),
        ("2026-09-01", "2026-10-01", ["09-01"]),
    ],
)
def test_months_tile_a_year(start: str, end: str, expected: list[str]) -> None:
    months = year_months(datetime.date.fromisoformat(start), datetime.date.fromisoformat(end))
    assert [begin.isoformat()[5:] for begin, _ in months][:6] == expected
    assert len(months) <= 12
    assert months[0][0].isoformat() == start
    assert months[-1][1].isoformat() == end
    assert all(first[1] == second[0] for first, second in itertools.pairwise(months))


def test_a_row_that_was_tampered_with_is_named(world: World) -> None:
    make(OCTOBER)
    Snapshot.objects.bulk_create(
        [
            Snapshot(
                year=row.year,
                number=2,
                starts_on=row.ends_on,
                ends_on=datetime.date(2026, 11, 1),
                ends_at=NOVEMBER,
                late=False,
                terms=row.terms,
                counted=1,
                resolved=1,
                sha256=row.sha256,
                canonical=row.canonical,
                summary={**row.summary, "counted": 1},
                created_at=NOVEMBER,
            )
            for row in ours(world)
        ]
    )
    reasons = {row.reason for row in snapshots_verify(contract_id=world.contract.pk)}
    assert reasons == {
        "its columns differ from its text",
        "its summary differs from its text",
        "it does not follow from the snapshot before it",
    }
    assert snapshots_verify(contract_id=world.stranger_contract.pk) == []

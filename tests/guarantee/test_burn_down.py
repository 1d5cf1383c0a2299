"""The budget day by day: its last point is the year's, whatever the year, the zone and the day it is asked on."""

import datetime
import itertools
import random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from tests.guarantee import years
from tests.guarantee.facts import END, START, incident, restart
from tests.people import World
from yoco.core.days import local_day
from yoco.guarantee.burndown import DAY, DayCount, burn_down, frozen_counts
from yoco.guarantee.rules import Terms, failures_still_allowed, place_all, tally
from yoco.guarantee.selectors import day_counts, year_burn_down, year_report
from yoco.guarantee.services import placements_refresh
from yoco.incidents.models import Incident, Run

MADRID = ZoneInfo("Europe/Madrid")
FIRST, LAST = datetime.date(2026, 9, 1), datetime.date(2027, 8, 31)


@given(st.integers(0, 2**32), st.integers(0, 364))
@settings(deadline=None)
def test_the_last_day_has_what_the_year_still_allows(seed: int, today: int) -> None:
    rng = random.Random(seed)
    both = years.two_years(rng)
    incidents = {one.id: one for one in years.incidents(rng, rng.randrange(25))}
    placings = [
        placing
        for placing in place_all(incidents.values(), years=both, reviews=years.reviews(rng, list(incidents.values())))
        if placing.year == "year-1"
    ]
    rows = [
        {"started_at": incidents[one.incident].started_at.isoformat(), "outcome": one.outcome, "lead": one.lead}
        for one in placings
    ]
    terms = both[0].terms
    assert terms is not None
    days = burn_down(frozen_counts(rows, "Europe/Madrid"), first=FIRST, last=FIRST + today * DAY, terms=terms)
    counts = tally(placings)
    assert [day.day for day in days] == [FIRST + n * DAY for n in range(today + 1)]
    assert (days[-1].k, days[-1].n) == (counts.k, counts.n(terms))
    assert days[-1].allowed == failures_still_allowed(
        counts.k, counts.n(terms), terms.threshold_num, terms.threshold_den
    )
    for before, after in itertools.pairwise(days):
        if not after.missed:
            assert after.allowed >= before.allowed  # only a miss takes from the budget


def test_a_budget_grows_by_resolved_failures_and_shrinks_by_misses() -> None:
    counts = [
        DayCount(FIRST, "resolved", 19),
        DayCount(FIRST + 2 * DAY, "not_resolved", 1),
        DayCount(FIRST + 3 * DAY, "unaccounted", 2),
        DayCount(FIRST + 3 * DAY, "excluded", 5),
    ]
    days = burn_down(counts, first=FIRST, last=FIRST + 3 * DAY, terms=Terms())
    assert [day.allowed for day in days] == [1, 1, 1, -1]
    listed = burn_down(counts, first=FIRST, last=FIRST + 3 * DAY, terms=Terms(unaccounted="listed"))
    assert [(day.missed, day.n, day.allowed) for day in listed][-1] == (0, 20, 1)
    assert burn_down([], first=FIRST, last=FIRST - DAY, terms=Terms()) == []


def test_the_database_counts_by_the_day_of_the_contract(
    world: World, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """Around both changes of the clock, at the edges of days, and at the first and last instant of the year."""
    edges = [
        datetime.datetime(2026, 10, 25, 1, tzinfo=datetime.UTC),
        datetime.datetime(2027, 3, 28, 1, tzinfo=datetime.UTC),
    ]
    at = [START, END - datetime.timedelta(microseconds=1)]
    for edge in edges:
        for hours in range(-30, 31):
            at += [edge + datetime.timedelta(hours=hours, microseconds=shift) for shift in (-1, 0)]
    rows = [
        incident(world.contract, when, run=f"run-{n}", **(restart(when) if n % 7 == 0 else {}))
        for n, when in enumerate(at)
    ]
    placements_refresh(incident_ids=[row.pk for row in rows])
    with django_assert_num_queries(1):
        counted = day_counts(year=world.year)
    found: dict[datetime.date, int] = {}
    for row in counted:
        found[row.day] = found.get(row.day, 0) + row.n
    expected: dict[datetime.date, int] = {}
    for one in Incident.objects.filter(placement__lead=True):
        day = one.started_at.astimezone(MADRID).date()
        expected[day] = expected.get(day, 0) + 1
    assert found == expected
    days = year_burn_down(year=world.year, terms=world.terms, as_of=END)
    assert days[-1].day == LAST
    assert days[-1].allowed == year_report(year=world.year).failures_still_allowed


@pytest.mark.parametrize(
    "zone", ["Europe/Madrid", "America/Havana", "Asia/Kolkata", "Australia/Lord_Howe", "Asia/Beirut", "UTC"]
)
def test_local_days_are_those_of_the_zone(world: World, zone: str) -> None:
    first = datetime.datetime(2027, 1, 1, 0, 0, tzinfo=datetime.UTC)
    at = [first + datetime.timedelta(minutes=n * 997) for n in range(520)]
    run = Run.objects.create(contract=world.contract, run_id="run-1")
    Incident.objects.bulk_create(
        Incident(contract=world.contract, run=run, kind="unplanned", signal="xid", gpus=8, started_at=when)
        for when in at
    )
    day = local_day("started_at", time_zone=zone, start=at[0], end=at[-1] + datetime.timedelta(seconds=1))
    for when, found in Incident.objects.annotate(local=day).values_list("started_at", "local"):
        assert found == when.astimezone(ZoneInfo(zone)).date(), when

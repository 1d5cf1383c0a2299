"""Closing contract years: statements, restatements, catching up, and doing nothing twice."""

import datetime

import pytest

from tests.guarantee.facts import at, incident, restart
from tests.people import World
from yoco.credits.models import Credit
from yoco.guarantee.models import Placement, Statement
from yoco.guarantee.selectors import year_report
from yoco.guarantee.services import placements_refresh, years_close
from yoco.guarantee.verify import statements_verify

AFTER = datetime.datetime(2027, 11, 1, tzinfo=datetime.UTC)


def fill(world: World, resolved: int, not_resolved: int) -> None:
    rows = [incident(world.contract, at(2 * n)) for n in range(resolved)]
    rows += [incident(world.contract, at(5000 + 2 * n), **restart(at(5000 + 2 * n))) for n in range(not_resolved)]
    placements_refresh(incident_ids=[row.pk for row in rows])


def test_it_closes_a_short_year_and_proposes_one_credit(world: World) -> None:
    fill(world, 8, 2)
    report = year_report(year=world.year)
    assert (report.counted, report.resolved, report.share_floor, report.verdict) == (10, 8, "80.00", "short")
    done = years_close(as_of=AFTER)
    assert [(s.resolved, s.counted, s.verdict) for s in done.closed] == [(8, 10, "short")]
    assert Credit.objects.get().statement_id == done.closed[0].pk
    assert statements_verify() == []
    again = years_close(as_of=AFTER)
    assert (again.closing, again.closed, again.restated) == ([], [], [])
    assert Statement.objects.count() == 1
    frozen = year_report(year=world.year)
    assert (frozen.counted, frozen.resolved, frozen.verdict) == (10, 8, "short")
    assert frozen.statement is not None
    assert frozen.statement.sha256 == done.closed[0].sha256
    assert frozen.credit is not None
    assert frozen.credit["state"] == "proposed"
    assert Placement.objects.filter(lead=True).count() == 10

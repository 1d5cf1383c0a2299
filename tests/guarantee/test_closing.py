"""Closing contract years: statements, restatements, catching up, and doing nothing twice."""

import datetime

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
    rows += [incident(world.contract, **restart(at(5000 + 2 * n))) for n in range(not_resolved)]
    placements_refresh(incident_ids=[row.pk for row in rows])


def test_it_closes_a_short_year_and_proposes_one_credit(world: World) -> None:
    fill(world, 8, 2)
    report = year_report(year=world.year)
    assert (report.counted, report.resolved, report.share_floor, report.verdict) == (10, 8, "80.00", "short")
    done = years_close(as_of=AFTER)
    closed = {s.year_id: s for s in done.closed}
    assert len(closed) == 2  # the stranger's year, which had no failures, is closed beside it
    statement = closed[world.year.pk]
    assert (statement.resolved, statement.counted, statement.verdict) == (8, 10, "short")
    assert Credit.objects.get().statement_id == statement.pk
    assert statements_verify() == []
    again = years_close(as_of=AFTER)
    assert (again.closing, again.closed, again.restated) == ([], [], [])
    assert Statement.objects.count() == 2
    frozen = year_report(year=world.year)
    assert (frozen.counted, frozen.resolved, frozen.verdict) == (10, 8, "short")
    assert frozen.statement is not None
    assert frozen.statement.sha256 == statement.sha256
    assert frozen.credit is not None
    assert frozen.credit["state"] == "proposed"
    assert Placement.objects.filter(lead=True).count() == 10

"""The budget of failures on the year's page: its line, table and words agree with the verdict and open incidents."""

import datetime
import json
import re

import pytest
from django.test import Client
from django.urls import reverse

from tests.portal.scene import NOW, Scene, accept, report
from tests.portal.test_pages import text_of, year_url
from yoco.guarantee.burndown import DAY, BudgetDay
from yoco.guarantee.selectors import year_report
from yoco.guarantee.services import years_close
from yoco.portal.budget import BOTTOM, TOP, budget_drawn

FIRST = datetime.date(2027, 9, 1)


@pytest.fixture
def owner(client: Client, scene: Scene) -> Client:
    client.force_login(scene.world.owner)
    return client


@pytest.mark.parametrize("name", ["closed_year", "running_year"])
def test_the_table_ends_at_the_years_figure_and_each_day_opens_its_failures(
    owner: Client, scene: Scene, name: str
) -> None:
    year = getattr(scene, name)
    page = owner.get(year_url(scene, name)).content.decode()
    rows = re.findall(
        r'<th scope="row"><a href="[^"?]*/incidents/\?([^"]*since=[^"]+)">[^<]+</a></th>'
        r'<td class="num">(\d+)</td><td class="num">(\d+)</td><td class="num">(\d+) of (\d+)</td>'
        r'<td class="num">(-?\d+)</td>',
        page,
    )
    found = year_report(year=year)
    assert [int(n) for n in rows[-1][3:]] == [found.resolved, found.counted, found.failures_still_allowed]
    file = reverse("portal:incident_file", args=[scene.contract.pk, year.pk, "json"])
    for query, resolved, missed, *_ in rows:
        listed = json.loads(b"".join(owner.get(f"{file}?{query.replace('&amp;', '&')}")))["incidents"]
        outcomes = [row["outcome"] for row in listed]
        assert (outcomes.count("resolved"), len(outcomes)) == (int(resolved), int(resolved) + int(missed))
    misses = page.count('<circle class="miss" cx=') - 1  # one is the legend's
    assert misses == sum(int(missed) > 0 for _, _, missed, *_ in rows)
    assert (">Today</text>" in page) is (name == "running_year")


def test_it_is_in_words_in_both_languages(owner: Client, scene: Scene) -> None:
    at = year_url(scene)
    assert "On 31 Aug 2027: 2 failures more than allowed." in text_of(owner, at)
    assert "El 31 ago 2027: 2 fallos más de los permitidos." in text_of(owner, at, "es")


def test_a_line_that_is_ahead_of_the_frozen_statement_says_so(owner: Client, scene: Scene) -> None:
    accept(scene.contract, [report(scene.closed_year.starts_at + datetime.timedelta(days=20))])
    said = "Facts arrived after the statement: this line shows them already"
    assert said in text_of(owner, year_url(scene))
    years_close(as_of=NOW)
    assert said not in text_of(owner, year_url(scene))


def test_a_year_without_a_counted_failure_draws_nothing(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.stranger)
    stranger = scene.world.stranger_contract
    page = text_of(client, reverse("portal:year", args=[stranger.pk, stranger.years.get().pk]))
    assert "day by day" not in page


def test_the_line_steps_where_the_budget_does_and_ends_today() -> None:
    allowed = [0, 1, 1, -1]
    days = [
        BudgetDay(FIRST + n * DAY, resolved=n == 1, missed=2 * (n == 3), k=1, n=3, allowed=level)
        for n, level in enumerate(allowed)
    ]
    drawn = budget_drawn(days, first=FIRST, last=FIRST + 7 * DAY, guaranteed_from=FIRST + 2 * DAY, until="Today")
    assert drawn is not None
    middle = (TOP + BOTTOM) // 2
    assert drawn.points == (f"0,{middle} 125.0,{middle} 125.0,{TOP} 375.0,{TOP} 375.0,{BOTTOM} 500.0,{BOTTOM}")
    assert [(edge.x, edge.anchor) for edge in drawn.edges] == [("25.000%", "start"), ("50.000%", "end")]
    assert drawn.zero == middle
    assert [(miss.x, miss.y) for miss in drawn.misses] == [("43.750%", BOTTOM)]
    assert [row.day for row in drawn.rows] == [days[1].day, days[3].day]

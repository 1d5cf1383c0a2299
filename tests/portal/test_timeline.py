"""The incidents by day: the same filters as the list, each day opens what it counts, and a year fits a phone."""

import datetime
import json
import re

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.portal.scene import Scene
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from yoco.incidents.models import Incident
from yoco.portal.timeline import HEAD, LANE, PLOT, timeline_drawn

START = datetime.date(2027, 9, 1)


@pytest.fixture
def owner(client: Client, scene: Scene) -> Client:
    client.force_login(scene.world.owner)
    return client


@pytest.mark.parametrize(
    "query",
    ["", "?outcome=resolved", "?outcome=counted&once=1", "?since=2027-10-01&until=2027-10-31", "?where=node-004"],
)
def test_each_day_opens_the_incidents_that_it_counts(
    owner: Client, scene: Scene, query: str, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    place = [scene.contract.pk, scene.running_year.pk]
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        page = owner.get(reverse("portal:timeline", args=place) + query).content.decode()
    row = r'<th scope="row" class="nowrap"><a href="[^"?]*/incidents/([^"]+)">.*?<td class="num">(\d+)</td></tr>'
    days = [(found[0].replace("&amp;", "&"), int(found[1])) for found in re.findall(row, page)]
    file = reverse("portal:incident_file", args=[*place, "json"])

    def listed(asked: str) -> list[str]:
        rows = json.loads(b"".join(owner.get(file + asked)))["incidents"]
        return [one["incident_id"] for one in rows]

    assert [len(listed(asked)) for asked, _ in days] == [n for _, n in days]
    assert [one for asked, _ in days for one in listed(asked)] == listed(query)
    assert len(days) == page.count('tabindex="-1" aria-label=')


def test_an_incident_without_a_placing_is_pending(owner: Client, scene: Scene) -> None:
    scene.open.placement.delete()
    page = text_of(owner, reverse("portal:timeline", args=[scene.contract.pk, scene.running_year.pk]), "es")
    assert "14 incidentes en 14 días." in page
    assert "Pendiente" in page
    assert Incident.objects.filter(placement=None).count() == 1


def test_a_filter_that_leaves_nothing_says_so(owner: Client, scene: Scene) -> None:
    at = reverse("portal:timeline", args=[scene.contract.pk, scene.running_year.pk])
    assert "No incident matches this filter" in text_of(owner, f"{at}?where=nobody")


def test_stacks_are_to_scale_and_one_failure_among_hundreds_is_seen() -> None:
    day = datetime.timedelta(days=1)
    drawn = timeline_drawn(
        [(START, "resolved", 300), (START, "not_resolved", 1), (START + 35 * day, "resolved", 150)],
        first=START,
        last=START + 70 * day,
    )
    assert drawn is not None
    assert [lane.name for lane in drawn.lanes] == ["September 2027", "October 2027", "November 2027"]
    first, second = drawn.stacks
    assert [(part.outcome, part.height) for part in first.parts] == [("resolved", 29), ("not_resolved", 2)]
    assert first.parts[0].y + first.parts[0].height == HEAD + LANE - 2
    assert (second.parts[0].height, second.x) == (150 * PLOT // 301, "16.129%")
    assert timeline_drawn([], first=START, last=START) is None

"""The analytics in chromium: charts are drawn under the Content-Security-Policy, on a phone and in the dark."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import time_machine
from playwright.sync_api import Page, expect

from tests.analytics.fleet import NOW, build
from tests.guarantee.facts import START
from tests.people import World, build_world
from tests.portal.test_in_browser import WIDTHS, check, sign_in
from yoco.contracts.services import contract_create
from yoco.guarantee import tasks
from yoco.guarantee.analytics.selectors import TOPICS
from yoco.guarantee.models import AnalyticsJob

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

TITLES = {
    "en": ("Analytics", ["Failure rates", "Wasted GPU-hours", "Goodput", "Where it hurts"]),
    "es": ("Analítica", ["Tasas de fallo", "Horas de GPU perdidas", "Tiempo útil", "Dónde duele"]),
}


@pytest.fixture
def world(transactional_db: None) -> Iterator[World]:
    with time_machine.travel(NOW, tick=True):
        found = build_world()
        build(found.contract)
        yield found


@pytest.mark.parametrize(("language", "width"), [("en", "desktop"), ("es", "phone")])
def test_charts_are_drawn_in_light_and_dark(
    page: Page, world: World, settings: Any, monkeypatch: pytest.MonkeyPatch, language: str, width: str
) -> None:
    page.set_viewport_size({"width": WIDTHS[width], "height": 800})
    sign_in(page, world.owner, language)
    name, titles = TITLES[language]
    page.goto(f"/contracts/{world.contract.pk}/years/{world.year.pk}/")
    page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
    check(page)
    for topic, title in zip(TOPICS, titles, strict=True):
        page.get_by_role("navigation").get_by_role("link", name=title, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        charts = page.locator(".chart")
        assert charts.count() >= 2, topic
        expect(page.locator(".chart[data-drawn]")).to_have_count(charts.count(), timeout=60_000)
        for index in range(charts.count()):
            box = charts.nth(index).locator(".main-svg").first.bounding_box()
            assert box is not None
            assert box["width"] > 200
            assert box["height"] > 200
        check(page)
        # Drawn anew in the colours of the theme.
        colours = []
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            page.wait_for_timeout(500)
            colours.append(page.locator(".chart .xtick text").first.evaluate("e => getComputedStyle(e).fill"))
        assert colours[0] != colours[1]
    page.goto(f"/organisations/{world.organisation.pk}/fleet/")
    expect(page.locator(".chart[data-drawn]")).to_have_count(page.locator(".chart").count(), timeout=60_000)
    assert page.locator(".chart").count() >= 4
    check(page)
    page.goto("/scenarios/")
    for preset, cost in (("monthly_bill", r"307[.,]524[.,]"), ("announcement", r"5[.,]999[.,]616[.,]00")):
        page.locator(f"nav a[href$='preset={preset}']").click()
        expect(page.get_by_role("cell", name=re.compile(cost)).first).to_be_visible()
    expect(page.locator(".chart[data-drawn]")).to_have_count(1, timeout=60_000)
    check(page)
    page.locator("[name=replica_groups]").fill("3")
    page.locator("main form button").click()
    expect(page.get_by_role("alert").first).to_be_visible()
    check(page)

    empty = contract_create(
        organisation=world.organisation,
        number="ACME-2",
        name="Nothing yet",
        currency="EUR",
        time_zone="Europe/Madrid",
        starts_on=START.date(),
        ends_on=START.date().replace(year=START.year + 1),
        guarantee_from=START.date(),
        actor=None,
    ).years.get()
    for topic in ("", *(f"{each}/" for each in TOPICS)):
        page.goto(f"/contracts/{empty.contract_id}/years/{empty.pk}/analytics/{topic}")
        check(page)

    # So many incidents that a task adds them up: the page tells how far it is, and shows the figures by itself.
    queue: list[str] = []
    monkeypatch.setattr(tasks.analytics_compute, "delay", queue.append)
    settings.ANALYTICS_AT_ONCE = 0
    page.goto(f"/contracts/{world.contract.pk}/years/{world.year.pk}/analytics/waste/")
    expect(page.get_by_role("progressbar")).to_be_visible()
    check(page)
    AnalyticsJob.objects.update(steps=3, steps_done=2)
    expect(page.get_by_role("status")).to_have_text({"en": "2 of 3 steps", "es": "2 de 3 pasos"}[language])
    tasks.analytics_compute(queue.pop())
    expect(page.locator(".chart").first).to_be_visible(timeout=30_000)

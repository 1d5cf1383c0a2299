"""The browser fixture itself: it opens our pages, sees their faults, and axe-core finds what is inaccessible."""

import pytest
from playwright.sync_api import Page

from tests.browser import accessibility_problems

pytestmark = pytest.mark.browser


def test_it_opens_the_sign_in_page(page: Page):
    answer = page.goto("/accounts/login/")
    assert answer is not None
    assert answer.status == 200
    assert page.get_by_role("textbox").count() >= 1


def test_axe_runs_under_our_content_security_policy_and_finds_faults(page: Page):
    answer = page.goto("/accounts/login/")
    assert "script-src" in answer.headers["content-security-policy"]
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<input id=\"nameless\">')")
    assert any("#nameless" in problem for problem in accessibility_problems(page))


def test_a_database_row_is_seen_by_the_server_thread(page: Page, world):
    page.goto("/accounts/login/")
    page.locator("[name=login]").fill(world.owner.email)
    page.locator("[name=password]").fill("correct horse battery staple")
    page.locator("form:has([name=password]) [type=submit]").click()
    page.wait_for_url(lambda url: "/accounts/login/" not in url)

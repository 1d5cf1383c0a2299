"""A real browser against pytest-django's live server, and the accessibility rules of axe-core.

Tests that use `page` are marked `browser`. A page that logs an error to the console, breaks the
Content-Security-Policy or asks for a static file that is missing fails its test.
"""

import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Response, sync_playwright

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
ARGUMENTS = [
    "--no-sandbox",  # chromium refuses its sandbox as root, and only our own pages are opened
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def find_chromium() -> str | None:
    """Return the path of the installed chromium or chrome, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    # Playwright keeps an event loop in this thread, which Django takes for asynchronous code.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        yield browser
        browser.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def page(browser: Browser, live_server) -> Iterator[Page]:
    """A page of a browser that has never been here; paths are relative to the live server."""
    context = browser.new_context(base_url=live_server.url, locale="en-GB")
    page = context.new_page()
    page.set_default_timeout(15_000)
    problems: list[str] = []

    def console(message: ConsoleMessage) -> None:
        # Answers of 400 and more are judged below, where the kind of resource is known.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            problems.append(f"console: {message.text}")

    def response(answer: Response) -> None:
        if answer.status >= 400 and answer.request.resource_type not in ("document", "xhr", "fetch"):
            problems.append(f"{answer.status}: {answer.url}")

    page.on("console", console)
    page.on("pageerror", lambda error: problems.append(f"script: {error}"))
    page.on("response", response)
    yield page
    context.close()
    assert not problems, "the page is not clean:\n" + "\n".join(problems)


def accessibility_problems(page: Page, *, rules: list[str] | None = None) -> list[str]:
    """Return what axe-core finds wrong on the page as it is now, by WCAG 2.2 level AA or by `rules` alone."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(_axe_source())
    only = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": WCAG}
    found = page.evaluate("only => axe.run(document, {runOnly: only})", only)
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']} at {node['target'][0]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


@cache
def _axe_source() -> str:
    return AXE.read_text()

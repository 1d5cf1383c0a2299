"""The screenshots of README: real pages in chromium over the scene of the tests, whose clock always says the same.

    .venv/bin/python -m tools.screenshots

writes docs/screenshots/NAME.png for each of SHOTS. It runs tests/test_screenshots.py, which takes them at every run of
the suite and keeps them only here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser

DIRECTORY = Path(__file__).resolve().parent.parent / "docs" / "screenshots"
KEEP = "YOCO_SCREENSHOTS"
MOST_BYTES = 150_000
DESKTOP, PHONE = (1200, 800), (390, 780)


@dataclass(frozen=True, slots=True)
class Shot:
    """A page by its URL name. `person` is one of the scene's world; `arguments` are those of the address."""

    name: str
    url_name: str
    arguments: Callable[[Any], list[Any]]
    person: Literal["owner", "account_manager"] = "owner"
    size: tuple[int, int] = DESKTOP
    theme: Literal["light", "dark"] = "light"


def _closed_year(scene: Any) -> list[Any]:
    return [scene.contract.pk, scene.closed_year.pk]


SHOTS = (
    Shot("guarantee", "portal:year", _closed_year),
    Shot("incident", "portal:incident", lambda scene: [scene.contract.pk, scene.rolled_back.public_id]),
    Shot("analytics-dark", "portal:analytics_topic", lambda scene: [*_closed_year(scene), "recovery"], theme="dark"),
    Shot("scenario", "portal:scenario", lambda scene: []),
    Shot("phone", "portal:year", lambda scene: [scene.contract.pk, scene.running_year.pk], size=PHONE),
    Shot("desk", "desk:portfolio", lambda scene: [], person="account_manager"),
    Shot("credit", "desk:credit", lambda scene: [scene.credit.pk], person="account_manager"),
)


def shot_take(browser: Browser, shot: Shot, *, address: str, cookie: str, directory: Path) -> Path:
    """Opens `address` signed in by the session `cookie`, waits for its charts and writes the PNG."""
    width, height = shot.size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=shot.theme, reduced_motion="reduce", locale="en-GB"
    )
    context.add_cookies([{"name": "sessionid", "value": cookie, "url": address}])
    page = context.new_page()
    page.goto(address)
    page.wait_for_function("document.querySelectorAll('.chart:not([data-drawn])').length === 0")
    path = directory / f"{shot.name}.png"
    page.screenshot(path=path, animations="disabled")
    context.close()
    return path


def main() -> int:
    """Writes all of them; the exit status is that of the test."""
    import pytest

    os.environ[KEEP] = str(DIRECTORY)
    return int(pytest.main(["--quiet", "tests/test_screenshots.py"]))


if __name__ == "__main__":
    sys.exit(main())

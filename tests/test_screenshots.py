"""The screenshots that README shows are those that `make screenshots` writes, of pages that exist."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import time_machine
from django.conf import settings
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Browser

from tests.analytics.fleet import watch
from tests.portal.scene import NOW, Scene, build_scene
from tests.portal.test_access import PAGES
from tools.screenshots import DIRECTORY, KEEP, MOST_BYTES, SHOTS, shot_take

README = DIRECTORY.parents[1] / "README.md"


@pytest.fixture
def scene(transactional_db: None) -> Iterator[Scene]:
    with time_machine.travel(NOW, tick=True):
        made = build_scene()
        watch(made.contract, "synthetic-pretraining", 0, 8760)
        watch(made.contract, "llm-7b-0412", 8760, (NOW - made.closed_year.starts_at).total_seconds() / 3600)
        yield made


def test_readme_shows_what_the_command_writes() -> None:
    shown = re.findall(r'<img src="docs/screenshots/([a-z-]+)\.png"[^>]* alt="([^"]{20,})"', README.read_text())
    assert sorted(name for name, _ in shown) == sorted(shot.name for shot in SHOTS)
    assert {shot.url_name for shot in SHOTS} <= set(PAGES)
    files = {path.stem: path.stat().st_size for path in DIRECTORY.iterdir()}
    assert set(files) == {shot.name for shot in SHOTS}
    assert max(files.values()) < MOST_BYTES


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_takes_them(browser: Browser, live_server, scene: Scene, tmp_path: Path) -> None:
    directory = Path(os.environ.get(KEEP, tmp_path))
    for shot in SHOTS:
        client = Client()
        client.force_login(getattr(scene.world, shot.person))
        cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
        address = live_server.url + reverse(shot.url_name, args=shot.arguments(scene))
        path = shot_take(browser, shot, address=address, cookie=cookie, directory=directory)
        assert 10_000 < path.stat().st_size < MOST_BYTES, shot.name

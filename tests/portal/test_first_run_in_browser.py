"""A new organisation's first run, as its owner does it: a key from the page, the page's lines in a training script, the
page's command on the machine, and the page that says that the first heartbeat has arrived."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.people import PASSWORD, World
from tests.portal.test_in_browser import WORDS, check, sign_in

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

# What the customer has already; LINES are the page's.
SCRIPT = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
total = 20
LINES
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    scheduler.step()
"""


@pytest.fixture
def world(transactional_db: None) -> World:
    from tests.people import build_world

    return build_world()


def test_from_a_key_to_the_first_heartbeat(
    page: Page, world: World, live_server: Any, settings: Any, tmp_path: Path
) -> None:
    settings.SITE_URL = live_server.url
    page.set_viewport_size({"width": 1280, "height": 900})
    sign_in(page, world.owner, "en")
    page.goto(f"/contracts/{world.contract.pk}/first-run/")
    expect(page.get_by_role("heading", name="Waiting for the first heartbeat")).to_be_visible()
    check(page)
    page.goto(f"/organisations/{world.organisation.pk}/keys/new/")
    page.locator("[name=password]").fill(PASSWORD)
    page.get_by_role("button", name=WORDS["en"]["confirm"]).click()
    page.get_by_label("Name", exact=True).fill("Cluster A")
    page.get_by_role("button", name=WORDS["en"]["make_key"]).click()
    lines = page.get_by_role("region", name="Five lines in the training script").locator("pre").inner_text()
    shell = page.get_by_role("region", name="Start the job under the agent").locator("pre").inner_text()
    page.get_by_role("link", name=re.compile("watch for the first heartbeat")).click()

    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("LINES", lines.strip()))
    command = shell.replace("pip install ./agent\n", "").replace("python -m", f"{sys.executable} -m")
    command = command.replace("--workers 4 --spares 2", f"--workers 2 --spares 1 --state-dir {tmp_path / 'state'}")
    log = (tmp_path / "log").open("w")
    command = command.replace("train.py", str(script))
    job = subprocess.Popen(["bash", "-ec", command], stdout=log, stderr=log, start_new_session=True)
    try:
        expect(page.get_by_role("heading", name="The first heartbeat has arrived")).to_be_visible(timeout=120_000)
        expect(page.get_by_role("status")).to_have_text("The first heartbeat has arrived")
        check(page)
        assert job.wait(120) == 0, (tmp_path / "log").read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        log.close()
    page.get_by_role("link", name="Go to the guarantee").click()
    check(page)

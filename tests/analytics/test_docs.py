"""The example of docs/analysis.md, run as it stands on files of the page, says what the page says."""

import re
from pathlib import Path

import pytest
import time_machine
from django.test import Client

from tests.analytics.fleet import NOW, build
from tests.people import World

DOCS = Path(__file__).parents[2] / "docs" / "analysis.md"


@pytest.mark.django_db
def test_the_example_reproduces_the_page(
    client: Client,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build(world.contract)
    client.force_login(world.viewer)
    page = f"/contracts/{world.contract.pk}/years/{world.year.pk}/analytics/"
    with time_machine.travel(NOW, tick=False):
        for topic, code in (("waste", "terms"), ("waste", "worst"), ("recovery", "recovery")):
            (tmp_path / f"{code}.parquet").write_bytes(client.get(f"{page}{topic}/{code}.parquet").content)
        shown = client.get(f"{page}waste/").content.decode()
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    told = re.search(r"wasted ([\d.]+) GPU-hours, saved ([\d.]+)", capsys.readouterr().out)
    assert told is not None
    wasted, saved = (f"{float(value):,.3f}" for value in told.groups())
    assert f"Incidents wasted {wasted} GPU-hours" in shown
    assert f"migration saved {saved} GPU-hours" in shown
    assert (wasted, saved) == ("2,003.627", "6,534.258")


def test_every_table_is_named_in_the_document() -> None:
    text = DOCS.read_text()
    codes = re.findall(
        r"Table\(\s*\"(\w+)\"", (DOCS.parents[1] / "yoco" / "guarantee" / "analytics" / "tables.py").read_text()
    )
    assert len(codes) >= 18
    assert {code for code in codes if f"`{code}`" not in text} == set()

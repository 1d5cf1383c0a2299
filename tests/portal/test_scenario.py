"""The scenario calculator as a reader and as a machine meet it."""

import csv
import io
import json
import re

import pytest
from django.test import Client

from tests.people import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader(client: Client, world: World) -> Client:
    client.force_login(world.viewer)
    return client


def test_the_page_answers_at_once_and_by_its_address(reader: Client) -> None:
    page = reader.get("/scenarios/").content.decode()
    assert "373.8 failures a year stop 2,048 GPUs" in page
    doubled = reader.get("/scenarios/", {"gpus": "4096"}).content.decode()
    assert "747.5 failures a year stop 4,096 GPUs" in doubled


def test_the_presets_reproduce_the_published_figures_and_say_under_which_assumptions(reader: Client) -> None:
    announcement = reader.get("/scenarios/?preset=announcement").content.decode()
    assert "5,999,616.00" in announcement
    assert "Holds for 390.6 failures a year" in announcement
    bill = reader.get("/scenarios/?preset=monthly_bill").content.decode()
    assert "307,524." in bill
    link = re.search(r'href="(/scenarios/strategies\.csv\?preset=monthly_bill)"', bill)
    assert link is not None
    restart, *others = csv.DictReader(io.StringIO(reader.get(link[1]).content.decode()))
    # What the page shows for a month, and the chart for the year.
    assert f"{round(float(restart['money']) / 12, 2):,.2f}" in bill
    drawn = json.loads(re.findall(r'<script id="figure-strategies" type="application/json">(.*?)</script>', bill)[0])
    assert drawn["data"][0]["x"] == [round(int(row["lost_gpu_ms"]) / 3_600_000, 3) for row in (restart, *others)]
    assert reader.get("/scenarios/strategies.parquet?replica_groups=3").status_code == 404
    assert "730 hours" in bill


def test_a_preset_can_be_sent_on_and_changed(reader: Client) -> None:
    """What the form of a preset shows calculates the same when it is sent."""
    shown = reader.get("/scenarios/?preset=monthly_bill").context["form"]
    sent = {name: shown[name].value() for name in shown.fields if shown[name].value() is not None}
    assert "307,524." in reader.get("/scenarios/", sent).content.decode()


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ({"replica_groups": "3"}, "replica_groups", "cannot be split into 3"),
        ({"checkpoint_minutes": "9000"}, "checkpoint_minutes", "before the next checkpoint"),
        ({"anchor": "own", "failures": "100000"}, "checkpoint_minutes", "before the next checkpoint"),
        ({"gpus": "many"}, "gpus", "Enter a whole number"),
        ({"price": "-1"}, "price", "greater than or equal to 0"),
        ({"gpus": "1" * 400}, "gpus", "less than or equal"),
    ],
)
def test_what_is_impossible_is_refused_at_its_field(
    reader: Client, asked: dict[str, str], field: str, words: str
) -> None:
    answer = reader.get("/scenarios/", asked)
    assert answer.status_code == 200
    assert words in " ".join(answer.context["form"].errors[field])
    assert "cannot be calculated" in answer.content.decode()


def test_a_machine_gets_the_same_figures(reader: Client) -> None:
    answer = reader.get("/api/v1/scenarios", {"anchor": "own", "failures": "390.6", "checkpoint_minutes": "300"}).json()
    assert answer["strategies"][0]["money"] == "5999616.00"
    assert answer["spares"]["poisson"] >= 1
    refused = reader.get("/api/v1/scenarios", {"replica_groups": 3})
    assert (refused.status_code, refused["Content-Type"]) == (422, "application/problem+json")
    assert "cannot be split" in refused.json()["errors"]["replica_groups"][0]
    assert reader.get("/api/v1/scenarios", {"gpus": "x"}).status_code == 400

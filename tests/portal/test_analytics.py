"""The analytics pages as a reader meets them: figures, sentences, files, and what is said when data lack."""

import datetime
import html
import io
import json
import re

import pandas
import plotly.graph_objects
import pytest
import time_machine
from django.contrib.staticfiles import finders
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from tests.analytics.fleet import MIGRATED_MS, NOW, RESTARTED_MS, WITHOUT_MS, build, restarted, watch
from tests.guarantee.facts import END, START, at, incident
from tests.people import World
from yoco.contracts.models import Contract
from yoco.guarantee.analytics.selectors import TOPICS
from yoco.guarantee.placements import placements_refresh
from yoco.incidents.models import Run

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader(client: Client, world: World) -> Client:
    client.force_login(world.viewer)
    return client


@pytest.fixture
def at_now():
    with time_machine.travel(NOW, tick=False):
        yield


def address(world: World, topic: str = "") -> str:
    page = f"/contracts/{world.contract.pk}/years/{world.year.pk}/analytics/"
    return f"{page}{topic}/" if topic else page


def text(reader: Client, world: World, topic: str = "", **asked: object) -> str:
    answer = reader.get(address(world, topic), asked)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_overview_says_the_main_figures(reader: Client, world: World, at_now: None) -> None:
    build(world.contract)
    page = text(reader, world)
    assert "5 failures so far." in page
    assert "1.95 failures per 1,000 node-days, 95 % interval" in page
    assert "2,048 GPUs ran 48.0 h between failures on average." in page
    assert "Chance that the year ends short" in page
    assert "of the watched GPU-time moved training on" in page
    assert 'aria-current="page">Overview' in page


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        (
            "rates",
            [
                "The interval takes them",
                "28.85 h at 1,024 GPUs",
                "1 of 1 watched workload failed. Half fail within 10 h 0 min",
            ],
        ),
        ("waste", ["2,003.6", "4 of 5 incidents lack a measured time", "Idle spare nodes are not taken off"]),
        (
            "goodput",
            [
                "Checkpoints were 40 min 0 s apart",
                "an ETTR of 96.20 % (renewal) and 96.38 % (linear)",
                "Renewal form",
                "Nobody reports how long checkpoints take",
            ],
        ),
        (
            "recovery",
            [
                "GPU error (XID), 4 of 5 failures (80.00 %)",
                "the longest took 30 min",
                "no watched workload has told its steps",
            ],
        ),
    ],
)
def test_each_topic_has_a_sentence_a_chart_and_a_table(
    reader: Client, world: World, at_now: None, topic: str, words: list[str]
) -> None:
    build(world.contract)
    page = text(reader, world, topic)
    for each in words:
        assert each.lower() in page.lower(), each
    figures = re.findall(r'<script id="(figure-[a-z_]+)" type="application/json">(.*?)</script>', page)
    assert len(figures) >= 2
    for name, figure in figures:
        drawn = json.loads(figure)
        assert f'data-figure="{name}"' in page
        assert all(trace["type"] in ("bar", "scatter", "heatmap") for trace in drawn["data"])
        # Plotly knows every property; colours are looked up by the page.
        plotly.graph_objects.Figure(_black(drawn))
    assert page.count("<table>") >= len(figures)
    assert not re.search(r"<script(?![^>]*(src=|application/json))", page)
    assert " style=" not in page


def _black(value: object) -> object:
    if isinstance(value, str):
        return "#000" if value.startswith("--") else value
    if isinstance(value, list):
        return [_black(each) for each in value]
    return {key: _black(each) for key, each in value.items()} if isinstance(value, dict) else value


def test_measured_and_projected_are_never_one_series(reader: Client, world: World, at_now: None) -> None:
    build(world.contract)
    page = text(reader, world, "rates")
    figure = json.loads(re.findall(r'<script id="figure-mttf" type="application/json">(.*?)</script>', page)[0])
    names = [trace["name"] for trace in figure["data"]]
    assert names == ["Measured here", "Projected from your rate", "Published, measured", "Published, projected"]
    assert {trace["mode"] for trace in figure["data"]} == {"markers"}


@pytest.mark.parametrize("topic", ["", *TOPICS])
def test_a_page_takes_few_queries_whatever_the_number_of_incidents(
    reader: Client, world: World, at_now: None, django_assert_max_num_queries: DjangoAssertNumQueries, topic: str
) -> None:
    build(world.contract)
    with django_assert_max_num_queries(12):
        reader.get(address(world, topic))


def test_the_files_hold_exactly_what_the_chart_shows(reader: Client, world: World, at_now: None) -> None:
    build(world.contract)
    csv = reader.get(address(world, "waste") + "terms.csv")
    assert csv["Content-Type"] == "text/csv; charset=utf-8"
    assert 'filename="ACME-1-year-1-terms.csv"' in csv["Content-Disposition"]
    read = pandas.read_csv(io.BytesIO(csv.content), index_col="term")
    assert int(read["wasted_measured_gpu_ms"].sum()) == RESTARTED_MS
    assert int(read["wasted_estimated_gpu_ms"].sum()) == 4 * MIGRATED_MS
    parquet = reader.get(address(world, "waste") + "terms.parquet")
    table = pandas.read_parquet(io.BytesIO(parquet.content))
    assert int(table["without_estimated_gpu_ms"].sum()) == 4 * WITHOUT_MS
    page = text(reader, world, "waste")
    figure = json.loads(re.findall(r'<script id="figure-terms" type="application/json">(.*?)</script>', page)[0])
    drawn = {trace["name"]: trace["x"] for trace in figure["data"]}
    told = [None if pandas.isna(value) else round(value / 3.6e6, 3) for value in table["wasted_estimated_gpu_ms"]]
    assert drawn["Wasted, estimated"] == told
    assert told.count(None) == 1  # nobody reports fail-slow, and a zero would be a claim
    for topic, code in (("rates", "mttf"), ("goodput", "runs"), ("recovery", "calendar"), ("waste", "worst")):
        for kind in ("csv", "parquet"):
            assert reader.get(f"{address(world, topic)}{code}.{kind}").status_code == 200, (code, kind)
    assert reader.get(address(world, "waste") + "nothing.csv").status_code == 404
    assert reader.get(address(world, "nothing") + "terms.csv").status_code == 404
    assert reader.get(address(world, "nothing")).status_code == 404


def test_what_nobody_reports_is_asked_for(reader: Client, world: World, at_now: None) -> None:
    build(world.contract)
    page = text(reader, world, "waste", spare_nodes=2)
    assert "Spare nodes are taken as eight GPUs each" in page
    assert "-3,840.000" in page  # 2 nodes · 8 GPUs · 240 h
    assert "benefit.csv?spare_nodes=2" in page
    assert b"idle,-13824000000" in reader.get(address(world, "waste") + "benefit.csv?spare_nodes=2").content
    refused = text(reader, world, "waste", spare_nodes=-1)
    assert "greater than or equal to 0" in refused
    assert "Idle spare nodes are not taken off" in refused
    assert "1 min 40 s" in text(reader, world, "goodput", write_seconds=100)


def test_without_a_price_there_is_no_money_and_the_page_says_so(reader: Client, world: World, at_now: None) -> None:
    build(world.contract)
    assert "€" in text(reader, world, "waste")
    Contract.objects.filter(pk=world.contract.pk).update(price_per_gpu_hour=None)
    page = text(reader, world, "waste")
    assert "The contract has no price per GPU-hour" in page
    assert "€" not in page


def test_a_late_report_is_on_the_page_at_once(reader: Client, world: World, at_now: None) -> None:
    build(world.contract)
    assert "5 failures so far." in text(reader, world, "rates")
    placements_refresh(incident_ids=[restarted(world.contract, 100.0).pk])
    assert "6 failures so far." in text(reader, world, "rates")


def clean(page: str) -> None:
    """No value that is none."""
    assert not re.search(r"\b(NaN|nan|inf|Infinity|None)\b", page)


def test_no_incidents(reader: Client, world: World, at_now: None) -> None:
    said = {
        "": ["No failure so far.", "No incident so far.", "Not enough data"],
        "rates": ["Not enough data: no agent watched", "Not enough data: no failure has counted"],
        "waste": ["No incident so far."],
        "goodput": ["Not enough data", "No checkpoint is known: the interval is the default of 1 h 0 min."],
        "recovery": ["No failure so far.", "Not enough data."],
    }
    for topic, words in said.items():
        page = text(reader, world, topic)
        clean(page)
        for each in words:
            assert each in page, (topic, each)


def test_one_incident_without_a_checkpoint_on_a_run_that_never_ended(
    reader: Client, world: World, at_now: None
) -> None:
    placements_refresh(incident_ids=[incident(world.contract, at(10)).pk])
    watch(world.contract, "run-1", 0, 24)  # silent since; nothing is watched until now
    pages = {topic: text(reader, world, topic) for topic in ("", *TOPICS)}
    for page in pages.values():
        clean(page)
    assert "1 failure so far." in pages["rates"]
    assert "2,048 GPUs ran 24.0 h between failures" in pages["rates"]
    assert "Too few failures to test" in pages["rates"]
    assert "sixteen weeks" in pages["rates"]
    assert "1 of 1 incidents lack a measured time" in pages["waste"]
    assert "No checkpoint is known" in pages["goodput"]
    assert "No restart was measured" in pages["goodput"]
    assert "Some times are estimated." in pages["goodput"]


def test_a_run_without_a_failure_has_a_lower_bound_only(reader: Client, world: World, at_now: None) -> None:
    Run.objects.create(contract=world.contract, run_id="calm", gpus=8, gpus_per_node=8)
    watch(world.contract, "calm", 0, 240)
    page = text(reader, world, "rates")
    clean(page)
    # 240 h over 3.0 failures at one-sided 95 %.
    assert "No failure yet: 8 GPUs run at least 80.1 h between failures" in page
    assert "No watched workload has failed yet." in page


def test_zero_gpus_and_clocks_that_disagree(reader: Client, world: World, at_now: None) -> None:
    row = incident(world.contract, at(10), run="empty", gpus=0, spare_ready_at=at(9), detected_at=at(9.5))
    placements_refresh(incident_ids=[row.pk])
    Run.objects.filter(run_id="empty").update(gpus=0)
    watch(world.contract, "empty", 0, 240)
    watch(world.contract, "empty", 300, 250)
    pages = {topic: text(reader, world, topic) for topic in ("", *TOPICS)}
    for page in pages.values():
        clean(page)
    assert "1 of them met a workload that was not watched or whose GPUs are not known" in pages["rates"]
    assert "Not enough data: no agent watched a workload whose GPUs are known." in pages["rates"]
    assert "1 workload with incidents was never watched" in pages["goodput"]
    assert "2 instants lie before those in front of them" in pages["recovery"]


def test_incidents_beyond_the_watched_time_show_their_excess(reader: Client, world: World, at_now: None) -> None:
    placements_refresh(incident_ids=[restarted(world.contract, 10).pk])
    watch(world.contract, "run-1", 10, 10.25)
    page = text(reader, world, "goodput")
    clean(page)
    assert "Incidents claim more time than was watched" in page
    assert "0.00 % of the watched GPU-time" in page


def test_plotly_comes_from_the_installed_package() -> None:
    found = finders.find("vendor/plotly.min.js")
    assert found is not None
    with open(found) as script:
        assert "plotly.js v" in script.read(100)
    assert finders.find("vendor/widgetbundle.js") is None


def test_spanish(reader: Client, world: World, at_now: None) -> None:
    build(world.contract)
    world.viewer.language = "es"
    world.viewer.save(update_fields=["language"])
    page = text(reader, world, "rates")
    assert "5 fallos hasta ahora." in page
    assert '"separators": ",."' in page


def test_a_rate_that_rose_clusters_and_a_lemon_are_named(reader: Client, world: World) -> None:
    """Twelve weeks with one failure each, then twelve with eight, all of them on one day and half on one node."""
    week = 24 * 7
    rows = [incident(world.contract, at(week * n + 12)) for n in range(12)]
    for n in range(12, 24):
        nodes = ["node-lemon"] * 4 + [f"other-{n}-{each}" for each in range(4)]
        rows += [incident(world.contract, at(week * n + 12 + each), node=name) for each, name in enumerate(nodes)]
    placements_refresh(incident_ids=[row.pk for row in rows])
    Run.objects.update(gpus=2048, gpus_per_node=8)
    watch(world.contract, "run-1", 0, week * 24)
    with time_machine.travel(at(week * 24), tick=False):
        reader.force_login(world.viewer)
        page = text(reader, world, "rates")
        hurts = text(reader, world, "recovery")
    assert "108 failures so far." in page
    assert "times as much as Poisson counts would: the interval is a bootstrap by week." in page
    assert "24 Nov 2026: More from here on." in page  # the thirteenth week
    figure = json.loads(re.findall(r'<script id="figure-weekly" type="application/json">(.*?)</script>', page)[0])
    assert [(mark["x"], mark["text"]) for mark in figure["layout"]["annotations"]] == [
        ("2026-11-24", "More from here on")
    ]
    assert "1 part fails more often than chance allows, of a fleet of 256 nodes and 2,048 GPUs." in hurts
    assert "node-lemon" in hurts


def test_an_incident_says_what_it_cost(reader: Client, world: World, at_now: None) -> None:
    rows = build(world.contract)
    page = reader.get(f"/contracts/{world.contract.pk}/incidents/{rows[0].public_id}/").content.decode()
    assert "At the contract's price: wasted €185.60, saved €4,083.91." in page
    Contract.objects.filter(pk=world.contract.pk).update(price_per_gpu_hour=None)
    page = reader.get(f"/contracts/{world.contract.pk}/incidents/{rows[0].public_id}/").content.decode()
    assert "price: wasted" not in page


def test_invented_incidents_are_labelled(reader: Client, world: World, at_now: None) -> None:
    build(world.contract)
    assert "generated for demonstration" not in text(reader, world, "waste")
    placements_refresh(incident_ids=[incident(world.contract, at(11), origin="synthetic").pk])
    for topic in ("", *TOPICS):
        assert "generated for demonstration" in text(reader, world, topic)


def test_a_year_to_come_and_one_that_is_over(reader: Client, world: World) -> None:
    for now, words in ((START - datetime.timedelta(days=9), "No failure so far."), (END, "is over; nothing is left")):
        with time_machine.travel(now, tick=False):
            reader.force_login(world.viewer)
            for topic in ("", *TOPICS):
                page = text(reader, world, topic)
                clean(page)
                if topic == "rates":
                    assert words in page
        build(world.contract)


def test_the_measured_rate_goes_on_to_the_scenarios(reader: Client, world: World, at_now: None) -> None:
    assert "Calculate scenarios" not in text(reader, world, "rates")
    build(world.contract)
    found = re.search(r'href="(/scenarios/[^"]+)"', text(reader, world, "rates").split("Calculate scenarios")[0][-300:])
    assert found is not None
    page = reader.get(html.unescape(found[1])).content.decode()
    # 256 nodes · 1.9531 per 1,000 node-days · 365 days
    assert "182.5 failures a year stop 2,048 GPUs" in page

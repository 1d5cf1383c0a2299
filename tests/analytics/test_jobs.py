"""Analytics of very many incidents: computed once for the same data, never shown when the data have changed."""

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.test import Client

from tests.analytics.fleet import NOW, build, restarted, watch
from tests.guarantee.facts import END, at
from tests.people import World
from yoco.contracts.models import Contract, ContractYear
from yoco.guarantee import tasks
from yoco.guarantee.analytics import jobs
from yoco.guarantee.analytics.selectors import TOPICS
from yoco.guarantee.models import AnalyticsJob
from yoco.guarantee.placements import placements_refresh
from yoco.incidents.models import Run, StepHour

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def now() -> Iterator[Any]:
    with time_machine.travel(NOW + datetime.timedelta(minutes=20), tick=False) as clock:
        yield clock


@pytest.fixture
def many(world: World, settings: Any) -> World:
    """Five incidents are very many here."""
    settings.ANALYTICS_AT_ONCE = 4
    build(world.contract)
    return world


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A broker: the ids of the tasks that nobody has done yet."""
    waiting: list[str] = []
    monkeypatch.setattr(tasks.analytics_compute, "delay", waiting.append)
    return waiting


def address(world: World, topic: str = "") -> str:
    page = f"/contracts/{world.contract.pk}/years/{world.year.pk}/analytics/"
    return f"{page}{topic}/" if topic else page


def work(queue: list[str]) -> None:
    while queue:
        tasks.analytics_compute(queue.pop(0))


def test_the_page_shows_progress_then_what_it_would_show_at_once(
    client: Client, many: World, queue: list[str], settings: Any, now: Any
) -> None:
    now.move_to(NOW)  # a full hour
    client.force_login(many.viewer)
    settings.ANALYTICS_AT_ONCE = 5
    pages = {topic: client.get(address(many, topic)).content.decode() for topic in ("", *TOPICS)}
    fleet_page = f"/organisations/{many.organisation.pk}/fleet/"
    pages["fleet"] = client.get(fleet_page).content.decode()
    csv = client.get(address(many, "recovery") + "calendar.csv").content
    settings.ANALYTICS_AT_ONCE = 4
    for topic, at_once in pages.items():
        where = fleet_page if topic == "fleet" else address(many, topic)
        asked = client.get(where)
        assert asked.status_code == 202
        assert '<progress id="job-progress" max="1" value="0"' in asked.content.decode()
        assert "Look again" in asked.content.decode()
        assert client.get(where).status_code == 202
        assert len(queue) == 1  # asked twice, computed once
        work(queue)
        answer = client.get(where)
        assert answer.status_code == 200
        told = answer.content.decode()
        assert "As of" in told
        for exhibit in at_once.split('<section class="card"')[1:]:
            assert exhibit.split("</section>")[0] in told, topic
    assert client.get(address(many, "recovery") + "calendar.csv").content == csv
    assert AnalyticsJob.objects.count() == len(pages)


def test_a_late_report_is_never_hidden_by_an_earlier_answer(client: Client, many: World, queue: list[str]) -> None:
    client.force_login(many.viewer)
    client.get(address(many, "rates"))
    work(queue)
    assert "5 failures so far." in client.get(address(many, "rates")).content.decode()
    placements_refresh(incident_ids=[restarted(many.contract, 100.0).pk])
    asked = client.get(address(many, "rates"))
    assert asked.status_code == 202
    assert "5 failures" not in asked.content.decode()
    work(queue)
    assert "6 failures so far." in client.get(address(many, "rates")).content.decode()


def test_whatever_an_answer_rests_on_makes_another(client: Client, many: World, queue: list[str]) -> None:
    client.force_login(many.viewer)
    contract, year = Contract.objects.filter(pk=many.contract.pk), ContractYear.objects.filter(pk=many.year.pk)
    changes: list[Callable[[], object]] = [
        lambda: Run.objects.create(contract=many.contract, run_id="calm", gpus=8),
        lambda: watch(many.contract, "calm", 130, 180),
        lambda: Run.objects.update(gpus=4096),
        lambda: contract.update(price_per_gpu_hour="3.00"),
        lambda: year.update(fees_minor=100),
        lambda: StepHour.objects.create(
            run=Run.objects.get(run_id="calm"), hour=at(140), first_at=at(140), last_at=at(141), steps=9, took_ms=9
        ),
    ]
    found = []
    for change in (lambda: None, *changes):
        change()
        found.append(client.get(address(many, "waste")).status_code)
        work(queue)
        assert client.get(address(many, "waste")).status_code == 200
    assert found == [202, 200, 202, 202, 202, 202, 202]  # a run that nobody watched is in no figure


def test_heartbeats_within_the_hour_do_not_make_another(
    client: Client, many: World, queue: list[str], now: Any
) -> None:
    client.force_login(many.viewer)
    client.get(address(many, "goodput"))
    work(queue)
    watch(many.contract, "run-1", 240, 240.3)
    assert client.get(address(many, "goodput")).status_code == 200
    now.shift(datetime.timedelta(hours=1))
    assert client.get(address(many, "goodput")).status_code == 202


def test_what_changed_while_it_was_computed_is_computed_again(
    client: Client, many: World, queue: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(many.viewer)
    client.get(address(many, "rates"))
    computed, late = jobs._computed, [restarted(many.contract, 100.0)]

    def disturbed(*arguments: Any) -> Any:
        found = computed(*arguments)
        if late:
            placements_refresh(incident_ids=[late.pop().pk])
        return found

    monkeypatch.setattr(jobs, "_computed", disturbed)
    work(queue)
    assert "6 failures so far." in client.get(address(many, "rates")).content.decode()
    assert not queue


def test_a_lost_task_is_started_again_and_old_answers_go(
    client: Client, many: World, queue: list[str], now: Any
) -> None:
    client.force_login(many.viewer)
    client.get(address(many, "rates"))
    lost = queue.pop()
    AnalyticsJob.objects.update(state="running")
    call_command("tick")
    assert not queue
    now.shift(datetime.timedelta(minutes=11))
    call_command("tick")
    assert queue == [lost]
    work(queue)
    tasks.analytics_compute(lost)  # delivered twice
    assert client.get(address(many, "rates")).status_code == 200
    now.shift(datetime.timedelta(minutes=61))
    call_command("tick")
    assert not AnalyticsJob.objects.exists()  # nobody can ask as of that hour again
    now.move_to(END + datetime.timedelta(hours=2))
    client.force_login(many.viewer)
    client.get(address(many, "rates"))
    work(queue)
    now.shift(datetime.timedelta(days=6))
    call_command("tick")
    client.force_login(many.viewer)
    assert client.get(address(many, "rates")).status_code == 200  # an ended year's answer stays the same
    assert not queue
    now.shift(datetime.timedelta(days=2))
    call_command("retention_apply")
    assert not AnalyticsJob.objects.exists()


def test_a_failure_says_so_and_is_tried_anew(
    client: Client, many: World, queue: list[str], now: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(many.viewer)
    client.get(address(many, "rates"))
    with monkeypatch.context() as broken:
        broken.setattr(jobs, "_computed", lambda *arguments: 1 / 0)
        work(queue)
    assert "This could not be computed" in client.get(address(many, "rates")).content.decode()
    now.shift(datetime.timedelta(minutes=2))
    assert "This is being computed" in client.get(address(many, "rates")).content.decode()
    work(queue)
    assert client.get(address(many, "rates")).status_code == 200


def test_the_api_and_files_wait_too(client: Client, many: World, queue: list[str]) -> None:
    client.force_login(many.viewer)
    api = f"/api/v1/contract-years/{many.year.pk}/analytics"
    asked = client.get(api)
    assert (asked.status_code, asked["Retry-After"]) == (202, "5")
    assert [(job["topic"], job["state"]) for job in asked.json()["jobs"]] == [(each, "waiting") for each in TOPICS]
    file = client.get(address(many, "waste") + "terms.csv?spare_nodes=2")
    assert file.status_code == 302
    assert file["Location"] == address(many, "waste") + "?spare_nodes=2"
    work(queue)
    answer = client.get(api)
    assert answer.status_code == 200
    assert answer.json()["tables"]["calendar"][0] == {"day_on": "2026-09-01", "failures": 1}


def test_without_a_broker_the_first_reader_waits(client: Client, many: World) -> None:
    client.force_login(many.viewer)
    assert client.get(address(many, "rates")).status_code == 200
    assert AnalyticsJob.objects.get().state == "done"

"""GET /metrics as Prometheus reads it: who may, what it says, and that alerts and dashboard ask for nothing else."""

import datetime
import ipaddress
import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
import time_machine
import yaml
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import DjangoAssertNumQueries, Settings

from tests.ingest.conftest import NOW, AgentClient
from tests.ingest.reports import report
from tests.ops.test_logs import test_database_url, wait_for
from tests.people import World
from tests.services import ROOT, celery_worker, service_environment, web_server
from yoco.core.models import JobRun
from yoco.core.outbox import outbox_record
from yoco.credits.models import LedgerTransaction
from yoco.guarantee.proof import proof_start
from yoco.notify.due import tick_do
from yoco.notify.models import Endpoint, MailDelivery, WebhookDelivery
from yoco.watch import state

TOKEN = "a-token-for-prometheus"
Sample = tuple[str, tuple[tuple[str, str], ...]]


def values_of(text: str) -> dict[Sample, float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(values: dict[Sample, float], name: str, /, **labels: str) -> float:
    return values.get((f"yoco_{name}", tuple(sorted(labels.items()))), 0.0)


@pytest.fixture
def scrape(client: Client, settings: Settings) -> Any:
    settings.METRICS_TOKEN = TOKEN
    settings.REDIS_URL = ""

    def read() -> dict[Sample, float]:
        answer = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200
        return values_of(answer.content.decode())

    return read


def test_nobody_reads_them_unless_the_operator_says_who(client: Client, db: None, settings: Settings) -> None:
    assert client.get("/metrics").status_code == 404
    settings.METRICS_TOKEN = TOKEN
    settings.SECURE_SSL_REDIRECT = True
    for wrong in ("", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer ñ"):
        refused = client.get("/metrics", headers={"Authorization": wrong})
        assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer")
        assert b"yoco_" not in refused.content
    allowed = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert allowed.status_code == 200, "also over plain HTTP inside the network"
    assert "no-store" in allowed["Cache-Control"]
    assert client.post("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code in (403, 405)


def test_a_network_is_that_of_the_client_and_not_of_the_proxy(client: Client, db: None, settings: Settings) -> None:
    settings.METRICS_ALLOWED_NETWORKS = [ipaddress.ip_network("10.9.0.0/16"), ipaddress.ip_network("127.0.0.1")]
    assert client.get("/metrics").status_code == 200
    assert client.get("/metrics", REMOTE_ADDR="10.10.0.1").status_code == 401
    settings.TRUSTED_PROXIES = 1
    assert client.get("/metrics", headers={"X-Forwarded-For": "10.9.3.4, 203.0.113.7"}).status_code == 401
    assert client.get("/metrics", headers={"X-Forwarded-For": "203.0.113.7, 10.9.3.4"}).status_code == 200


def test_reports_and_requests_are_counted_by_what_became_of_them(scrape: Any, world: World) -> None:
    with time_machine.travel(NOW, tick=False):
        agent = AgentClient(world.key_text)
        before = scrape()
        body = report()
        agent.reports(body, body, {**body, "kind": "planned"}, {"id": "nothing"})
        agent.post("reports", {"id": "nothing"})
        agent.post("heartbeats", {})
        after = scrape()
    for result, number in {"created": 1, "duplicate": 1, "conflict": 1, "invalid": 2}.items():
        name = {"result": result}
        assert value(after, "ingest_reports_total", **name) - value(before, "ingest_reports_total", **name) == number
    assert value(after, "ingest_heartbeats_total", result="invalid") >= 1
    answers = {"method": "POST", "route": "/api/v1/reports"}
    for status in ("200", "422"):
        both = [value(values, "http_requests_total", status=status, **answers) for values in (before, after)]
        assert both[1] - both[0] == 1
    assert value(after, "http_request_seconds_count", route="/api/v1/reports") >= 2


def troubles(world: World, number: int) -> None:
    """One more of everything that somebody should look at."""
    agent = AgentClient(world.key_text)
    for seen in range(number):
        boot = str(uuid.uuid4())
        beat = {"agent_id": f"a{seen}", "boot_id": boot, "seq": 3, "run_id": f"r{seen}", "at": NOW.isoformat()}
        assert agent.post("heartbeats", beat).json()["missing"] == [[1, 3]]
        endpoint = Endpoint.objects.create(
            organisation=world.organisation, name="Ledger", url="http://127.0.0.1:9/", pepper=1
        )
        event = outbox_record(
            kind="incident.unaccounted", subject=world.contract, organisation_id=world.organisation.pk
        )
        lost = {"event": event, "endpoint": endpoint, "body": "{}"}
        WebhookDelivery.objects.create(**lost, state="dead", ended_at=NOW)
        member = world.owner.memberships.get()
        MailDelivery.objects.create(membership=member, event=event, due_at=NOW - datetime.timedelta(seconds=40))


def test_the_state_is_read_in_a_fixed_number_of_queries(
    scrape: Any, world: World, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with time_machine.travel(NOW, tick=False) as clock:
        troubles(world, 1)
        # Read as if nothing had been done since: the sweep is what is late.
        with django_assert_max_num_queries(20) as first:
            one = scrape()
        asked = len(first)
        assert value(one, "deliveries_dead", channel="webhook") == 1
        assert value(one, "deliveries_due", channel="mail") == 1
        assert value(one, "deliveries_lag_seconds", channel="mail") == 40
        assert value(one, "webhook_endpoints", state="active") == 1
        assert value(one, "years_overdue") == 0
        clock.shift(30)
        assert value(scrape(), "outbox_lag_seconds") == 30
        troubles(world, 4)
        with django_assert_max_num_queries(asked):
            five = scrape()
        assert value(five, "deliveries_dead", channel="webhook") == 5
        assert value(five, "outbox_events") == 5

        tick_do(as_of=timezone.now())  # sees the gaps
        assert value(scrape(), "gaps_open") == 4 + 1
        clock.shift(datetime.timedelta(days=2))
        tick_do(as_of=timezone.now())
        later = scrape()
        assert value(later, "gaps_open") == 0
        assert value(later, "silences_open") == 9, "four runs and five gaps"
        assert value(later, "job_ok", name="tick") == 1
        assert value(later, "job_ended_timestamp_seconds", name="tick") == timezone.now().timestamp()
        assert value(later, "up", part="database") == 1

        clock.shift(datetime.timedelta(days=365 + 31))
        assert value(scrape(), "years_overdue") == 2, "of Acme and of the stranger"
        tick_do(as_of=timezone.now())
        assert value(scrape(), "years_overdue") == 0


def test_the_ledger_is_proved_once_a_day_and_a_broken_one_is_told(
    scrape: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with time_machine.travel(NOW, tick=False) as clock:
        assert [proof_start(as_of=timezone.now()) for _ in range(2)] == [1, 0]
        clock.shift(datetime.timedelta(hours=23))
        assert proof_start(as_of=timezone.now()) == 0
        clock.shift(datetime.timedelta(hours=2))
        tick_do(as_of=timezone.now())
        good = scrape()
        assert value(good, "job_ok", name="ledger_verify") == 1
        assert value(good, "job_ended_timestamp_seconds", name="ledger_verify") == timezone.now().timestamp()
        world.year.state, world.year.closed_at = "closed", NOW  # behind the back of the services: no statement
        world.year.save(update_fields=["state", "closed_at"])
        with pytest.raises(CommandError, match="without a statement"):
            call_command("ledger_verify")
        assert value(scrape(), "job_ok", name="ledger_verify") == 0
    assert LedgerTransaction.objects.count() == 0
    assert "without a statement" in JobRun.objects.get(pk="ledger_verify").detail


def test_without_the_database_the_counters_are_served(scrape: Any, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> int:
        raise OperationalError("gone")

    monkeypatch.setattr(state, "silences_open", gone)
    values = scrape()
    assert value(values, "up", part="database") == 0
    assert not [name for name, _ in values if name == "yoco_silences_open"]
    assert [name for name, _ in values if name == "yoco_http_requests_total"]


@pytest.mark.django_db(transaction=True)
def test_several_web_processes_count_together(server_directory: Path) -> None:
    environment = service_environment(test_database_url(), METRICS_TOKEN=TOKEN, TMPDIR=str(server_directory))
    web = web_server(server_directory, environment, workers=3, threads=1)
    web.command += ["--config", "python:yoco.gunicorn_conf"]
    with web:
        url = f"http://127.0.0.1:{web.port}"

        def counting() -> int:
            assert httpx.get(f"{url}/healthz", timeout=30).status_code == 200
            nonlocal asked
            asked += 1
            return len(list(server_directory.glob("yoco-metrics-*/counter_*.db")))

        asked = 0
        wait_for(lambda: counting() == 3)
        for _ in range(5):
            text = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30).text
            answered = {"method": "GET", "route": "/healthz", "status": "200"}
            assert value(values_of(text), "http_requests_total", **answered) == asked
    assert list(server_directory.glob("yoco-metrics-*")) == []


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_the_queue_and_the_tasks_of_real_workers(
    client: Client, settings: Settings, server_directory: Path, redis_url: str
) -> None:
    settings.METRICS_TOKEN, settings.REDIS_URL = TOKEN, redis_url
    environment = service_environment(test_database_url(), redis_url)
    queue = "from yoco.notify import tasks; tasks.tick.delay(); tasks.mail_send.delay('no id')"
    script = f"import django; django.setup(); {queue}"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=True, timeout=60)

    def scrape() -> dict[Sample, float]:
        return values_of(client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).content.decode())

    waiting = scrape()
    assert value(waiting, "queue_tasks") == 2
    assert 0 < value(waiting, "queue_lag_seconds") < 60
    assert value(waiting, "up", part="redis") == 1
    failed = {"task": "yoco.notify.tasks.mail_send", "outcome": "failed"}
    with celery_worker(server_directory, environment):
        wait_for(lambda: value(scrape(), "tasks_total", **failed) == 1)
        wait_for(lambda: value(scrape(), "tasks_total", task="yoco.notify.tasks.tick", outcome="succeeded") == 1)
    done = scrape()
    assert (value(done, "queue_tasks"), value(done, "queue_lag_seconds")) == (0, 0)
    served = {name for name, _ in done}
    assert asked_for() <= served, "alerts and dashboard ask for what is not served"


def asked_for() -> set[str]:
    """Every metric of ours that an alert or a panel of the dashboard names."""
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    dashboard = json.loads((ROOT / "deploy/grafana/yoco.json").read_text())
    asked = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    asked += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(asked) > 30
    return {name for text in asked for name in re.findall(r"\byoco_\w+", text)}


def test_each_alert_says_what_it_means_and_what_to_do() -> None:
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_the_dashboard_shows_every_state_that_is_served(scrape: Any, db: None) -> None:
    served = {name for name, _ in scrape()}
    shown = asked_for()
    never = {
        "yoco_outbox_events",
        "yoco_deliveries_due",
        "yoco_http_request_seconds_sum",
        "yoco_http_request_seconds_count",
    }
    assert {name for name in served if name.startswith("yoco_")} - shown <= never

"""The state of an installation, read when Prometheus asks: a fixed number of queries, each by an index.

A part that cannot be read leaves its metrics out and says so in `yoco_up`, and the others are served all the same.
"""

import datetime
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import redis
from django.conf import settings
from django.db import Error
from django.db.models import Count, F, Min, Q, QuerySet
from django.utils import timezone
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from yoco.contracts.models import ContractYear, YearState
from yoco.contracts.selectors import year_closes_at, year_terms_of
from yoco.core.counters import TASKS_KEY, broker
from yoco.core.models import JobRun, OutboxPending
from yoco.guarantee.models import RestatementDue
from yoco.incidents.models import AgentBoot, Incident
from yoco.incidents.services.silence import SILENCE_OPEN
from yoco.notify.mail import mails_due
from yoco.notify.models import DeliveryState, Endpoint, MailDelivery, WebhookDelivery
from yoco.notify.webhooks import deliveries_due

log = logging.getLogger(__name__)

QUEUE = "celery"  # Celery's default queue: a list in Redis, whose right end is taken first
YEAR_GRACE = datetime.timedelta(minutes=15)  # a tick closes a year within a minute or so


class StateCollector(Collector):
    """The database and the broker as metrics."""

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("yoco_up", "1 if this part could be read just now.", labels=["part"])
        parts = {"database": database_metrics} | ({"redis": queue_metrics} if settings.REDIS_URL else {})
        for part, read in parts.items():
            try:
                yield from read()
            except (Error, redis.RedisError) as failure:
                log.warning("metrics: the %s could not be read (%s)", part, type(failure).__name__)
                up.add_metric([part], 0)
            else:
                up.add_metric([part], 1)
        yield up


def database_metrics() -> list[Metric]:
    """All of them, or the error of the database."""
    now = timezone.now()
    return [
        gauge("silences_open", "Unaccounted incidents that nobody has explained.", silences_open()),
        gauge("gaps_open", "Starts of agents of which reports are missing.", gaps_open()),
        *_outbox(now),
        *_deliveries(now),
        gauge("years_overdue", "Contract years whose time to close has passed.", years_overdue(as_of=now)),
        *_restatements(now),
        *_jobs(),
    ]


def gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"yoco_{name}", help_text, value=value)


def silences_open() -> int:
    return Incident.objects.filter(SILENCE_OPEN).count()


def gaps_open() -> int:
    return AgentBoot.objects.filter(last_seq__gt=F("accounted_seq"), gap_since__isnull=False).count()


def years_overdue(*, as_of: datetime.datetime) -> int:
    """Years that should have been closed by now, their window for late reports included. Two queries."""
    ended = ContractYear.objects.exclude(state=YearState.CLOSED).filter(ends_at__lte=as_of - YEAR_GRACE)
    overdue = 0
    for year in ended.select_related("contract").prefetch_related("contract__terms"):
        terms = year_terms_of(list(year.contract.terms.all()), year=year, contract=year.contract)
        overdue += year_closes_at(year=year, contract=year.contract, terms=terms) <= as_of - YEAR_GRACE
    return overdue


def _age(since: datetime.datetime | None, now: datetime.datetime) -> float:
    return max(0.0, (now - since).total_seconds()) if since else 0.0


def _outbox(now: datetime.datetime) -> list[Metric]:
    waiting = OutboxPending.objects.aggregate(number=Count("pk"), oldest=Min("event__created_at"))
    return [
        gauge("outbox_events", "Events that are not passed on to deliveries yet.", waiting["number"]),
        gauge("outbox_lag_seconds", "Age of the oldest of them.", _age(waiting["oldest"], now)),
    ]


def _deliveries(now: datetime.datetime) -> list[Metric]:
    due = GaugeMetricFamily("yoco_deliveries_due", "Deliveries that may be sent now and are not.", labels=["channel"])
    lag = GaugeMetricFamily("yoco_deliveries_lag_seconds", "How long the first of them is due.", labels=["channel"])
    dead = GaugeMetricFamily("yoco_deliveries_dead", "Deliveries given up: dead letters.", labels=["channel"])
    channels: list[tuple[str, QuerySet[WebhookDelivery] | QuerySet[MailDelivery], QuerySet[Any]]] = [
        ("webhook", deliveries_due(as_of=now), WebhookDelivery.objects.all()),
        ("mail", mails_due(as_of=now), MailDelivery.objects.all()),
    ]
    for channel, waiting, made in channels:
        found = waiting.order_by().aggregate(number=Count("pk"), first=Min("due_at"))
        due.add_metric([channel], found["number"])
        lag.add_metric([channel], _age(found["first"], now))
        dead.add_metric([channel], made.filter(state=DeliveryState.DEAD).count())
    endpoints = GaugeMetricFamily("yoco_webhook_endpoints", "Endpoints by state.", labels=["state"])
    states = Endpoint.objects.aggregate(
        active=Count("pk", Q(disabled_at=None) & (Q(open_until=None) | Q(open_until__lte=now))),
        circuit_open=Count("pk", Q(disabled_at=None, open_until__gt=now)),
        disabled=Count("pk", Q(disabled_at__isnull=False)),
    )
    for state, number in states.items():
        endpoints.add_metric([state], number)
    return [due, lag, dead, endpoints]


def _restatements(now: datetime.datetime) -> list[Metric]:
    due = RestatementDue.objects.aggregate(number=Count("pk"), first=Min("since"))
    return [
        gauge("restatements_due", "Closed years whose facts have changed since.", due["number"]),
        gauge("restatements_lag_seconds", "How long the first of them waits.", _age(due["first"], now)),
    ]


def _jobs() -> list[Metric]:
    ended = GaugeMetricFamily("yoco_job_ended_timestamp_seconds", "When the job last came to its end.", labels=["name"])
    ok = GaugeMetricFamily("yoco_job_ok", "1 if its last run found and left nothing wrong.", labels=["name"])
    for run in JobRun.objects.exclude(ended_at=None):
        assert run.ended_at is not None
        ended.add_metric([run.name], run.ended_at.timestamp())
        ok.add_metric([run.name], run.ok)
    return [ended, ok]


def queue_metrics() -> list[Metric]:
    """What waits for a worker, and what workers have done. One trip to Redis."""
    with broker(settings.REDIS_URL).pipeline(transaction=False) as pipe:
        pipe.llen(QUEUE)
        pipe.lindex(QUEUE, -1)
        pipe.hgetall(TASKS_KEY)
        number, oldest, tasks = pipe.execute()
    counted = CounterMetricFamily("yoco_tasks", "Tasks that workers brought to an end.", labels=["task", "outcome"])
    for name, times in tasks.items():
        counted.add_metric(name.rsplit(":", 1), float(times))
    queued_at = json.loads(oldest)["headers"].get("queued_at") if oldest else None
    lag = max(0.0, time.time() - queued_at) if queued_at else 0.0
    return [
        gauge("queue_tasks", "Tasks that no worker has taken yet.", number),
        gauge("queue_lag_seconds", "How long the oldest of them waits.", lag),
        counted,
    ]

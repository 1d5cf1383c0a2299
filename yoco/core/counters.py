"""What the processes count while they work. State is not counted but read from the database (yoco.watch.state).

Each web process counts for itself, in a file that they share where there are several (yoco.gunicorn_conf). Tasks are
counted in Redis, since workers come and go and answer nobody.
"""

from collections import Counter as Tally
from collections.abc import Iterable
from functools import cache
from typing import Any

import redis
from celery.signals import task_failure, task_success
from django.conf import settings
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]

COUNTED = CollectorRegistry()
REQUESTS = Counter("yoco_http_requests", "Requests answered.", ["method", "route", "status"], registry=COUNTED)
SECONDS = Histogram(
    "yoco_http_request_seconds",
    "Seconds from a request to its answer.",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=COUNTED,
)
REPORTS = Counter(
    "yoco_ingest_reports", "Reports that the API answered, by what became of them.", ["result"], registry=COUNTED
)
HEARTBEATS = Counter("yoco_ingest_heartbeats", "Heartbeats that the API answered.", ["result"], registry=COUNTED)
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
RESULTS = ("created", "duplicate", "conflict", "invalid")
TASKS_KEY = "yoco:tasks"  # in Redis: a hash of "task:outcome" to a number
SECONDS_FOR_REDIS = 0.5


def request_count(*, method: str | None, route: str, status: int, seconds: float) -> None:
    """One answer. What matched no route is one route, so that no stranger makes new series."""
    method = method if method in METHODS else "OTHER"
    REQUESTS.labels(method, route or "none", status).inc()
    SECONDS.labels(route or "none").observe(seconds)


def reports_count(results: Iterable[str]) -> None:
    """Reports of one request, after they are durable."""
    for result, number in Tally(results).items():
        REPORTS.labels(result).inc(number)


def heartbeat_count(*, taken: bool) -> None:
    """One heartbeat."""
    HEARTBEATS.labels("taken" if taken else "invalid").inc()


@cache
def broker(url: str) -> "redis.Redis":
    """The Redis of the queue, for short questions."""
    return redis.Redis.from_url(
        url, socket_timeout=SECONDS_FOR_REDIS, socket_connect_timeout=SECONDS_FOR_REDIS, decode_responses=True
    )


def _task_count(task: Any, outcome: str) -> None:
    if not settings.REDIS_URL:
        return
    try:
        broker(settings.REDIS_URL).hincrby(TASKS_KEY, f"{task.name}:{outcome}", 1)
    except redis.RedisError:
        return  # the task itself is done or failed all the same


@task_success.connect
def _succeeded(sender: Any, **_: Any) -> None:
    _task_count(sender, "succeeded")


@task_failure.connect
def _failed(sender: Any, **_: Any) -> None:
    """Also of a task that ran beyond its time, or whose process was killed."""
    _task_count(sender, "failed")

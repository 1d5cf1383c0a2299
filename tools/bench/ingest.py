"""Taking in reports over HTTP, two web workers on a PostgreSQL in memory; and a kernel log of a million lines."""

from __future__ import annotations

import concurrent.futures
import datetime
import gzip
import http.client
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.bench.database import cluster, database_copy, database_drop, database_name, django_connect, superuser
from tools.bench.registry import Bench, Goal, Reading
from tools.services import HOST, Postgres, Server, free_port, scratch_directory

BATCH_VS_COPY = "service.batch_vs_copy"
SINGLE_VS_HELLO = "service.single_vs_hello"
MILLION = "service.import_million_lines_s"
ROUNDS = 5
WORKERS = 2
BATCHES = 10  # a round of each worker: so many requests of 100 reports
BATCH = 100
SINGLES = 150
COPIED = ("incidents_rawreport", "incidents_rootevent", "incidents_incident", "guarantee_placement")
LINES = 1_000_000


def measure(wanted: Set[str]) -> Iterator[Reading]:
    """Interleaves what is compared, so that both meet the same load."""
    with cluster() as server, scratch_directory() as directory:
        if wanted & {BATCH_VS_COPY, SINGLE_VS_HELLO}:
            yield from _http(server, directory, wanted)
        if MILLION in wanted:
            yield from _million_lines(server, directory)


def _http(server: Postgres, directory: Path, wanted: Set[str]) -> Iterator[Reading]:
    from tools.bench.tenants import Agent, tenants_make

    url = database_copy(server)
    django_connect(url)
    tenants = tenants_make(WORKERS)
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=60)
    agents = [Agent(f"coordinator-{n}", start, datetime.timedelta(minutes=7)) for n in range(WORKERS)]
    sent = [0] * WORKERS

    def reports(worker: int, count: int) -> list[dict[str, Any]]:
        made = agents[worker].reports(first=sent[worker] + 1, count=count)
        sent[worker] += count
        return made

    batches: list[float] = []
    singles: list[float] = []
    rates: dict[str, list[float]] = {"batch": [], "copy": [], "single": [], "hello": []}
    with _web(directory, url) as port:
        for round_ in range(ROUNDS + 1):
            bodies = [[_body(reports(w, BATCH)) for _ in range(BATCHES)] for w in range(WORKERS)]
            batch = BATCH * _rate(port, [(tenants[w].key_text, "/api/v1/reports", bodies[w]) for w in range(WORKERS)])
            copy = _copy_rate(server, database_name(url), BATCH * BATCHES * WORKERS)
            ones = [[_body(reports(w, 1)) for _ in range(SINGLES)] for w in range(WORKERS)]
            single = _rate(port, [(tenants[w].key_text, "/api/v1/reports", ones[w]) for w in range(WORKERS)])
            hello = _rate(port, [("", "/hello", [None] * SINGLES)] * WORKERS)
            if round_:  # the first warms up
                for name, value in (("batch", batch), ("copy", copy), ("single", single), ("hello", hello)):
                    rates[name].append(value)
                batches.append(batch / copy)
                singles.append(single / hello)
    database_drop(server, url)

    def note(name: str, what: str) -> str:
        return f"{sorted(rates[name])[len(rates[name]) // 2]:,.0f} {what} a second"

    if BATCH_VS_COPY in wanted:
        notes = (note("batch", "reports in batches"), note("copy", "reports by COPY, with their rows"))
        yield Reading(BATCH_VS_COPY, batches, notes=notes)
    if SINGLE_VS_HELLO in wanted:
        notes = (note("single", "single reports"), note("hello", "hellos"))
        yield Reading(SINGLE_VS_HELLO, singles, notes=notes)


@contextmanager
def _web(directory: Path, url: str) -> Iterator[int]:
    port = free_port()
    command = [
        sys.executable, "-m", "gunicorn", "tools.bench.hello_wsgi:application", "--bind", f"{HOST}:{port}",
        "--workers", str(WORKERS), "--worker-class", "gthread", "--threads", "2", "--keep-alive", "30",
        "--no-control-socket",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "REDIS_URL": "",
        "INGEST_RATE": "1e9",
        "INGEST_BURST": "1000000000",
    }
    with Server("web", command, directory=directory, port=port, environment=environment):
        yield port


def _body(reports: list[dict[str, Any]]) -> bytes:
    return gzip.compress(json.dumps(reports).encode(), compresslevel=6)


def _rate(port: int, jobs: list[tuple[str, str, list[Any]]]) -> float:
    """Requests a second of clients that run beside each other, each on a connection of its own."""

    def client(job: tuple[str, str, list[Any]]) -> int:
        key, address, bodies = job
        connection = http.client.HTTPConnection(HOST, port, timeout=60)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Content-Encoding": "gzip"}
        for body in bodies:
            if body is None:
                connection.request("GET", address)
            else:
                connection.request("POST", address, body, headers)
            response = connection.getresponse()
            content = response.read()
            assert response.status == 200, content
            assert body is None or (b'"created"' in content and b'"invalid"' not in content), content
        connection.close()
        return len(bodies)

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        done = sum(pool.map(client, jobs))
    return done / (time.perf_counter() - began)


def _copy_rate(server: Postgres, database: str, reports: int) -> float:
    """COPY of the latest rows that the ingest wrote, into tables with the same columns, keys and indexes."""
    with superuser(server, database) as admin:
        texts: list[tuple[str, bytes]] = []
        for table in COPIED:
            order = "incident_id" if table == "guarantee_placement" else "id"
            admin.execute(f"DROP TABLE IF EXISTS bench_{table}")
            admin.execute(f"CREATE TABLE bench_{table} (LIKE {table} INCLUDING ALL)")
            query = f"COPY (SELECT * FROM {table} ORDER BY {order} DESC LIMIT {reports}) TO STDOUT"  # noqa: S608
            with admin.cursor().copy(query) as out:
                texts.append((table, b"".join(bytes(part) for part in out)))
        began = time.perf_counter()
        with admin.transaction(), admin.cursor() as cursor:
            for table, content in texts:
                with cursor.copy(f"COPY bench_{table} FROM STDIN") as into:
                    into.write(content)
        return reports / (time.perf_counter() - began)


def _million_lines(server: Postgres, directory: Path) -> Iterator[Reading]:
    """One line in five is an XID; every 2,000 lines another of 50 nodes repeats it, so there are 500 events."""
    from tools.bench.tenants import tenants_make

    log = directory / "kernel.log"
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    with log.open("w") as file:
        for number in range(LINES):
            at = (start + datetime.timedelta(seconds=number / 5)).isoformat()
            if number % 5:
                file.write(f"{at} gpu-{number % 37} kernel: usb {number}: an ordinary line of a kernel log\n")
            else:
                file.write(
                    f"{at} gpu-{number // 2000 % 50} kernel: NVRM: Xid (PCI:0000:03:00): 95, pid={number}, ECC\n"
                )
    url = database_copy(server)
    django_connect(url)
    tenants_make(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = _timed(lambda: _import(log))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    from yoco.incidents.models import Incident

    found = Incident.objects.count()
    database_drop(server, url)
    yield Reading(
        MILLION,
        [seconds],
        checks=((f"{found} events found, 500 are in it", found == 500), (f"memory grew {grown:.0f} MiB", grown < 100)),
    )


def _timed(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _import(log: Path) -> None:
    from django.core.management import call_command

    with open(os.devnull, "w") as quiet:
        call_command(
            "import_incidents", str(log), contract="BENCH-1", format="dmesg", set=["run_id=r", "gpus=8"], stdout=quiet
        )


BENCH = Bench(
    goals=(
        Goal(
            BATCH_VS_COPY,
            "batches of 100 reports ÷ COPY of the same rows, rows a second",
            "ratio",
            ">= 0.12",
            ">= 0.30",
        ),
        Goal(SINGLE_VS_HELLO, "single reports ÷ Django “hello”, requests a second", "ratio", ">= 0.10", ">= 0.25"),
        Goal(MILLION, "import of a kernel log of 1,000,000 lines", "s", "<= 60"),
    ),
    measure=measure,
)

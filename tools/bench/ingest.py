"""Reports through the HTTP endpoint: batches against COPY of the same rows, single ones against an idle view."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tools.bench.database import cluster, database_copy, database_drop, database_name, django_connect, queries_counted
from tools.bench.http import THREADS, WORKERS, request_bytes, send_all, web_server
from tools.bench.registry import Bench, Goal, Reading
from tools.services import Postgres, scratch_directory

if TYPE_CHECKING:
    from tools.bench.tenants import Agent, Tenant

BATCH = "service.batch_vs_copy"
SINGLE = "service.single_vs_hello"
ROUNDS = 7
SENDERS = 4  # contracts, each with an agent and a connection of its own
BATCH_SIZE = 100
BATCHES_EACH = 5
SINGLES_EACH = 60
HELLOS_EACH = 300
SIZES = (1, 10, 100, 500)

# Every table that gets rows from reports, in the order of their references; %s is the last id of raw reports before.
WRITTEN = {
    "incidents_rawreport": "SELECT t.* FROM incidents_rawreport t WHERE t.id > %s ORDER BY t.id",
    "incidents_rootevent": (
        "SELECT t.* FROM incidents_rootevent t WHERE t.id IN (SELECT i.root_event_id FROM incidents_incident i "
        "JOIN incidents_rawreport r USING (contract_id) WHERE r.id > %s AND r.incident_id = i.public_id)"
    ),
    "incidents_incident": (
        "SELECT t.* FROM incidents_incident t JOIN incidents_rawreport r USING (contract_id) "
        "WHERE r.id > %s AND r.incident_id = t.public_id ORDER BY t.id"
    ),
    "guarantee_placement": (
        "SELECT t.* FROM guarantee_placement t JOIN incidents_incident i ON i.id = t.incident_id "
        "JOIN incidents_rawreport r USING (contract_id) WHERE r.id > %s AND r.incident_id = i.public_id ORDER BY i.id"
    ),
}


@dataclass
class Sender:
    """An agent of one contract that has not told all yet."""

    tenant: Tenant
    agent: Agent
    told: int = 0

    def bodies(self, count: int, size: int) -> list[bytes]:
        """The next requests, each with `size` reports; one report is sent as such, more as a list."""
        made = []
        for _ in range(count):
            reports = self.agent.reports(first=self.told + 1, count=size)
            self.told += size
            made.append(json.dumps(reports if size > 1 else reports[0]).encode())
        return made

    def requests(self, count: int, size: int) -> list[bytes]:
        return [
            request_bytes("POST", "/api/v1/reports", body, self.tenant.key_text) for body in self.bodies(count, size)
        ]


@dataclass
class Rates:
    """Per second and round: reports in batches, the same rows by COPY, single reports, hellos."""

    batch: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)
    single: list[float] = field(default_factory=list)
    hello: list[float] = field(default_factory=list)


def measure(wanted: Set[str]) -> Iterator[Reading]:
    """In every round: batches, COPY of what they wrote into an equal database, single reports, hellos."""
    with cluster() as server, scratch_directory() as directory:
        url = database_copy(server)
        django_connect(url)
        senders = _senders()
        counts = _queries_by_size(senders[0]) if BATCH in wanted else {}
        empty = database_name(database_copy(server, source=database_name(url)))
        rates = Rates()
        with web_server(directory, url) as web, psycopg.connect(url, autocommit=True) as source:
            assert web.port is not None
            send_all(web.port, [sender.requests(10, 1) for sender in senders])  # the workers load their code
            for _ in range(ROUNDS):
                if BATCH in wanted:
                    _batch_round(web.port, senders, source, server, empty, rates)
                if SINGLE in wanted:
                    _single_round(web.port, senders, rates)
    if BATCH in wanted:
        yield Reading(
            BATCH,
            [batch / copy for batch, copy in zip(rates.batch, rates.copy, strict=True)],
            checks=(
                (
                    "queries a request, by batch size: " + ", ".join(f"{size}: {n}" for size, n in counts.items()),
                    # One report may have no neighbour to look up; beyond that the size makes no difference.
                    len({n for size, n in counts.items() if size > 1}) == 1 and counts[1] <= counts[SIZES[-1]],
                ),
            ),
            notes=(
                f"batches of {BATCH_SIZE}, {SENDERS} senders, gunicorn with {WORKERS} workers of {THREADS} threads",
                f"reports/s in batches: {_listed(rates.batch)}",
                f"reports/s by COPY into {', '.join(WRITTEN)}: {_listed(rates.copy)}",
            ),
        )
    if SINGLE in wanted:
        yield Reading(
            SINGLE,
            [single / hello for single, hello in zip(rates.single, rates.hello, strict=True)],
            notes=(f"single reports/s: {_listed(rates.single)}", f"hellos/s: {_listed(rates.hello)}"),
        )


def _listed(rates: list[float]) -> str:
    return " ".join(f"{rate:.0f}" for rate in rates)


def _senders() -> list[Sender]:
    """Agents whose runs are known already, with incidents of the last weeks."""
    from django.utils import timezone

    from tools.bench.tenants import Agent, tenants_make
    from yoco.guarantee.services import reports_accept

    now = timezone.now()
    senders = [
        Sender(
            tenant, Agent(f"coordinator-{number}", now - datetime.timedelta(days=80), datetime.timedelta(minutes=10))
        )
        for number, tenant in enumerate(tenants_make(SENDERS))
    ]
    for sender in senders:
        reports = [json.loads(body) for body in sender.bodies(10, 1)]
        reports_accept(contract=sender.tenant.contract, key=sender.tenant.key, reports=reports, received_at=now)
    return senders


def _queries_by_size(sender: Sender) -> dict[int, int]:
    from django.test import Client

    client = Client(SERVER_NAME="127.0.0.1", headers={"Authorization": f"Bearer {sender.tenant.key_text}"})
    counts = {}
    for size in (SIZES[0], *SIZES):  # the first request notes when the key was last used
        with queries_counted() as queries:
            answer = client.post("/api/v1/reports", sender.bodies(1, size)[0], content_type="application/json")
        assert answer.status_code == 200, answer.content
        counts[size] = queries.count
    return counts


def _batch_round(
    port: int, senders: list[Sender], source: psycopg.Connection, server: Postgres, empty: str, rates: Rates
) -> None:
    requests = [sender.requests(BATCHES_EACH, BATCH_SIZE) for sender in senders]
    last = source.execute("SELECT coalesce(max(id), 0) FROM incidents_rawreport").fetchone()
    assert last is not None
    seconds = send_all(port, requests)
    reports = SENDERS * BATCHES_EACH * BATCH_SIZE
    rows = {table: _copy_out(source, query, last[0]) for table, query in WRITTEN.items()}
    for table, text in rows.items():
        found = text.count(b"\n")
        # Two incidents on one node within a minute are one root event.
        assert found == reports or (table == "incidents_rootevent" and 0.9 * reports < found < reports), (table, found)
    with _target(server, empty) as target:
        began = perf_counter()
        with target.transaction():
            for table, text in rows.items():
                with target.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))) as copy:
                    copy.write(text)
        rates.copy.append(reports / (perf_counter() - began))
    rates.batch.append(reports / seconds)


def _copy_out(source: psycopg.Connection, query: str, last: int) -> bytes:
    with source.cursor().copy(f"COPY ({query.replace('%s', str(last))}) TO STDOUT") as copy:
        return b"".join(bytes(block) for block in copy)


@contextmanager
def _target(server: Postgres, empty: str) -> Iterator[psycopg.Connection]:
    """A database as it was before the first batch, with all its indexes, constraints and triggers."""
    url = database_copy(server, source=empty)
    try:
        with psycopg.connect(url, autocommit=True) as target:
            yield target
    finally:
        database_drop(server, url)


def _single_round(port: int, senders: list[Sender], rates: Rates) -> None:
    hellos = [request_bytes("GET", "/bench/hello")] * HELLOS_EACH
    rates.hello.append(SENDERS * HELLOS_EACH / send_all(port, [hellos] * SENDERS))
    singles = [sender.requests(SINGLES_EACH, 1) for sender in senders]
    rates.single.append(SENDERS * SINGLES_EACH / send_all(port, singles))


BENCH = Bench(
    (
        Goal(BATCH, "reports/s in batches of 100 over COPY of the rows that they write", "ratio", ">= 0.12", ">= 0.30"),
        Goal(SINGLE, "single reports/s over requests/s of a view that does nothing", "ratio", ">= 0.10", ">= 0.25"),
    ),
    measure,
)

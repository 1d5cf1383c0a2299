"""What a report and a heartbeat cost on disk, in the write-ahead log and in processor time: the figures of
docs/operations.md.

    python -m tools.capacity [--reports 100000] [--heartbeats 20000] [--rows 1000000]

Starts a PostgreSQL of its own with fsync on, its data in memory where there is room. Reports come from invented agents,
in batches of 500 as a flushed spool sends them; heartbeats one by one, each a step further. Then raw reports are copied
up to `--rows`, to see whether single reports become slower.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.bench.database import django_connect, django_disconnect
from tools.bench.http import request_bytes, send_all, web_server
from tools.services import Postgres, Server, scratch_directory

if TYPE_CHECKING:
    from tools.bench.tenants import Agent, Tenant

TENANTS = 10
BATCH = 500
RUNS = 4  # of each agent in tools.bench.tenants
SIZES = """
SELECT relname, pg_total_relation_size(oid), pg_relation_size(oid) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
"""
MORE_ROWS = """
INSERT INTO incidents_rawreport (contract_id, key_id, source, report_id, content_sha256, conflict, agent_id, boot_id,
    seq, type, incident_id, sent_at, received_at, body)
SELECT contract_id, key_id, source, gen_random_uuid(), content_sha256, conflict, agent_id, boot_id,
    seq + copy * 1000000, type, gen_random_uuid(), sent_at, received_at, body
FROM incidents_rawreport, generate_series(1, %s) AS copy
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.capacity", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reports", type=int, default=100_000)
    parser.add_argument("--heartbeats", type=int, default=20_000)
    parser.add_argument("--rows", type=int, default=1_000_000, help="raw reports to end with")
    options = parser.parse_args()
    with scratch_directory() as directory, Postgres(directory, durable=True) as server:
        django_connect(server.url)
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        tenants = _tenants()
        print(f"load average {os.getloadavg()[0]:.1f}; {os.cpu_count()} processors")
        with _cost("report", options.reports):
            _reports(tenants, options.reports // TENANTS)
        with _cost("heartbeat", options.heartbeats):
            _heartbeats(tenants, options.heartbeats // TENANTS)
        with web_server(directory, server.url) as web:
            _over_http(web, server, tenants)
        small = _single_ms(tenants)
        _execute(MORE_ROWS, [max(options.rows // options.reports - 1, 1)])
        _execute("VACUUM ANALYZE")
        rows = _execute("SELECT count(*) FROM incidents_rawreport")[0][0]
        print(f"a single report, median of 300: {small:.1f} ms among {options.reports:,}, {_single_ms(tenants):.1f} ms "
              f"among {rows:,} raw reports")  # fmt: skip
        began = time.perf_counter()
        _execute("SELECT count(*), sum(length(body)) FROM incidents_rawreport")
        print(f"reading all of them once: {time.perf_counter() - began:.1f} s")
        django_disconnect()
    return 0


def _tenants() -> list[tuple[Tenant, Agent]]:
    from tools.bench.tenants import Agent, tenants_make

    now = datetime.datetime.now(datetime.UTC)
    gap = datetime.timedelta(seconds=30)
    start = now - datetime.timedelta(days=20)
    return [(tenant, Agent(f"agent-{n}", start, gap)) for n, tenant in enumerate(tenants_make(TENANTS))]


def _told(agent: Agent, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Two reports of each incident, as agents send them: what was detected, then how it ended."""
    from yoco.core.ids import uuid7

    for end in agent.reports(first=first, count=(count + 1) // 2):
        began = end["phases"]["started_at"]
        yield end | {
            "id": str(uuid7()),
            "seq": 2 * end["seq"] - 1,
            "type": "incident.detected",
            "sent_at": end["phases"]["detected_at"],
            "phases": {"started_at": began, "detected_at": end["phases"]["detected_at"]},
            "progress": {"last_committed_step": end["progress"]["last_committed_step"]},
            "state": None,
            "spare": None,
            "resolution": None,
        }
        yield end | {"seq": 2 * end["seq"]}


def _reports(tenants: list[tuple[Tenant, Agent]], each: int) -> None:
    from yoco.guarantee.services import reports_accept

    for tenant, agent in tenants:
        for first in range(0, each, BATCH):
            batch = list(_told(agent, first // 2 + 1, min(BATCH, each - first)))
            now = datetime.datetime.now(datetime.UTC)
            outcome = reports_accept(contract=tenant.contract, key=tenant.key, reports=batch, received_at=now)
            assert {result.status for result in outcome.results} == {"created"}, outcome.results[0]


def _beat(agent: Agent, number: int) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    run = number % RUNS
    return {
        "agent_id": f"{agent.name}-{run}",
        "boot_id": f"00000000-0000-7000-8000-{run:012d}",
        "seq": 0,
        "run_id": f"{agent.name}-pretraining-{run}",
        "step": number // RUNS,
        "at": now,
    }


def _heartbeats(tenants: list[tuple[Tenant, Agent]], each: int) -> None:
    from yoco.incidents.services import heartbeat_record

    for number in range(each):
        for tenant, agent in tenants:
            now = datetime.datetime.now(datetime.UTC)
            heartbeat_record(contract=tenant.contract, heartbeat=_beat(agent, number), received_at=now)


def _over_http(web: Server, server: Postgres, tenants: list[tuple[Tenant, Agent]]) -> None:
    """Four agents at once, each of another contract, over connections that stay open."""
    four = tenants[:4]

    def rate(name: str, path: str, bodies: Callable[[Agent, int], list[Any]], first: int, things: int) -> None:
        requests = [
            [request_bytes("POST", path, json.dumps(body).encode(), tenant.key_text) for body in bodies(agent, first)]
            for tenant, agent in four
        ]
        assert web.port is not None
        before = [_processor_seconds(each) for each in (web, server)]
        seconds, count = send_all(web.port, requests), len(four) * things
        ours, its = (1000 * (_processor_seconds(each) - was) for each, was in zip((web, server), before, strict=True))
        print(f"over HTTP: {count / seconds:,.0f} {name}/s; processor time each: {ours / count:.1f} ms of the web "
              f"processes, {its / count:.1f} ms of PostgreSQL")  # fmt: skip

    def batches(agent: Agent, first: int) -> list[Any]:
        told = list(_told(agent, first, 2000))
        return [told[at : at + 100] for at in range(0, len(told), 100)]

    rate("heartbeats", "/api/v1/heartbeats", lambda agent, _: [_beat(agent, 10**9 + n) for n in range(300)], 0, 300)
    rate("single reports", "/api/v1/reports", lambda agent, first: list(_told(agent, first, 200)), 20_000, 200)
    rate("reports in batches of 100", "/api/v1/reports", batches, 30_000, 2000)


def _processor_seconds(server: Server) -> float:
    """What a server and its children have used so far; those that ended are counted too."""
    assert server.process is not None
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    stats = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in (pid, *children)]
    own = sum(int(stat[11]) + int(stat[12]) for stat in stats)
    return (own + int(stats[0][13]) + int(stats[0][14])) / os.sysconf("SC_CLK_TCK")


def _single_ms(tenants: list[tuple[Tenant, Agent]]) -> float:
    """Milliseconds for one report on top of what is there, without HTTP."""
    from yoco.core.ids import uuid7
    from yoco.guarantee.services import reports_accept

    times = []
    for number in range(300):
        tenant, agent = tenants[number % TENANTS]
        body = next(_told(agent, 40_000 + number, 1)) | {"id": str(uuid7()), "incident_id": str(uuid7())}
        began = time.perf_counter()
        reports_accept(
            contract=tenant.contract, key=tenant.key, reports=[body], received_at=datetime.datetime.now(datetime.UTC)
        )
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


@contextmanager
def _cost(what: str, count: int) -> Iterator[None]:
    """Prints what the block added to each table and to the write-ahead log, for each of `count`."""
    _execute("VACUUM ANALYZE")
    before = {name: (total, heap) for name, total, heap in _execute(SIZES)}
    began, lsn = time.perf_counter(), _execute("SELECT pg_current_wal_lsn()")[0][0]
    yield
    seconds = time.perf_counter() - began
    (wal,) = _execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), %s)", [lsn])[0]
    print(f"{count:,} {what}s in {seconds:.0f} s, {count / seconds:,.0f} a second, one connection")
    print(f"  write-ahead log: {float(wal) / count:,.0f} bytes each")
    grown = []
    for name, total, heap in _execute(SIZES):
        more, rows = total - before[name][0], heap - before[name][1]
        if more:
            grown.append(
                (more, f"  {name}: {more / count:,.1f} bytes each, {(more - rows) / count:,.1f} of them indexes")
            )
    print("\n".join(line for _, line in sorted(grown, reverse=True)[:8]))
    print(f"  all tables: {sum(more for more, _ in grown) / count:,.0f} bytes each")


def _execute(statement: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall()) if cursor.description else []


if __name__ == "__main__":
    sys.exit(main())

"""The report of one contract year, and of all, over a million incidents of 200 contracts."""

from __future__ import annotations

import datetime
import random
import statistics
import time
from collections.abc import Iterator, Set
from typing import Any

from tools.bench.copies import UNIQUE_TEXT, rows_copy
from tools.bench.database import cluster, database_copy, database_name, django_connect, queries_counted, superuser
from tools.bench.registry import Bench, Goal, Reading
from tools.services import Postgres

YEAR = "service.year_report_ms"
ALL_YEARS = "service.all_years_vs_pass"
CONTRACTS = 200
INCIDENTS_EACH = 5_000
ROUNDS = 7
REPORTS_A_ROUND = 40
MAX_QUERIES = 12
SAMPLE = 200  # incidents whose placing is computed again by the rules

COPIED_ID = "10000 + t.place * 200 + n"  # in the order of time over all contracts, as incidents would have arrived
UNIT_KEY = " || ':' || ".join(f"md5(n || '/' || split_part(t.unit_key, ':', {part}))::uuid" for part in (1, 2))
# Table, order of copying, and what else a copy has of its own.
COPIED: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("accounts_organisation", "id", {"slug": UNIQUE_TEXT.format("slug")}),
    ("contracts_contract", "id", {"number": UNIQUE_TEXT.format("number")}),
    ("contracts_guaranteeterms", "id", {}),
    ("contracts_contractyear", "id", {}),
    ("incidents_run", "id", {}),
    ("incidents_rootevent", "first_at, id", {}),
    ("incidents_incident", "started_at, id", {"id": COPIED_ID}),
    ("guarantee_placement", "started_at, incident_id", {"incident_id": COPIED_ID, "unit_key": UNIT_KEY}),
)
AGGREGATE = """
    SELECT year_id, lead, outcome, kind, without_loss, count(*), sum(waste_actual_ms), sum(waste_counterfactual_ms),
           sum(waste_potential_ms), count(*) FILTER (WHERE waste_estimated), count(*) FILTER (WHERE synthetic)
    FROM guarantee_placement GROUP BY year_id, lead, outcome, kind, without_loss
"""


def measure(wanted: Set[str]) -> Iterator[Reading]:
    """Interleaves the bare pass and the reports of all years, so that both meet the same load."""
    with cluster() as server:
        url = database_copy(server)
        django_connect(url)
        million_load(server, database_name(url))
        yield from _rounds(wanted)


def million_load(server: Postgres, database: str) -> None:
    """Takes in 5,000 reports of one contract by the real code, and copies what it wrote for 199 other contracts.

    A sample of the copies is then placed again by the rules; a difference fails the benchmark.
    """
    from tools.bench.tenants import Agent, tenants_make
    from yoco.contracts.models import ContractYear
    from yoco.guarantee.services import reports_accept

    began = time.perf_counter()
    tenant = tenants_make(1)[0]
    year = ContractYear.objects.get()
    agent = Agent("coordinator-1", year.starts_at, (year.ends_at - year.starts_at) / (INCIDENTS_EACH + 1))
    for start in range(1, INCIDENTS_EACH + 1, 250):
        reports_accept(
            contract=tenant.contract,
            key=tenant.key,
            reports=agent.reports(first=start, count=250),
            received_at=year.ends_at - datetime.timedelta(seconds=1),
        )
    ingested = time.perf_counter()
    with superuser(server, database) as admin:
        admin.execute("SET session_replication_role = replica")  # the copies hold what the triggers would check
        for table, order, values in COPIED:
            rows_copy(admin, table, copies=CONTRACTS - 1, order=order, values=values)
        admin.execute("VACUUM ANALYZE")
    copied = time.perf_counter()
    print(f"   {INCIDENTS_EACH} reports taken in in {ingested - began:.0f} s, copied in {copied - ingested:.0f} s")
    _sample_check()


def _sample_check() -> None:
    """Places a sample anew by the rules and compares every field, then undoes it."""
    from django.db import transaction

    from yoco.guarantee.models import Placement
    from yoco.guarantee.placements import placements_refresh
    from yoco.incidents.models import Incident

    ids = list(Incident.objects.order_by("pk").values_list("pk", flat=True))
    assert len(ids) == Placement.objects.count() == CONTRACTS * INCIDENTS_EACH, "the load is not complete"
    # One by one: placing loads the time between the first and the last incident that it is given.
    for pk in random.Random(4).sample(ids, SAMPLE):  # noqa: S311 (a sample, not a secret)
        rows = Placement.objects.filter(pk=pk)
        with transaction.atomic():
            loaded: dict[str, Any] = dict(rows.values()[0])
            placements_refresh(incident_ids=[pk])
            placed: dict[str, Any] = dict(rows.values()[0])
            transaction.set_rollback(True)
        different = {name for name in loaded if loaded[name] != placed[name]} - {"placed_at"}
        assert not different, f"loaded {loaded}, but the rules place {placed}"


def _rounds(wanted: Set[str]) -> Iterator[Reading]:
    from django.db import connection

    from yoco.contracts.models import ContractYear
    from yoco.guarantee.selectors import year_report, years_report

    years = list(ContractYear.objects.order_by("pk"))
    milliseconds, counts, ratios, notes = [], set(), [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with connection.cursor() as cursor:
            cursor.execute(AGGREGATE)
            groups = len(cursor.fetchall())
        bare = time.perf_counter() - began
        began = time.perf_counter()
        with queries_counted() as queries:
            reports = years_report(years=years)
        together = time.perf_counter() - began
        assert sum(report.counted for report in reports) > 0, "no incident was counted"
        ratios.append(queries.seconds / bare)
        notes.append(
            f"pass {bare * 1000:.0f} ms ({groups} groups); {len(reports)} reports at once: {queries.count} queries, "
            f"database {queries.seconds * 1000:.0f} ms, in all {together * 1000:.0f} ms"
        )
        each = []
        for year in random.sample(years, REPORTS_A_ROUND):
            with queries_counted() as queries:
                year_report(year=year)
            each.append(queries.seconds * 1000)
            counts.add(queries.count)
        milliseconds.append(statistics.median(each))
    if YEAR in wanted:
        most = max(counts)
        yield Reading(
            YEAR,
            milliseconds,
            checks=((f"{most} queries a report (<= {MAX_QUERIES})", most <= MAX_QUERIES),),
            notes=(f"database time of one report, median of {REPORTS_A_ROUND} in each run",),
        )
    if ALL_YEARS in wanted:
        yield Reading(ALL_YEARS, ratios, notes=tuple(notes))


BENCH = Bench(
    (
        Goal(YEAR, "database time of one contract year's report, 1,000,000 incidents of 200 contracts", "ms", "<= 20"),
        Goal(
            ALL_YEARS,
            "database time of all 200 years' reports over one bare SQL aggregate of the same rows",
            "ratio",
            "<= 2.5",
        ),
    ),
    measure,
)

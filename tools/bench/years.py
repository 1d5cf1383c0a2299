"""The report of one contract year, and of all, over a million incidents of 200 contracts."""

from __future__ import annotations

import datetime
import random
import statistics
import time
from collections.abc import Iterator, Set
from typing import Any

from psycopg import sql

from tools.bench.database import cluster, database_copy, database_name, django_connect, queries_counted, superuser
from tools.bench.registry import Bench, Goal, Reading
from tools.services import Postgres

YEAR = "service.year_report_ms"
ALL_YEARS = "service.all_years_vs_pass"
CONTRACTS = 200
INCIDENTS_EACH = 5_000
ROUNDS = 7
MAX_QUERIES = 12
SAMPLE = 400  # incidents whose placing is computed again by the rules

# What a new row has in place of the copied row's value; every other column is copied.
# t is the copied row, c the contract that it is copied for.
OTHER = "md5(c.n || '/' || {})::uuid"
NEW_ID = "10000 + t.rank * 200 + c.n"  # in the order of time over all contracts, as they would have arrived
NEW_VALUES = {
    "incidents_run": {"id": OTHER.format("t.id"), "contract_id": "c.contract_id"},
    "incidents_rootevent": {"id": OTHER.format("t.id"), "contract_id": "c.contract_id"},
    "incidents_incident": {
        "id": NEW_ID,
        "public_id": OTHER.format("t.public_id"),
        "contract_id": "c.contract_id",
        "run_id": OTHER.format("t.run_id"),
        "root_event_id": OTHER.format("t.root_event_id"),
    },
    "guarantee_placement": {
        "incident_id": NEW_ID,
        "year_id": "c.year_id",
        "terms_id": "c.terms_id",
        "run_id": OTHER.format("t.run_id"),
        "root_event_id": OTHER.format("t.root_event_id"),
        "root_event_key": OTHER.format("t.root_event_key"),
        "unit_key": " || ':' || ".join(OTHER.format(f"split_part(t.unit_key, ':', {part})") for part in (1, 2)),
    },
}
PASS = """
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
    from yoco.contracts.models import ContractYear, GuaranteeTerms
    from yoco.guarantee.services import reports_accept

    began = time.perf_counter()
    tenants = tenants_make(CONTRACTS)
    first = tenants[0].contract
    year = ContractYear.objects.get(contract=first)
    agent = Agent("coordinator-1", year.starts_at, (year.ends_at - year.starts_at) / (INCIDENTS_EACH + 1))
    for start in range(1, INCIDENTS_EACH + 1, 250):
        reports_accept(
            contract=first,
            key=tenants[0].key,
            reports=agent.reports(first=start, count=250),
            received_at=year.ends_at - datetime.timedelta(seconds=1),
        )
    ingested = time.perf_counter()
    years = dict(ContractYear.objects.values_list("contract_id", "pk"))
    terms = dict(GuaranteeTerms.objects.values_list("contract_id", "pk"))
    with superuser(server, database) as admin:
        admin.execute("CREATE TEMP TABLE c (n int, contract_id uuid, year_id uuid, terms_id uuid)")
        with admin.cursor().copy("COPY c FROM STDIN") as copy:
            for number, tenant in enumerate(tenants[1:], start=1):
                pk = tenant.contract.pk
                copy.write_row((number, pk, years[pk], terms[pk]))
        admin.execute("SET session_replication_role = replica")  # the copies hold what the triggers would check
        for table in NEW_VALUES:
            _copy_rows(admin, table)
        admin.execute("VACUUM ANALYZE")
    print(
        f"   {INCIDENTS_EACH} reports taken in in {ingested - began:.0f} s, copied in {time.perf_counter() - ingested:.0f} s"
    )
    _sample_check()


def _copy_rows(admin: Any, table: str) -> None:
    columns = [
        row[0]
        for row in admin.execute(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = 'public' AND table_name = %s ORDER BY ordinal_position",
            [table],
        )
    ]
    values = [sql.SQL(NEW_VALUES[table].get(name, f"t.{name}")) for name in columns]
    # The incident's place in time orders every table that has one row an incident.
    keyed = {"incidents_incident": "r.started_at, r.id", "guarantee_placement": "r.started_at, r.incident_id"}
    statement = sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {values} "
        "FROM (SELECT r.*, row_number() OVER (ORDER BY {order}) AS rank FROM {table} r) t CROSS JOIN c "
        "ORDER BY t.rank, c.n"
    ).format(
        table=sql.Identifier(table),
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        values=sql.SQL(", ").join(values),
        order=sql.SQL(keyed.get(table, "r.id")),
    )
    admin.execute(statement)


def _sample_check() -> None:
    """Places a sample anew by the rules and compares every field, then undoes it."""
    from django.db import transaction

    from yoco.guarantee.models import Placement
    from yoco.guarantee.placements import placements_refresh
    from yoco.incidents.models import Incident

    ids = list(Incident.objects.order_by("pk").values_list("pk", flat=True))
    assert len(ids) == Placement.objects.count() == CONTRACTS * INCIDENTS_EACH, "the load is not complete"
    sample = random.Random(4).sample(ids, SAMPLE)  # noqa: S311 (a sample, not a secret)
    rows = Placement.objects.filter(pk__in=sample).order_by("pk").values()
    with transaction.atomic():
        before = [{**row, "placed_at": None} for row in rows]
        placements_refresh(incident_ids=sample)
        after = [{**row, "placed_at": None} for row in rows.all()]
        transaction.set_rollback(True)
    for loaded, placed in zip(before, after, strict=True):
        assert loaded == placed, f"loaded {loaded}, but the rules place {placed}"


def _rounds(wanted: Set[str]) -> Iterator[Reading]:
    from django.db import connection

    from yoco.contracts.models import ContractYear
    from yoco.guarantee.selectors import year_report

    years = list(ContractYear.objects.order_by("pk"))
    milliseconds, counts, ratios, notes = [], set(), [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with connection.cursor() as cursor:
            cursor.execute(PASS)
            groups = len(cursor.fetchall())
        bare = time.perf_counter() - began
        each = []
        began = time.perf_counter()
        for year in years:
            with queries_counted() as queries:
                year_report(year=year)
            each.append(queries.seconds * 1000)
            counts.add(queries.count)
        wall = time.perf_counter() - began
        milliseconds.append(statistics.median(each))
        ratios.append(sum(each) / 1000 / bare)
        notes.append(
            f"pass {bare * 1000:.0f} ms ({groups} groups), all years {sum(each):.0f} ms of database, {wall:.2f} s in all"
        )
    if YEAR in wanted:
        most = max(counts)
        yield Reading(
            YEAR,
            milliseconds,
            checks=((f"{most} queries a report (<= {MAX_QUERIES})", most <= MAX_QUERIES),),
            notes=(f"database time of one report, median of {len(years)} in each run",),
        )
    if ALL_YEARS in wanted:
        yield Reading(ALL_YEARS, ratios, notes=tuple(notes))


BENCH = Bench(
    (
        Goal(YEAR, "database time of one contract year's report, 1,000,000 incidents of 200 contracts", "ms", "<= 20"),
        Goal(ALL_YEARS, "all 200 years' reports over one bare SQL aggregate of the same rows", "ratio", "<= 2.5"),
    ),
    measure,
)

"""The pages of the analytics over a million incidents of 200 contracts, against the bare SQL of what they show."""

# ruff: noqa: S608 (statements are put together from the constants of this file)

from __future__ import annotations

import random
import statistics
import time
import uuid
from collections.abc import Iterator, Set
from typing import Any

from tools.bench.database import cluster, database_copy, database_name, django_connect, queries_counted
from tools.bench.registry import Bench, Goal, Reading
from tools.bench.years import million_load

PAGE = "service.page_vs_sql"
ROUNDS = 5
CONTRACTS_A_ROUND = 12
MAX_QUERIES = 12

TERMS = ("detection", "queue", "restart", "recompute", "migration", "step_redo", "fail_slow", "preempted")
FAILURES = (
    "guarantee_placement p JOIN incidents_incident i ON i.id = p.incident_id WHERE p.year_id = %(year)s AND p.lead "
    "AND p.kind = 'unplanned' AND p.outcome <> 'excluded' "
    "AND p.rule NOT IN ('path_failover', 'path_healed', 'explained')"
)
# The pages join incidents only where they show their columns.
PLACED_FAILURES = FAILURES.replace("JOIN incidents_incident i ON i.id = p.incident_id ", "")
PLACED = "guarantee_placement p JOIN incidents_incident i ON i.id = p.incident_id WHERE p.year_id = %(year)s"
TOTALS = "count(*), sum(waste_actual_ms), sum(waste_counterfactual_ms), sum(waste_potential_ms)"
DAYS = (
    "SELECT run_id, (started_at AT TIME ZONE 'Europe/Madrid')::date, count(*), min(started_at) "
    f"FROM {PLACED_FAILURES} GROUP BY 1, 2",
)
TALLY = "SELECT outcome, count(*) FROM guarantee_placement WHERE year_id = %(year)s AND lead GROUP BY 1"
BY_TERM = (
    "SELECT run_id, waste_estimated, {}, {} FROM guarantee_placement WHERE year_id = %(year)s GROUP BY 1, 2".format(
        TOTALS,
        ", ".join(
            f"sum((waste_terms->'{side}'->>'{term}')::bigint)"
            for side in ("actual", "counterfactual")
            for term in TERMS
        ),
    )
)
BY_YEAR = f"""
    SELECT y.number, waste_estimated, {TOTALS}
    FROM guarantee_placement p JOIN contracts_contractyear y ON y.id = p.year_id
    WHERE y.contract_id = %(contract)s GROUP BY 1, 2
"""
WORST = f"SELECT * FROM {PLACED} AND waste_actual_ms > 0 ORDER BY waste_actual_ms DESC, p.incident_id LIMIT 20"
CHECKPOINTS = (
    f"SELECT avg(p.started_at - i.last_checkpoint_at), count(*) FROM {PLACED} AND i.last_checkpoint_at <= p.started_at",
    "SELECT count(*), sum((waste_terms->'actual'->>'restart')::bigint), "
    f"sum((waste_terms->'actual'->>'queue')::bigint), sum(i.gpus) FROM {PLACED} AND NOT waste_estimated "
    "AND (waste_terms->'actual'->'restart') > '0'::jsonb",
)
INSTANTS = (
    "started_at",
    "detected_at",
    "quiesced_at",
    "spare_ready_at",
    "state_moved_at",
    "state_verified_at",
    "resumed_at",
)


def _spread(took: str) -> str:
    return (
        f"count({took}), percentile_cont(0.5) WITHIN GROUP (ORDER BY {took}), "
        f"percentile_cont(0.95) WITHIN GROUP (ORDER BY {took}), max({took})"
    )


def _phase(end: int) -> str:
    before = f"greatest({', '.join(f'i.{name}' for name in INSTANTS[:end])})"
    at = f"i.{INSTANTS[end]}"
    took = f"(CASE WHEN {at} >= {before} THEN {at} - {before} END)"
    return f"{_spread(took)}, count(*) FILTER (WHERE {at} < {before})"


RECOVERY = " UNION ALL ".join(
    f"SELECT {field}, {_spread('(i.resumed_at - i.started_at)')} FROM {PLACED} AND i.resumed_at IS NOT NULL GROUP BY 1"
    for field in ("p.kind", "i.resolution", "i.strategy")
)
HURTS = (
    f"SELECT i.signal, i.xid, count(*), sum(waste_actual_ms) FROM {FAILURES} GROUP BY 1, 2",
    RECOVERY,
    f"SELECT {', '.join(_phase(end) for end in range(1, len(INSTANTS)))} FROM {PLACED}",
    f"SELECT i.node, count(*) FROM {FAILURES} AND i.node <> '' GROUP BY 1 HAVING count(*) >= 3",
    f"SELECT i.gpu_uuid, count(*) FROM {FAILURES} AND i.gpu_uuid <> '' GROUP BY 1 HAVING count(*) >= 3",
    f"SELECT (started_at AT TIME ZONE 'Europe/Madrid')::date, count(*) FROM {PLACED_FAILURES} GROUP BY 1",
)
# What each page shows, as one would ask for it by hand.
BARE: dict[str, tuple[str, ...]] = {
    "": (*DAYS, TALLY, BY_TERM),
    "rates": (*DAYS, TALLY),
    "waste": (BY_TERM, BY_YEAR, WORST),
    "goodput": (*DAYS, BY_TERM, *CHECKPOINTS),
    "recovery": HURTS,
}


def measure(_wanted: Set[str]) -> Iterator[Reading]:
    """Asks the bare SQL and the page in turn, contract by contract, so that both meet the same load."""
    with cluster() as server:
        url = database_copy(server)
        django_connect(url)
        million_load(server, database_name(url))
        yield from _rounds()


def _rounds() -> Iterator[Reading]:
    import time_machine
    from django.db import connection
    from django.test import Client

    from yoco.accounts.models import User
    from yoco.contracts.models import ContractYear
    from yoco.incidents.models import AgentBoot, Run

    years = list(ContractYear.objects.order_by("pk"))
    AgentBoot.objects.bulk_create(
        AgentBoot(
            contract_id=run.contract_id,
            agent_id="watcher",
            boot_id=uuid.uuid4(),
            run_id=run.run_id,
            first_seen_at=years[0].starts_at,
            last_seen_at=years[0].ends_at,
        )
        for run in Run.objects.all()
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE incidents_agentboot")
    client = Client(SERVER_NAME="127.0.0.1")
    person = User.objects.create_user("bench@yoco.example", None, is_account_manager=True)
    worst, most, notes = [], 0, []
    with time_machine.travel(years[0].ends_at - (years[0].ends_at - years[0].starts_at) / 100, tick=True):
        client.force_login(person)
        for _ in range(ROUNDS):
            ratios, told = [], []
            for topic, statements in BARE.items():
                found = [_once(client, connection, year, topic, statements) for year in _sample(years)]
                ratio = statistics.median(page / bare for page, bare, _, _ in found)
                page, bare, whole = (statistics.median(each[n] for each in found) * 1000 for n in (0, 1, 3))
                most = max(most, *(count for _, _, count, _ in found))
                ratios.append(ratio)
                told.append(f"{topic or 'overview'} {ratio:.2f} ({page:.0f}/{bare:.0f} ms, page in all {whole:.0f} ms)")
            worst.append(max(ratios))
            notes.append("; ".join(told))
    yield Reading(
        PAGE,
        worst,
        checks=((f"{most} queries a page (<= {MAX_QUERIES})", most <= MAX_QUERIES),),
        notes=("database time of a page over its bare SQL, the worst page of each run", *notes),
    )


def _sample(years: list[Any]) -> list[Any]:
    return random.sample(years, min(CONTRACTS_A_ROUND, len(years)))


def _once(
    client: Any, connection: Any, year: Any, topic: str, statements: tuple[str, ...]
) -> tuple[float, float, int, float]:
    """Database time of the page, time of the bare SQL, the page's queries, and the whole time of the page."""
    values = {"year": year.pk, "contract": year.contract_id}
    began = time.perf_counter()
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement, values)
            cursor.fetchall()
    bare = time.perf_counter() - began
    address = f"/contracts/{year.contract_id}/years/{year.pk}/analytics/{topic}{'/' if topic else ''}"
    began = time.perf_counter()
    with queries_counted() as queries:
        answer = client.get(address)
    whole = time.perf_counter() - began
    assert answer.status_code == 200, f"{address} answered {answer.status_code}"
    return queries.seconds, bare, queries.count, whole


BENCH = Bench(
    (
        Goal(
            PAGE,
            "database time of an analytics page over the bare SQL that it shows, 1,000,000 incidents of 200 contracts",
            "ratio",
            "<= 3",
        ),
    ),
    measure,
)

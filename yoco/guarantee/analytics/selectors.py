"""What each page of the analytics shows, and all of it for machines."""

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from django.utils import timezone

from yoco.contracts.models import ContractYear
from yoco.guarantee.analytics.exposure import Watched, runs_watched
from yoco.guarantee.analytics.goodput import ASSUMED, YearGoodput, assumptions_of, year_goodput
from yoco.guarantee.analytics.hurts import YearHurts, year_hurts
from yoco.guarantee.analytics.paces import RunPace, run_paces
from yoco.guarantee.analytics.rates import (
    Forecast,
    YearRates,
    failure_days,
    failures_by_run,
    year_forecast,
    year_rates,
)
from yoco.guarantee.analytics.scope import Scope, Step, scope_of
from yoco.guarantee.analytics.tables import (
    Table,
    forecast_table,
    goodput_tables,
    pace_tables,
    rates_tables,
    recovery_tables,
    waste_tables,
)
from yoco.guarantee.analytics.waste import (
    Benefit,
    YearWaste,
    benefit_of,
    fleet_years,
    spare_nodes_told,
    worst_incidents,
    year_waste,
)

TOPICS = ("rates", "waste", "goodput", "recovery")


@dataclass(frozen=True, slots=True)
class Given:
    """What only the reader knows; None where nothing was said."""

    spare_nodes: int | None = None
    write_ms: int | None = None


@dataclass(slots=True)
class Analytics:
    """The parts that were asked for, and their tables by code."""

    scope: Scope
    watched: list[Watched] = field(default_factory=list)
    paces: list[RunPace] = field(default_factory=list)
    rates: YearRates | None = None
    forecast: Forecast | None = None
    waste: YearWaste | None = None
    benefit: Benefit | None = None
    goodput: YearGoodput | None = None
    hurts: YearHurts | None = None
    tables: dict[str, Table] = field(default_factory=dict)


def year_analytics(
    *,
    year: ContractYear,
    topics: tuple[str, ...] = TOPICS,
    given: Given = Given(),
    now: datetime.datetime | None = None,
    step: Step = lambda done, of: None,
) -> Analytics:
    """The analytics of a contract year up to now. Every topic costs the same few queries on any number of incidents.

    Topic `overview` has what the others begin with, without their tables. `step` is told how far it is.
    """
    found = Analytics(scope_of(year=year, now=now or timezone.now()))
    parts = list(_parts(found, set(topics), given))
    for done, part in enumerate(parts, start=1):
        part()
        step(done, len(parts))
    return found


def _parts(found: Analytics, asked: set[str], given: Given) -> Iterator[Callable[[], None]]:
    """What is to be done for these topics, in order; each adds to what was found."""
    scope = found.scope

    def watched() -> None:
        found.watched = runs_watched(scope)

    def paces() -> None:
        found.paces = run_paces(scope, found.watched)

    def rates() -> None:
        found.rates = year_rates(scope, found.watched, failures_by_run(scope))

    def forecast() -> None:
        found.forecast = year_forecast(scope, found.watched)

    def waste() -> None:
        found.waste = year_waste(scope, found.watched)
        spares = spare_nodes_told(scope) if "waste" in asked else 0
        found.benefit = benefit_of(scope, found.waste.total, spare_nodes=given.spare_nodes, spares_told=spares)

    def goodput() -> None:
        assert found.waste is not None
        assert found.rates is not None
        by_contract = assumptions_of(scope, write_ms=given.write_ms) if "goodput" in asked else {}
        assumed = by_contract.get(scope.year.contract_id, ASSUMED)
        found.goodput = year_goodput(found.watched, found.waste.runs, found.rates, found.paces, assumed)

    def hurts() -> None:
        found.hurts = year_hurts(scope, found.watched)

    def tables() -> None:
        found.tables = {table.code: table for table in _tables(found, asked)}

    if asked - {"waste"}:
        yield watched
    if asked & {"overview", "goodput", "recovery"}:
        yield paces
    if asked & {"overview", "rates", "goodput"}:
        yield rates
    if asked & {"overview", "rates"}:
        yield forecast
    if asked & {"overview", "waste", "goodput"}:
        yield waste
    if asked & {"overview", "goodput"}:
        yield goodput
    if "recovery" in asked:
        yield hurts
    yield tables


def _tables(found: Analytics, asked: set[str]) -> Iterator[Table]:
    if "rates" in asked and found.rates and found.forecast:
        yield from rates_tables(found.rates)
        yield forecast_table(found.forecast)
    if "waste" in asked and found.waste and found.benefit:
        yield from waste_tables(
            found.waste,
            contract=found.scope.year.contract,
            benefit=found.benefit,
            years=fleet_years(found.scope),
            worst=worst_incidents(found.scope),
        )
    if "goodput" in asked and found.goodput:
        yield from goodput_tables(found.goodput)
    if found.hurts:
        yield from recovery_tables(found.hurts, scope=found.scope, days=failure_days(found.scope))
        yield from pace_tables(found.paces, scope=found.scope)

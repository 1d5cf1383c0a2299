"""Several contracts together: all of one customer, or of all customers. Sums of what each contract's pages show."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from yoco.contracts.models import Contract, ContractYear
from yoco.core.money import Money
from yoco.guarantee.analytics.exposure import runs_watched
from yoco.guarantee.analytics.goodput import ASSUMED, YearGoodput, assumptions_of, year_goodput
from yoco.guarantee.analytics.rates import YearRates, failures_by_run, year_rates
from yoco.guarantee.analytics.scope import Scope, Step, fleet_scope
from yoco.guarantee.analytics.waste import Sums, YearWaste, cost, waste_of, year_waste
from yoco.waste.badput import breakdowns_sum


@dataclass(frozen=True, slots=True)
class FleetContract:
    """A contract's part of a fleet."""

    contract: Contract
    waste: YearWaste
    rates: YearRates
    goodput: YearGoodput


@dataclass(frozen=True, slots=True)
class CurrencySum:
    """What contracts of one currency wasted and saved. `priced` of the contracts have a price; None where none has."""

    currency: str
    contracts: int
    priced: int
    wasted_ms: int
    saved_ms: int
    wasted: Money | None
    saved: Money | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """`contracts` have the largest waste first; their sums are the fleet's."""

    scope: Scope
    contracts: list[FleetContract]
    waste: YearWaste
    rates: YearRates
    goodput: YearGoodput
    currencies: list[CurrencySum]

    @property
    def incidents(self) -> int:
        return self.waste.total.incidents


def fleet_of(*, years: Sequence[ContractYear], now: datetime.datetime, step: Step = lambda done, of: None) -> Fleet:
    """The fleet of these contract years, with `contract` and its organisation loaded. Raises ValueError without a year.

    Six queries whatever their number, one more if a run with incidents was never watched. `step` is told how far it is.
    """
    scope = fleet_scope(years=years, now=now)
    watched = runs_watched(scope)
    by_day = failures_by_run(scope)
    step(1, 4)
    waste = year_waste(scope, watched)
    step(2, 4)
    assumed = assumptions_of(scope, write_ms=None)
    step(3, 4)
    # Whoever failed was placed, so every run that failed is among those with waste.
    contract_of = {run.id: run.contract_id for run in watched}
    contract_of |= {run.id: run.contract_id for run in waste.runs}
    contracts = []
    for contract in {year.contract_id: year.contract for year in years}.values():
        mine = [run for run in watched if run.contract_id == contract.pk]
        lost = waste_of(run for run in waste.runs if run.contract_id == contract.pk)
        rates = year_rates(scope, mine, [row for row in by_day if contract_of[row.run_id] == contract.pk])
        goodput = year_goodput(mine, lost.runs, rates, [], assumed[contract.pk])
        contracts.append(FleetContract(contract, lost, rates, goodput))
    step(4, 4)
    contracts.sort(key=lambda one: (-one.waste.total.actual, one.contract.number))
    return Fleet(
        scope=scope,
        contracts=contracts,
        waste=waste,
        rates=year_rates(scope, watched, by_day),
        goodput=_together([one.goodput for one in contracts]),
        currencies=_currencies(contracts),
    )


def _together(parts: Sequence[YearGoodput]) -> YearGoodput:
    return YearGoodput(
        runs=[run for one in parts for run in one.runs],
        fleet=breakdowns_sum(one.fleet for one in parts),
        assumptions=ASSUMED,
        unwatched=[name for one in parts for name in one.unwatched],
        estimated=any(one.estimated for one in parts),
        paced=0,
    )


def _currencies(contracts: Sequence[FleetContract]) -> list[CurrencySum]:
    """One sum a currency, rounded once, half to even; amounts of two currencies are never added."""
    by_currency: dict[str, list[FleetContract]] = {}
    for one in contracts:
        by_currency.setdefault(one.contract.currency, []).append(one)
    found = []
    for currency, mine in sorted(by_currency.items()):
        total = sum((one.waste.total for one in mine), Sums())
        wasted = [exact for one in mine if (exact := cost(one.waste.total.actual, one.contract)) is not None]
        saved = [exact for one in mine if (exact := cost(one.waste.total.saved, one.contract)) is not None]
        found.append(
            CurrencySum(
                currency,
                contracts=len(mine),
                priced=len(wasted),
                wasted_ms=total.actual,
                saved_ms=total.saved,
                wasted=Money(round(sum(wasted)), currency) if wasted else None,
                saved=Money(round(sum(saved)), currency) if saved else None,
            )
        )
    return found


def years_of_fleet(years: Sequence[ContractYear], *, now: datetime.datetime, all_years: bool) -> list[ContractYear]:
    """Those that have begun: the running year of each contract, or all."""
    return [year for year in years if year.starts_at <= now and (all_years or year.ends_at > now)]

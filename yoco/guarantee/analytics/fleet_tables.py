"""The figures of a fleet as tables."""

from typing import Any

from yoco.guarantee.analytics.fleets import Fleet, FleetContract
from yoco.guarantee.analytics.rates import finite
from yoco.guarantee.analytics.tables import WASTE_COLUMNS, Table, rates_tables, terms_table, waste_cells
from yoco.waste.model import HOUR_MS


def fleet_tables(fleet: Fleet) -> dict[str, Table]:
    """Contracts, their sums by term and by currency, and the fleet's failures by code."""
    weekly, node_rates, *_others = rates_tables(fleet.rates)
    tables = [
        Table(
            "contracts",
            ("customer", "contract", *WASTE_COLUMNS),
            [(*_name(one), *waste_cells(one.waste.measured, one.waste.estimated)) for one in fleet.contracts],
        ),
        Table(
            "money",
            ("currency", "contracts", "priced", "wasted_gpu_ms", "wasted_money", "saved_gpu_ms", "saved_money"),
            [
                (
                    one.currency,
                    one.contracts,
                    one.priced,
                    one.wasted_ms,
                    None if one.wasted is None else str(one.wasted.decimal),
                    one.saved_ms,
                    None if one.saved is None else str(one.saved.decimal),
                )
                for one in fleet.currencies
            ],
        ),
        terms_table(fleet.waste),
        Table(
            "rates",
            (
                "customer",
                "contract",
                "failures",
                "node_hours",
                "node_rate",
                "low",
                "high",
                "goodput_share",
                "available_share",
                "renewal_share",
                "linear_share",
            ),
            [_rates(one) for one in fleet.contracts],
        ),
        weekly,
        node_rates,
    ]
    return {table.code: table for table in tables}


def _name(one: FleetContract) -> tuple[str, str]:
    return one.contract.organisation.name, one.contract.number


def _rates(one: FleetContract) -> tuple[Any, ...]:
    rate, goodput = one.rates.rate, one.goodput
    low, high = rate.interval or (None, None)
    return (
        *_name(one),
        rate.failures,
        rate.exposure_ms / HOUR_MS,
        rate.per_thousand_node_days,
        low,
        finite(high),
        goodput.fleet.goodput,
        goodput.fleet_share("available"),
        goodput.fleet_share("renewal"),
        goodput.fleet_share("linear"),
    )

"""How often things fail here, beside what others published, and how the year may end."""

from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from yoco.core.templatetags.formats import day, duration, number
from yoco.guarantee.analytics.rates import Forecast, YearRates
from yoco.guarantee.analytics.selectors import Analytics
from yoco.guarantee.analytics.tables import Table
from yoco.guarantee.scenarios import OWN
from yoco.portal.analytics.exhibits import Exhibit, chance_words, hours_words, not_enough
from yoco.portal.analytics.figures import DAY, Figure, bars, bounds, counts, figure, label, marks
from yoco.portal.analytics.words import code_word
from yoco.waste.lifetimes import Life, median_life

# Basis, colour and mark: no two bases look alike or share a series.
BASES = {
    "measured_here": ("--accent", "circle"),
    "projected_here": ("--accent", "circle-open"),
    "measured": ("--good-fill", "square"),
    "published": ("--good-fill", "square"),
    "projected": ("--warn-fill", "diamond-open"),
}


def exhibits(found: Analytics) -> list[Exhibit]:
    """Weeks, failure rate, MTTF, first failures, forecast."""
    rates, forecast, tables = found.rates, found.forecast, found.tables
    assert rates is not None
    assert forecast is not None
    enough = rates.rate.per_thousand_node_days is not None
    return [
        Exhibit(
            tables["weekly"],
            _("Failures by week"),
            weekly_words(rates),
            changes_note(rates),
            weekly_figure(tables["weekly"]),
        ),
        Exhibit(
            tables["node_rates"],
            _("Failure rate of a node"),
            rate_words(rates),
            method_words(rates),
            node_rates_figure(tables["node_rates"]) if enough else None,
        ),
        Exhibit(
            tables["mttf"],
            _("Mean time between failures, by size of the job"),
            mttf_words(rates),
            _(
                "Measured points and projections are marks of their own and never one line: the published rate of one "
                "fleet gives 28.85 h at 1,024 GPUs, where 7.9 h was measured."
            ),
            _mttf(tables["mttf"]) if enough else None,
        ),
        Exhibit(tables["first_failure"], _("Time to the first failure"), first_words(rates), first_note()),
        Exhibit(
            tables["forecast"],
            _("How the year may end"),
            forecast_words(forecast),
            _("For information. The verdict turns on the exact ratio alone."),
        ),
    ]


def scenario_query(found: Analytics) -> str:
    """The question for the scenario calculator at the measured rate, largest job and price; empty without a rate."""
    rates = found.rates
    if rates is None or not rates.rate.per_thousand_node_days or not rates.sizes:
        return ""
    price = found.scope.year.contract.price_per_gpu_hour
    asked = {
        "anchor": OWN,
        "rate": f"{rates.rate.per_thousand_node_days:.4f}",
        "gpus": rates.sizes[-1].gpus,
        **({} if price is None else {"price": price}),
    }
    return f"?{urlencode(asked)}"


def weekly_words(rates: YearRates) -> str:
    """How many failures, and how many of them no rate has."""
    n = rates.rate.failures + rates.unwatched
    if not n:
        return _("No failure so far.")
    words = ngettext("%(n)s failure so far.", "%(n)s failures so far.", n) % {"n": number(n)}
    if rates.unwatched:
        words += " " + ngettext(
            "%(n)s of them met a workload that was not watched or whose GPUs are not known; it is in no rate.",
            "%(n)s of them met workloads that were not watched or whose GPUs are not known; they are in no rate.",
            rates.unwatched,
        ) % {"n": number(rates.unwatched)}
    return words


def changes_note(rates: YearRates) -> str:
    """The changes that a CUSUM of the weeks finds, and when it can."""
    if len(rates.weeks) < 16:
        return _("A change of the rate is looked for once there are sixteen weeks.")
    if not rates.changes:
        return _("A CUSUM of the weekly counts (reference 0.5, limit 5) finds no change of the rate.")
    weeks = [
        f"{day(rates.weeks[change.since].starts_on)}: {code_word('change', change.direction)}"
        for change in rates.changes
    ]
    return _("A CUSUM of the weekly counts (reference 0.5, limit 5) finds: %(changes)s.") % {
        "changes": "; ".join(weeks)
    }


def rate_words(rates: YearRates) -> str:
    """The measured rate with its interval."""
    rate = rates.rate
    if rate.per_thousand_node_days is None:
        return _("Not enough data: no agent watched a workload whose GPUs are known.")
    value = number(Decimal(rate.per_thousand_node_days), 2)
    if rate.interval is None:
        return _("%(rate)s failures per 1,000 node-days; too few weeks for an interval.") % {"rate": value}
    return _("%(rate)s failures per 1,000 node-days, 95 %% interval %(low)s to %(high)s.") % {
        "rate": value,
        "low": number(Decimal(rate.interval[0]), 2),
        "high": number(Decimal(rate.interval[1]), 2),
    }


def method_words(rates: YearRates) -> str:
    """On what the interval rests."""
    spread = rates.rate.dispersion
    if rates.rate.method == "bootstrap" and spread is not None:
        return _(
            "Weekly counts vary %(index)s times as much as Poisson counts would: the interval is a bootstrap by week."
        ) % {"index": number(Decimal(spread.index), 1)}
    if rates.rate.method == "poisson" and spread is not None:
        return _("Weekly counts vary no more than Poisson counts would: the interval is Poisson's.")
    if rates.rate.method == "poisson":
        return _("Too few failures to test whether they come in clusters: the interval takes them as Poisson.")
    return ""


def mttf_words(rates: YearRates) -> str:
    """The measured MTTF of the largest size with a failure."""
    measured = [size for size in rates.sizes if size.mttf is not None]
    if measured:
        size = measured[-1]
        assert size.mttf is not None
        return _("%(gpus)s GPUs ran %(hours)s h between failures on average.") % {
            "gpus": number(size.gpus),
            "hours": hours_words(size.mttf),
        }
    if rates.sizes and rates.sizes[-1].interval is not None:
        size = rates.sizes[-1]
        return _("No failure yet: %(gpus)s GPUs run at least %(hours)s h between failures, with 95 %% confidence.") % {
            "gpus": number(size.gpus),
            "hours": hours_words(size.interval[0] if size.interval else 0),
        }
    return not_enough()


def first_words(rates: YearRates) -> str:
    """How many failed, and the median over all of them, those that have not failed yet included."""
    if not rates.lives:
        return not_enough()
    found = median_life(
        Life(life.run.watched_ms, False) if life.until_first_ms is None else Life(life.until_first_ms, True)
        for life in rates.lives
    )
    if not found.failed:
        return _("No watched workload has failed yet.")
    words = ngettext(
        "%(failed)s of %(all)s watched workload failed.",
        "%(failed)s of %(all)s watched workloads failed.",
        found.runs,
    ) % {"failed": number(found.failed), "all": number(found.runs)}
    if found.median_ms is None:
        return f"{words} " + _("Too few failed to say within what time half of them do.")
    if found.high_ms is None or found.low_ms is None:
        return f"{words} " + _("Half fail within %(time)s; too few for an interval.") % {
            "time": duration(found.median_ms)
        }
    return f"{words} " + _("Half fail within %(time)s, 95 %% interval %(low)s to %(high)s.") % {
        "time": duration(found.median_ms),
        "low": duration(found.low_ms),
        "high": duration(found.high_ms),
    }


def first_note() -> str:
    """How the median is estimated."""
    return _("The median is Kaplan and Meier's: workloads that have not failed yet count for as long as they ran.")


def forecast_words(forecast: Forecast) -> str:
    """The chance of ending short and what can still be borne."""
    if not forecast.counted:
        return _("Not enough data: no failure has counted yet.")
    if forecast.allowed is None:
        return _("This year has no guarantee.")
    if forecast.chance_short is None:
        return _("The guaranteed part of this year is over; nothing is left to forecast.")
    basis = (
        _("on the node-hours that the last four weeks let expect")
        if forecast.basis == "exposure"
        else _("on the days that are left, as no workload was watched lately")
    )
    words = _("%(n)s more failures are expected, %(basis)s; of all, %(allowed)s more may stay unresolved.") % {
        "n": number(forecast.to_come),
        "basis": basis,
        "allowed": number(max(0, forecast.allowed)),
    }
    return f"{words} " + _("Chance that the year ends short: %(chance)s.") % {
        "chance": chance_words(forecast.chance_short)
    }


def weekly_figure(table: Table) -> Figure | None:
    """Failures by week, changes marked."""
    rows = table.records()
    if not rows:
        return None
    weeks = [row["week_on"].isoformat() for row in rows]
    changed = [row for row in rows if row["change"]]
    return figure(
        [bars(_("Failures"), weeks, [row["failures"] for row in rows], "--accent")],
        x={"type": "date", "tickformat": DAY, "hoverformat": DAY},
        y=counts([row["failures"] for row in rows]) | {"title": {"text": _("Failures")}},
        shapes=[
            {
                "type": "line",
                "x0": row["week_on"].isoformat(),
                "x1": row["week_on"].isoformat(),
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "--bad-fill", "dash": "dot", "width": 2},
            }
            for row in changed
        ],
        annotations=[
            {
                "x": row["week_on"].isoformat(),
                "yref": "paper",
                "y": 1,
                "text": code_word("change", row["change"]),
                "showarrow": False,
                "xanchor": "left" if rows.index(row) < len(rows) / 2 else "right",  # else it leaves the chart
                "font": {"color": "--bad"},
            }
            for row in changed
        ],
    )


def _by_basis(rows: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    bases = dict.fromkeys(row["basis"] for row in rows)
    return [(basis, [row for row in rows if row["basis"] == basis]) for basis in bases]


def node_rates_figure(table: Table) -> Figure:
    """The measured rate with its interval beside published ones."""
    traces = []
    for basis, rows in _by_basis(table.records()):
        colour, symbol = BASES[basis]
        values = [row["node_rate"] for row in rows]
        labels = [label(code_word("source", row["source"]) or code_word("basis", basis)) for row in rows]
        error = bounds(values, [row["low"] for row in rows], [row["high"] for row in rows], colour)
        traces.append(marks(code_word("basis", basis), values, labels, colour, symbol, error_x=error))
    return figure(traces, x={"rangemode": "tozero"}, y={"autorange": "reversed"})


def _mttf(table: Table) -> Figure:
    traces = []
    for basis, rows in _by_basis([row for row in table.records() if row["mttf_hours"] is not None]):
        colour, symbol = BASES[basis]
        values = [row["mttf_hours"] for row in rows]
        error = bounds(values, [row["low_hours"] for row in rows], [row["high_hours"] for row in rows], colour)
        traces.append(
            marks(
                code_word("basis", basis),
                [row["gpus"] for row in rows],
                values,
                colour,
                symbol,
                error_y=error,
                text=[row["source"] for row in rows],
            )
        )
    return figure(
        traces,
        x={"type": "log", "dtick": 1, "title": {"text": _("GPUs")}},
        y={"type": "log", "dtick": 1, "title": {"text": _("MTTF, hours")}},
    )

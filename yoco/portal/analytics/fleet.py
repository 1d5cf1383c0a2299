"""What failures cost all contracts together, and how often they come."""

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from yoco.core.templatetags.formats import gpu_hours, number, reader_locale
from yoco.guarantee.analytics.fleet_tables import fleet_tables
from yoco.guarantee.analytics.fleets import Fleet
from yoco.guarantee.analytics.tables import Table
from yoco.portal.analytics.exhibits import Exhibit
from yoco.portal.analytics.figures import Figure, bounds, figure, height_of, label, marks
from yoco.portal.analytics.goodput import ettr_words
from yoco.portal.analytics.rates import (
    changes_note,
    method_words,
    node_rates_figure,
    rate_words,
    weekly_figure,
    weekly_words,
)
from yoco.portal.analytics.waste import estimated_words, terms_figure, wasted_and_saved

SHOWN = 15


def exhibits(fleet: Fleet) -> list[Exhibit]:
    """Contracts, terms, money, rates."""
    tables = fleet_tables(fleet)
    some = fleet.waste.total.incidents > 0
    return [
        Exhibit(
            tables["contracts"],
            _("Wasted GPU-hours by contract"),
            fleet_words(fleet),
            estimated_words(fleet.waste),
            wasted_and_saved(tables["contracts"], "contract") if some else None,
        ),
        Exhibit(
            tables["terms"],
            _("Wasted GPU-hours by term"),
            _("The terms of all contracts; they add up to the sum above."),
            "",
            terms_figure(tables["terms"]) if some else None,
        ),
        Exhibit(
            tables["money"],
            _("In money"),
            money_words(fleet),
            _("Each contract at its own price. Amounts of two currencies are never added."),
        ),
        Exhibit(
            tables["rates"],
            _("Failure rate and effective training time by contract"),
            ettr_words(fleet.goodput),
            _(
                "Each contract with the checkpoints and restarts that its own incidents tell of; without slow "
                "stretches, which the pages of each contract show."
            ),
            rates_figure(tables["rates"]),
        ),
        Exhibit(
            tables["weekly"],
            _("Failures by week"),
            weekly_words(fleet.rates),
            changes_note(fleet.rates),
            weekly_figure(tables["weekly"]),
        ),
        Exhibit(
            tables["node_rates"],
            _("Failure rate of a node"),
            rate_words(fleet.rates),
            method_words(fleet.rates),
            node_rates_figure(tables["node_rates"]) if fleet.rates.rate.per_thousand_node_days is not None else None,
        ),
    ]


def fleet_words(fleet: Fleet) -> str:
    """Wasted and saved of all contracts in one sentence."""
    total = fleet.waste.total
    words = ngettext("%(n)s contract.", "%(n)s contracts.", len(fleet.contracts)) % {"n": number(len(fleet.contracts))}
    if not total.incidents:
        return f"{words} " + _("No incident so far.")
    return f"{words} " + _("Incidents wasted %(wasted)s GPU-hours and migration saved %(saved)s GPU-hours.") % {
        "wasted": gpu_hours(total.actual),
        "saved": gpu_hours(total.saved),
    }


def money_words(fleet: Fleet) -> str:
    """The amounts of each currency, and contracts without a price."""
    locale = reader_locale()
    parts = [
        _("%(wasted)s wasted, %(saved)s saved")
        % {"wasted": one.wasted.format(locale), "saved": one.saved.format(locale)}
        for one in fleet.currencies
        if one.wasted is not None and one.saved is not None
    ]
    words = f"{'; '.join(parts)}." if parts else ""
    lacking = sum(one.contracts - one.priced for one in fleet.currencies)
    if lacking:
        words += " " + ngettext(
            "%(n)s contract has no price per GPU-hour and is not in it.",
            "%(n)s contracts have no price per GPU-hour and are not in it.",
            lacking,
        ) % {"n": number(lacking)}
    return words.strip()


def rates_figure(table: Table) -> Figure | None:
    """The rate of each contract with its interval, the first ones."""
    rows = [row for row in table.records() if row["node_rate"] is not None][:SHOWN]
    if not rows:
        return None
    values = [row["node_rate"] for row in rows]
    error = bounds(values, [row["low"] for row in rows], [row["high"] for row in rows], "--accent")
    names = [label(row["contract"]) for row in rows]
    trace = marks(_("Failures per 1,000 node-days"), values, names, "--accent", "circle", error_x=error)
    return figure(
        [trace],
        x={"rangemode": "tozero", "title": {"text": _("Failures per 1,000 node-days")}},
        y={"autorange": "reversed", "type": "category"},
        height=height_of(len(rows)),
    )

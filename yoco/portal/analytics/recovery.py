"""Where it hurts: causes, recovery times, parts that fail again and again, and when."""

import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from yoco.core.templatetags.formats import duration, number
from yoco.guarantee.analytics.hurts import YearHurts
from yoco.guarantee.analytics.selectors import Analytics
from yoco.guarantee.analytics.tables import Table
from yoco.portal.analytics import pace
from yoco.portal.analytics.exhibits import Exhibit, not_enough, share_words
from yoco.portal.analytics.figures import DAY, Figure, bars, counts, figure, height_of, label, marks
from yoco.portal.analytics.words import code_word


def exhibits(found: Analytics) -> list[Exhibit]:
    """Pareto charts, spreads, lemons, calendar, fail-slow."""
    hurts, tables = found.hurts, found.tables
    assert hurts is not None
    return [
        Exhibit(
            tables["causes"],
            _("Causes of failures"),
            cause_words(hurts),
            "",
            _pareto(tables["causes"], "cause"),
        ),
        Exhibit(tables["xids"], _("GPU errors by XID"), xid_words(hurts), "", _pareto(tables["xids"], "xid")),
        Exhibit(
            tables["recovery"],
            _("Time until training went on"),
            recovery_words(hurts),
            _("From the start of an incident to its resumption, of all incidents that have one."),
            _spreads(tables["recovery"], "group"),
        ),
        Exhibit(tables["phases"], _("Phases of recovery"), phase_words(hurts), "", _spreads(tables["phases"], "phase")),
        Exhibit(
            tables["lemons"],
            _("Parts that fail again and again"),
            lemon_words(hurts),
            _(
                "A part is named with at least three failures, of which so many would come by chance in fewer than one "
                "fleet of a hundred: P(X ≥ x) · parts < 0.01, X Poisson at the fleet's mean."
            ),
        ),
        Exhibit(
            tables["calendar"],
            _("Failures by day"),
            calendar_words(tables["calendar"]),
            "",
            _calendar(tables["calendar"]),
        ),
        Exhibit(tables["slow"], _("Workloads that ran slowly"), pace.slow_words(found.paces), pace.slow_note(found)),
        Exhibit(
            tables["paces"],
            _("Time of a step, day by day"),
            pace.pace_words(found.paces),
            pace.pace_note(),
            pace.pace_figure(tables["paces"], tables["slow"]),
        ),
    ]


def cause_words(hurts: YearHurts) -> str:
    """The first cause and its share."""
    if not hurts.causes:
        return _("No failure so far.")
    first = hurts.causes[0]
    return _("Most frequent: %(cause)s, %(n)s of %(all)s failures (%(share)s).") % {
        "cause": code_word("cause", first.key),
        "n": number(first.failures),
        "all": number(hurts.failures),
        "share": share_words(first.failures / hurts.failures),
    }


def xid_words(hurts: YearHurts) -> str:
    """The first XID."""
    if not hurts.xids:
        return _("No failure names an XID.")
    return _("Most frequent: XID %(xid)s, %(n)s failures.") % {
        "xid": hurts.xids[0].key,
        "n": number(hurts.xids[0].failures),
    }


def recovery_words(hurts: YearHurts) -> str:
    """Median and 95th percentile of the most frequent kind."""
    spreads = hurts.recovery["kind"]
    if not spreads:
        return not_enough()
    first = spreads[0]
    return _("%(kind)s incidents: half went on within %(p50)s, 95 %% within %(p95)s, the longest took %(longest)s.") % {
        "kind": code_word("kind", first.key),
        "p50": duration(first.p50),
        "p95": duration(first.p95),
        "longest": duration(first.longest),
    }


def phase_words(hurts: YearHurts) -> str:
    """The phase that takes longest, and what clocks spoilt."""
    if not hurts.phases:
        return not_enough()
    slowest = max(hurts.phases, key=lambda phase: phase.p50)
    words = _("%(phase)s takes longest: %(p50)s in the median.") % {
        "phase": code_word("phase", slowest.key),
        "p50": duration(slowest.p50),
    }
    if hurts.skewed:
        words += " " + ngettext(
            "%(n)s instant lies before the one in front of it and is left out.",
            "%(n)s instants lie before those in front of them and are left out.",
            hurts.skewed,
        ) % {"n": number(hurts.skewed)}
    return words


def lemon_words(hurts: YearHurts) -> str:
    """How many parts stand out, against how large a fleet."""
    found = len(hurts.nodes) + len(hurts.gpus)
    if not hurts.failures:
        return _("No failure so far.")
    if hurts.fleet_nodes:
        fleet = _("of a fleet of %(nodes)s nodes and %(gpus)s GPUs") % {
            "nodes": number(hurts.fleet_nodes),
            "gpus": number(hurts.fleet_gpus),
        }
    else:
        fleet = _("of those that failed, as the size of the fleet is not known")
    if not found:
        return _("No part fails more often than chance allows, %(fleet)s.") % {"fleet": fleet}
    return ngettext(
        "%(n)s part fails more often than chance allows, %(fleet)s.",
        "%(n)s parts fail more often than chance allows, %(fleet)s.",
        found,
    ) % {"n": number(found), "fleet": fleet}


def calendar_words(table: Table) -> str:
    """Days with and without a failure."""
    counts = [failures for _day, failures in table.rows]
    if not counts:
        return not_enough()
    return _("%(with)s of %(days)s days had a failure; the worst had %(most)s.") % {
        "with": number(sum(1 for n in counts if n)),
        "days": number(len(counts)),
        "most": number(max(counts)),
    }


def _pareto(table: Table, key: str) -> Figure | None:
    rows = table.records()
    if not rows:
        return None
    labels = [code_word(key, row[key]) for row in rows]
    cumulated = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _("Share so far"),
        "x": labels,
        "y": [row["cumulated_share"] for row in rows],
        "yaxis": "y2",
        "line": {"color": "--ink"},
    }
    # The line crosses the bars, and must be seen on them in both themes.
    failures = bars(_("Failures"), labels, [row["failures"] for row in rows], "--accent", opacity=0.55)
    return figure(
        [failures, cumulated],
        x={"type": "category"},
        y=counts([row["failures"] for row in rows]),
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "range": [0, 1.05],
            "tick0": 0,
            "dtick": 0.2,
            "tickformat": ".0%",
            "showgrid": False,
            "automargin": True,
            "fixedrange": True,
        },
    )


def _spreads(table: Table, key: str) -> Figure | None:
    rows = table.records()
    if not rows:
        return None
    labels = [
        f"{code_word('grouping', row['grouping'])}: {code_word(key, row[key])}"
        if "grouping" in row
        else code_word(key, row[key])
        for row in rows
    ]
    series = (
        ("p50_ms", _("Median"), "--phase-5", "circle"),
        ("p95_ms", _("95th percentile"), "--phase-3", "diamond"),
        ("longest_ms", _("Longest"), "--phase-1", "square"),
    )
    names = [label(name) for name in labels]
    shortest, longest = min(max(row["p50_ms"], 1) for row in rows), max(row["longest_ms"] for row in rows)
    # Within one decade a logarithmic axis may have no tick at all.
    scale = {"type": "log", "dtick": "D2"} if longest > 10 * shortest else {"rangemode": "tozero"}
    return figure(
        # No bars: on a logarithmic axis their lengths would mean nothing.
        [
            marks(name, [max(row[column], 1) / 1000 for row in rows], names, colour, symbol)
            for column, name, colour, symbol in series
        ],
        x={**scale, "title": {"text": _("Seconds")}},
        y={"autorange": "reversed", "type": "category"},
        height=height_of(len(rows)),
    )


def _calendar(table: Table) -> Figure | None:
    """Weeks across, weekdays down; one square a day."""
    if not table.rows:
        return None
    mondays: dict[datetime.date, list[int | None]] = {}
    for when, failures in table.rows:
        monday = when - datetime.timedelta(days=when.weekday())
        mondays.setdefault(monday, [None] * 7)[when.weekday()] = failures
    most = max(failures for _when, failures in table.rows)
    names = [_("Mon"), _("Tue"), _("Wed"), _("Thu"), _("Fri"), _("Sat"), _("Sun")]
    return figure(
        [
            {
                "type": "heatmap",
                "x": [monday.isoformat() for monday in mondays],
                "y": names,
                "z": [[week[weekday] for week in mondays.values()] for weekday in range(7)],
                "zmin": 0,
                "zmax": max(most, 1),
                "colorscale": [[0, "--sunken"], [1, "--bad-fill"]],
                "showscale": False,
                "xgap": 2,
                "ygap": 2,
            }
        ],
        x={"type": "date", "showgrid": False, "tickformat": DAY, "hoverformat": DAY},
        y={"autorange": "reversed", "showgrid": False},
    )

"""Which workloads lost speed without failing, and how their step time went."""

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from yoco.core.templatetags.formats import duration, gpu_hours, number
from yoco.guarantee.analytics.paces import RunPace
from yoco.guarantee.analytics.selectors import Analytics
from yoco.guarantee.analytics.tables import PACES_DRAWN, Table
from yoco.portal.analytics.exhibits import not_enough
from yoco.portal.analytics.figures import DAY, PALETTE, Figure, figure, label
from yoco.waste.slow import BASELINE_HOURS, WINDOW


def slow_words(paces: list[RunPace]) -> str:
    """How many workloads went slowly, and what that lost."""
    known = [each for each in paces if each.lost_gpu_ms is not None]
    if not known:
        return _(
            "Not enough data: no watched workload has told its steps for %(hours)s hours that no incident touches."
        ) % {"hours": number(BASELINE_HOURS + WINDOW)}
    slow = [each for each in known if each.pace.slow]
    if not slow:
        return ngettext(
            "%(n)s workload told its steps for long enough; it did not go slowly.",
            "%(n)s workloads told their steps for long enough; none went slowly.",
            len(known),
        ) % {"n": number(len(known))}
    return ngettext(
        "%(n)s of %(all)s workload went slowly for a while and lost %(hours)s GPU-hours by it.",
        "%(n)s of %(all)s workloads went slowly for a while and lost %(hours)s GPU-hours by it.",
        len(known),
    ) % {
        "n": number(len(slow)),
        "all": number(len(known)),
        "hours": gpu_hours(sum(each.lost_gpu_ms or 0 for each in slow)),
    }


def slow_note(found: Analytics) -> str:
    """The rule, and whom it leaves out."""
    rule = _(
        "Step times come from heartbeats, hour by hour, without the hours that an incident touches. The baseline is "
        "the median of a workload's first 24 such hours of the year. Slow is a stretch of at least three hours whose "
        "median of three is 1.10 times the baseline or more and in which a CUSUM (reference 1, limit 10 standard "
        "deviations of the baseline) alarms. Work that takes longer by itself looks the same."
    )
    if len(found.watched) == len(found.paces):
        return rule
    return f"{rule} " + ngettext(
        "Only the largest workload is looked at.", "Only the %(n)s largest workloads are looked at.", len(found.paces)
    ) % {"n": number(len(found.paces))}


def pace_words(paces: list[RunPace]) -> str:
    """The baseline of the workload that lost most."""
    known = [each for each in paces if each.pace.baseline_ms is not None]
    if not known:
        return not_enough()
    worst = max(known, key=lambda each: each.lost_gpu_ms or 0)
    return _("%(run)s: a step takes %(time)s at its baseline.") % {
        "run": worst.run.name,
        "time": duration(round(worst.pace.baseline_ms or 0)),
    }


def pace_note() -> str:
    """Which workloads are drawn."""
    return _("Of at most %(n)s workloads, those that lost most first. Shaded: a slow stretch.") % {
        "n": number(PACES_DRAWN)
    }


def pace_figure(days: Table, slow: Table) -> Figure | None:
    """Seconds of a step by day, a line for each workload, slow stretches shaded."""
    rows = days.records()
    if not rows:
        return None
    runs = list(dict.fromkeys(row["run"] for row in rows))
    traces = []
    for run, colour in zip(runs, PALETTE, strict=False):
        mine = [row for row in rows if row["run"] == run]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label(run),
                "x": [row["day_on"].isoformat() for row in mine],
                "y": [row["step_ms"] / 1000 for row in mine],
                "line": {"color": colour},
            }
        )
    shapes = [
        {
            "type": "rect",
            "x0": row["since_at"].isoformat(),
            "x1": row["until_at"].isoformat(),
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "fillcolor": "--bad-fill",
            "opacity": 0.2,
            "line": {"width": 0},
        }
        for row in slow.records()
        if row["since_at"] is not None and row["run"] in runs
    ]
    return figure(
        traces,
        x={"type": "date", "tickformat": DAY, "hoverformat": DAY},
        y={"rangemode": "tozero", "title": {"text": _("Seconds a step")}},
        shapes=shapes,
    )

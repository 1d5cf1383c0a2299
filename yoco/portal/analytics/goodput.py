"""How much of the time moved training on, and what the formulas say of checkpoints."""

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from yoco.core.templatetags.formats import duration, number
from yoco.guarantee.analytics.goodput import YearGoodput
from yoco.guarantee.analytics.selectors import Analytics
from yoco.guarantee.analytics.tables import Table
from yoco.portal.analytics.exhibits import Exhibit, not_enough, share_words
from yoco.portal.analytics.figures import PALETTE, Figure, figure, height_of, hours, label, lying_bars, marks
from yoco.portal.analytics.words import code_word


def exhibits(found: Analytics) -> list[Exhibit]:
    """Goodput by class, by run beside the formulas, and what these were given."""
    goodput, tables = found.goodput, found.tables
    assert goodput is not None
    return [
        Exhibit(
            tables["classes"],
            _("Where the watched time went"),
            goodput_words(goodput),
            classes_note(goodput),
            _classes(tables["classes"]) if goodput.fleet.total else None,
        ),
        Exhibit(
            tables["runs"],
            _("Effective training time by workload"),
            ettr_words(goodput),
            _(
                "Renewal form: Δ / [(1/λ + u + q)(e^λ(Δ+w) - 1)]. Linear form: (1 - λ(u + Δ/2)) / (1 + w/Δ). "
                "Best interval: √(2w/λ)."
            ),
            _runs(tables["runs"]) if goodput.runs else None,
        ),
        Exhibit(tables["assumptions"], _("What the formulas were given"), assumption_words(goodput)),
    ]


def goodput_words(goodput: YearGoodput) -> str:
    """The productive share of the fleet."""
    share = goodput.fleet.goodput
    if share is None:
        return _("Not enough data: no agent watched a workload whose GPUs are known.")
    words = _("%(share)s of the watched GPU-time moved training on.") % {"share": share_words(share)}
    return words + " " + _("Some times are estimated.") if goodput.estimated else words


def ettr_words(goodput: YearGoodput) -> str:
    """Goodput of the fleet beside what the formulas give."""
    renewal, linear, available = (goodput.fleet_share(name) for name in ("renewal", "linear", "available"))
    if goodput.fleet.goodput is None or renewal is None or linear is None or available is None:
        return not_enough()
    return _(
        "All workloads: %(goodput)s measured, and %(available)s of the time not standing still; with checkpoint "
        "restarts at the same failure rate the formulas give an ETTR of %(renewal)s (renewal) and %(linear)s (linear)."
    ) % {
        "goodput": share_words(goodput.fleet.goodput),
        "available": share_words(available),
        "renewal": share_words(renewal),
        "linear": share_words(linear),
    }


def classes_note(goodput: YearGoodput) -> str:
    """What the classes leave out."""
    notes = [_("The classes add up to the watched time. Nobody reports how long checkpoints take to write.")]
    notes.append(
        ngettext(
            "Whether it ran slowly is known of %(n)s workload.",
            "Whether they ran slowly is known of %(n)s workloads.",
            goodput.paced,
        )
        % {"n": number(goodput.paced)}
    )
    if goodput.fleet.excess:
        notes.append(
            _("Incidents claim more time than was watched; the excess is shown: clocks disagree or heartbeats lack.")
        )
    if goodput.unwatched:
        notes.append(
            ngettext(
                "%(n)s workload with incidents was never watched and is left out.",
                "%(n)s workloads with incidents were never watched and are left out.",
                len(goodput.unwatched),
            )
            % {"n": len(goodput.unwatched)}
        )
    return " ".join(notes)


def assumption_words(goodput: YearGoodput) -> str:
    """Which inputs are measured, and which are defaults."""
    given = goodput.assumptions
    if not given.interval.measured:
        first = _("No checkpoint is known: the interval is the default of %(time)s.")
    else:
        first = _("Checkpoints were %(time)s apart: twice the mean age of the last one at a failure.")
    words = first % {"time": duration(given.interval.value_ms)}
    if not given.restart.measured:
        words += " " + _("No restart was measured: its times are defaults.")
    return words + " " + _("How long a checkpoint takes to write is never reported: it is what you give above.")


def _classes(table: Table) -> Figure:
    rows = [row for row in table.records() if row["class"] != "productive"]
    labels = [code_word("class", row["class"]) for row in rows]
    bar = lying_bars(_("GPU-hours"), labels, [hours(row["gpu_ms"]) for row in rows], PALETTE[0])
    bar["marker"] = {"color": [PALETTE[index % len(PALETTE)] for index in range(len(rows))]}
    return figure(
        [bar], x={"title": {"text": _("GPU-hours")}}, y={"autorange": "reversed"}, height=height_of(len(rows))
    )


def _runs(table: Table) -> Figure:
    rows = table.records()[:15]
    names = [label(row["run"]) for row in rows]
    series = (
        ("goodput_share", _("Goodput, measured"), "--accent", "circle"),
        ("renewal_share", _("ETTR, renewal form"), "--warn-fill", "diamond-open"),
        ("linear_share", _("ETTR, linear form"), "--phase-5", "square-open"),
    )
    return figure(
        [marks(name, [row[column] for row in rows], names, colour, symbol) for column, name, colour, symbol in series],
        x={"tickformat": ".1%"},
        y={"autorange": "reversed", "type": "category"},
        height=height_of(len(rows)),
    )

"""What failures cost in GPU-hours and money, and what migration was worth."""

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from yoco.contracts.models import Contract
from yoco.core.templatetags.formats import gpu_hours, number, reader_locale
from yoco.guarantee.analytics.selectors import Analytics
from yoco.guarantee.analytics.tables import Table
from yoco.guarantee.analytics.waste import Benefit, YearWaste, priced
from yoco.portal.analytics.exhibits import Exhibit
from yoco.portal.analytics.figures import Figure, bars, figure, height_of, hours, label, lying_bars
from yoco.portal.analytics.words import code_word

SHOWN = 15


def exhibits(found: Analytics) -> list[Exhibit]:
    """Terms, net benefit, workloads, contract years, the incidents that cost most."""
    waste, benefit, tables = found.waste, found.benefit, found.tables
    assert waste is not None
    assert benefit is not None
    some = waste.total.incidents > 0
    return [
        Exhibit(
            tables["terms"],
            _("Wasted GPU-hours by term"),
            waste_words(waste, benefit),
            estimated_words(waste),
            terms_figure(tables["terms"]) if some else None,
        ),
        Exhibit(
            tables["benefit"],
            _("Net benefit"),
            benefit_words(benefit),
            benefit_note(benefit),
            _benefit(tables["benefit"]) if some else None,
        ),
        Exhibit(
            tables["workloads"],
            _("By workload"),
            _("The workloads that wasted most come first."),
            _("Prevented is what preventive moves may have avoided; it is never part of saved."),
            wasted_and_saved(tables["workloads"], "run") if some else None,
        ),
        Exhibit(
            tables["fleet"],
            _("By contract year"),
            _("All workloads of the contract, year by year."),
            "",
            wasted_and_saved(tables["fleet"], "year") if tables["fleet"].rows else None,
        ),
        Exhibit(
            tables["worst"],
            _("The incidents that cost most"),
            _("Each opens its evidence, its formula and the defaults it used."),
        ),
    ]


def money_text(gpu_ms: int, contract: Contract) -> str:
    """What GPU-time costs at the contract's price, as the reader's locale writes it; empty without a price."""
    money = priced(gpu_ms, contract)
    return money.format(reader_locale()) if money is not None else ""


def in_money(gpu_ms: int, benefit: Benefit) -> str:
    """GPU-hours, with what they cost where the contract has a price."""
    money = money_text(gpu_ms, benefit.contract)
    words = _("%(hours)s GPU-hours") % {"hours": gpu_hours(gpu_ms)}
    return f"{words} ({money})" if money else words


def waste_words(waste: YearWaste, benefit: Benefit) -> str:
    """Wasted and saved in one sentence."""
    total = waste.total
    if not total.incidents:
        return _("No incident so far.")
    words = _("Incidents wasted %(wasted)s and migration saved %(saved)s.") % {
        "wasted": in_money(total.actual, benefit),
        "saved": in_money(total.saved, benefit),
    }
    if benefit.contract.price_per_gpu_hour is None:
        words += " " + _("The contract has no price per GPU-hour, so there is no money here.")
    return words


def estimated_words(waste: YearWaste) -> str:
    """How much of it rests on defaults."""
    if not waste.estimated.incidents:
        return _("All times were measured.") if waste.total.incidents else ""
    return _("%(n)s of %(all)s incidents lack a measured time and are estimated with a published default.") % {
        "n": waste.estimated.incidents,
        "all": waste.total.incidents,
    }


def benefit_words(benefit: Benefit) -> str:
    """The net benefit in one sentence."""
    money = benefit.net_money
    return _("Net benefit: %(net)s.") % {
        "net": money.format(reader_locale())
        if money is not None
        else _("%(hours)s GPU-hours") % {"hours": gpu_hours(benefit.net)}
    }


def benefit_note(benefit: Benefit) -> str:
    """What the sum leaves out, so that nobody takes it for more than it is."""
    notes = []
    if benefit.idle is None:
        notes.append(_("Idle spare nodes are not taken off: nobody reports them. Give their number above."))
        if benefit.spares_told:
            notes.append(
                ngettext(
                    "Incidents name %(n)s spare node of the pool.",
                    "Incidents name %(n)s spare nodes of the pool.",
                    benefit.spares_told,
                )
                % {"n": number(benefit.spares_told)}
            )
    else:
        notes.append(_("Spare nodes are taken as eight GPUs each, idle since the year began."))
    if benefit.fee is None:
        notes.append(_("No fee is recorded for this year."))
    elif benefit.net_money is None:
        notes.append(_("The fee cannot be taken off GPU-hours without a price."))
    else:
        notes.append(_("The fee is that of the whole year."))
    return " ".join(notes)


def terms_figure(table: Table) -> Figure:
    """Terms with and without migration, what was estimated in another colour."""
    rows = table.records()
    labels = [code_word("term", row["term"]) for row in rows]
    series = (
        ("wasted_measured_gpu_ms", _("Wasted, measured"), "--bad-fill", "wasted"),
        ("wasted_estimated_gpu_ms", _("Wasted, estimated"), "--warn-fill", "wasted"),
        ("without_measured_gpu_ms", _("Without migration, measured"), "--phase-4", "without"),
        ("without_estimated_gpu_ms", _("Without migration, estimated"), "--phase-3", "without"),
    )
    return figure(
        [
            lying_bars(name, labels, [hours(row[column]) for row in rows], colour, offsetgroup=group)
            for column, name, colour, group in series
        ],
        x={"title": {"text": _("GPU-hours")}},
        y={"autorange": "reversed"},
        height=height_of(len(rows)),
        barmode="stack",
    )


def _benefit(table: Table) -> Figure:
    rows = [row for row in table.records() if row["gpu_ms"] is not None]
    colours = ["--good-fill" if row["gpu_ms"] >= 0 else "--bad-fill" for row in rows]
    labels = [code_word("line", row["line"]) for row in rows]
    bar = lying_bars(_("GPU-hours"), labels, [hours(row["gpu_ms"]) for row in rows], "--good-fill")
    bar["marker"] = {"color": colours}
    return figure(
        [bar], x={"title": {"text": _("GPU-hours")}}, y={"autorange": "reversed"}, height=height_of(len(rows))
    )


def wasted_and_saved(table: Table, key: str) -> Figure:
    """The first rows of a table, wasted beside saved."""
    rows = table.records()[:SHOWN]
    names = [label(str(row[key])) for row in rows]
    return figure(
        [
            bars(_("Wasted"), names, [hours(row["wasted_gpu_ms"]) for row in rows], "--bad-fill"),
            bars(_("Saved"), names, [hours(row["saved_gpu_ms"]) for row in rows], "--good-fill"),
        ],
        x={"type": "category"},
        y={"title": {"text": _("GPU-hours")}},
        barmode="group",
    )

"""A contract year's report: the typed figures, and their text, JSON and CSV forms. JSON names are stable."""

import csv
import dataclasses
import io
import json
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from yoco.core.downloads import cell
from yoco.credits.models import CreditState
from yoco.guarantee.labels import INTERVALS, restatement_because, verdict_sentence


@dataclass(frozen=True, slots=True)
class KindShare:
    """One kind of incident. `counted` and `resolved` are in the ratio; `listed` are outside it, so that planned and
    preventive moves can be seen and cannot flatter the share."""

    counted: int
    resolved: int
    share_floor: str | None
    listed: int
    listed_without_loss: int


@dataclass(frozen=True, slots=True)
class YearSummary:
    """The year's boundaries in UTC. `guaranteed_*` is the part that the guarantee covers."""

    id: str
    number: int
    start: str
    end: str
    state: str
    guaranteed_from: str | None
    guaranteed_until: str | None
    closes_at: str
    partial: bool


@dataclass(frozen=True, slots=True)
class Information:
    """Beside the verdict, never instead of it. Shares in per cent with two decimals; probabilities with four."""

    interval_method: str
    interval_low: str | None
    interval_high: str | None
    bound_low: str | None
    bound_high: str | None
    chance_of_ending_short: str | None


@dataclass(frozen=True, slots=True)
class WasteSums:
    """GPU-seconds as decimal texts, exact to the millisecond. `potential` is never part of `saved`."""

    actual_gpu_seconds: str
    counterfactual_gpu_seconds: str
    saved_gpu_seconds: str
    potential_gpu_seconds: str
    estimated: bool


@dataclass(frozen=True, slots=True)
class StatementRef:
    """The statement whose frozen figures the report repeats."""

    id: str
    revision: int
    sha256: str
    reason: str
    created_at: str


@dataclass(frozen=True, slots=True)
class YearReport:
    """What `guarantee_report` prints. Of a closed year every figure is that of its latest statement."""

    contract: str
    organisation: str
    year: YearSummary
    terms_version: int | None
    threshold: dict[str, int]
    unit: str
    counted: int
    resolved: int
    share_floor: str | None
    verdict: str
    verdict_rule: str
    failures_still_allowed: int
    by_kind: dict[str, KindShare]
    excluded: int
    unaccounted: int
    pending: int
    not_counted: int
    waste: WasteSums
    information: Information
    synthetic: bool
    credit: dict[str, Any] | None
    statement: StatementRef | None
    restatement_due: bool
    as_of: str

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionaries, as the JSON form prints them."""
        return dataclasses.asdict(self)


def report_json(report: YearReport) -> str:
    return json.dumps(report.as_dict(), indent=2, ensure_ascii=False)


def report_csv(report: YearReport) -> str:
    """Two columns, field and value; nested fields are joined by dots."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["field", "value"])
    writer.writerows(_flat("", report.as_dict()))
    return out.getvalue().rstrip("\n")


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        rows = []
        for name, member in value.items():
            rows += _flat(f"{prefix}.{name}" if prefix else name, member)
        return rows
    if isinstance(value, bool):
        value = "true" if value else "false"
    return [(prefix, "" if value is None else cell(value))]


def share_text(counted: int, resolved: int, share: str | None) -> str:
    """The share never stands without "k of n"; a year without failures has no percentage."""
    if share is None:
        return _("no failures")
    return _("%(k)s of %(n)s resolved without loss (%(share)s %%)") % {"k": resolved, "n": counted, "share": share}


def report_text(report: YearReport) -> str:
    """For people at a terminal. A report with invented incidents says so in its first line."""
    title = _("Guarantee report: contract %(contract)s, year %(number)s") % {
        "contract": report.contract,
        "number": report.year.number,
    }
    if report.synthetic:
        title += f" (*{_('synthetic')}*)"
    rows = [*_period_rows(report), *_share_rows(report), *_information_rows(report), *_waste_rows(report)]
    if report.credit is not None:
        rows.append((_("Credit"), credit_words(report.credit)))
    if report.statement is not None:
        statement = report.statement
        rows.append((_("Statement"), _("revision %(n)s") % {"n": statement.revision} + f", sha256 {statement.sha256}"))
        if statement.reason:
            rows.append((_("Restated because"), restatement_because(statement.reason)))
    if report.restatement_due:
        rows.append(("", _("Facts arrived after this statement; a restatement is due.")))
    width = max(len(label) for label, _value in rows) + 2
    return "\n".join([title, "=" * len(title), *(f"{label:<{width}}{value}" for label, value in rows)])


def credit_words(credit: dict[str, Any]) -> str:
    """What became of a credit, with what is left of it. `credit` is that of a report."""
    said = {**credit, "state": str(CreditState(credit["state"]).label).lower()}
    if credit["amount"] is None:
        return _("%(state)s, amount not known yet") % said
    if credit["applied_minor"] and credit["left_minor"]:
        return _("%(amount)s, of which %(applied)s applied, %(left)s left") % said
    if credit["applied_minor"] and credit["state"] == CreditState.APPROVED:
        return _("%(amount)s, applied, 0 left") % said
    if credit["applied_minor"]:
        return _("%(amount)s, of which %(applied)s applied, %(state)s") % said
    if credit["state"] == CreditState.APPROVED:
        return _("%(amount)s, approved, nothing applied yet") % said
    return f"{credit['amount']}, {said['state']}"


def _range(start: str | None, end: str | None) -> str:
    return _("%(start)s to %(end)s") % {"start": start, "end": end}


def _period_rows(report: YearReport) -> list[tuple[str, str]]:
    year = report.year
    rows = [(_("Customer"), report.organisation), (_("Year"), f"{_range(year.start, year.end)} ({year.state})")]
    if year.guaranteed_from is None:
        rows.append((_("Guaranteed"), _("not in this year")))
    elif year.partial:
        rows.append((_("Guaranteed"), _range(year.guaranteed_from, year.guaranteed_until)))
    threshold = f"{report.threshold['num']}/{report.threshold['den']}"
    if report.terms_version is not None:
        version = _("version %(version)s, threshold %(threshold)s")
        rows.append((_("Terms"), version % {"version": report.terms_version, "threshold": threshold}))
    return rows


def _share_rows(report: YearReport) -> list[tuple[str, str]]:
    rows = [
        (_("Verdict"), f"{report.verdict}: {verdict_sentence(report.verdict_rule)}"),
        (_("Share"), share_text(report.counted, report.resolved, report.share_floor)),
        (_("Failures still allowed"), str(report.failures_still_allowed)),
    ]
    num, den = report.threshold["num"], report.threshold["den"]
    if report.counted and report.counted * (den - num) < den:
        rows.append(("", _("With so few failures a single miss falls short.")))
    for kind, share in report.by_kind.items():
        outside = _("outside the ratio: %(listed)s, of these without loss: %(ok)s") % {
            "listed": share.listed,
            "ok": share.listed_without_loss,
        }
        rows.append((f"  {kind}", f"{share_text(share.counted, share.resolved, share.share_floor)}; {outside}"))
    return [
        *rows,
        (_("Pending"), str(report.pending)),
        (_("Unaccounted"), str(report.unaccounted)),
        (_("Excluded"), str(report.excluded)),
        (_("Not counted"), str(report.not_counted)),
    ]


def _information_rows(report: YearReport) -> list[tuple[str, str]]:
    info = report.information
    rows = []
    if info.interval_low is not None:
        label = _("95 %% interval (%(method)s)") % {"method": INTERVALS[info.interval_method]}
        rows.append((label, f"{_range(info.interval_low, info.interval_high)} %"))
    if report.pending and info.bound_low is not None:
        rows.append((_("Bounds while pending"), f"{_range(info.bound_low, info.bound_high)} %"))
    if info.chance_of_ending_short is not None:
        rows.append((_("Chance of ending short"), info.chance_of_ending_short))
    return rows


def _waste_rows(report: YearReport) -> list[tuple[str, str]]:
    waste = report.waste
    estimated = f" ({_('estimated')})" if waste.estimated else ""
    return [
        (_("Waste, GPU-seconds"), waste.actual_gpu_seconds + estimated),
        ("  " + _("without migration"), waste.counterfactual_gpu_seconds + estimated),
        ("  " + _("saved"), waste.saved_gpu_seconds + estimated),
        ("  " + _("prevented, potential"), waste.potential_gpu_seconds + estimated),
    ]

"""The terms as people read them: a label and a value for each field, and what a version changed."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from yoco.contracts.models import ExclusionReason, GuaranteeTerms
from yoco.contracts.selectors import terms_in_force
from yoco.core.templatetags.formats import NOT_RECORDED, day

# Labels by the name of the row; a share, two fields of the model, is one row.
TERMS_LABELS: dict[str, str | Promise] = {
    "threshold": gettext_lazy("Share that must be resolved without loss"),
    "credit_rate": gettext_lazy("Credit if a year falls short"),
    "credit_base": gettext_lazy("What the credit is a share of"),
    "counted_unplanned": gettext_lazy("Unplanned failures count"),
    "counted_preventive": gettext_lazy("Preventive moves count"),
    "counted_planned": gettext_lazy("Planned moves count"),
    "path_failover_counted": gettext_lazy("A network path that heals without a migration counts"),
    "unit": gettext_lazy("What is counted as one"),
    "root_event_window_s": gettext_lazy("Reports belong to one root event within"),
    "relapse_window_minutes": gettext_lazy("A relapse undoes a success within"),
    "late_report_window_days": gettext_lazy("Late reports count after the year for"),
    "open_incident_cutoff": gettext_lazy("An incident still open when the year closes"),
    "unaccounted": gettext_lazy("A workload that went silent"),
    "silence_window_minutes": gettext_lazy("A workload is silent after"),
    "empty_year": gettext_lazy("A year without failures"),
    "partial_year": gettext_lazy("A year guaranteed in part"),
    "exclusions": gettext_lazy("Grounds for an exclusion"),
    "dispute_window_days": gettext_lazy("Objections are open after a statement for"),
    "credit_expiry": gettext_lazy("A credit expires"),
    "credit_expires_on": gettext_lazy("Last day of a credit"),
    "credit_expiry_months": gettext_lazy("Months that a credit lasts after issue"),
    "credit_cap": gettext_lazy("Share of an order that credits may pay"),
    "rounding": gettext_lazy("Rounding of a credit"),
    "leap_day_anniversary": gettext_lazy("Anniversary of a 29 February"),
}
SHARES = ("threshold", "credit_rate", "credit_cap")


@dataclass(frozen=True, slots=True)
class Row:
    """One field of the terms, with its value in words."""

    name: str
    label: str | Promise
    value: str


@dataclass(frozen=True, slots=True)
class Change:
    """What something said before and says now; `before` is empty for something new."""

    label: str | Promise
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a contract's terms, what it changed of the one before it, and where it stands on a day."""

    terms: GuaranteeTerms
    changes: list[Change]
    in_force: bool
    to_come: bool

    @property
    def anchor(self) -> str:
        """Its name within a page."""
        return f"version-{self.terms.version}"


def terms_rows(terms: GuaranteeTerms) -> list[Row]:
    """Every field that says something, in the order of the labels."""
    return [Row(name, label, value) for name, label in TERMS_LABELS.items() if (value := _value(terms, name))]


def terms_changes(before: GuaranteeTerms, after: GuaranteeTerms) -> list[Change]:
    """The fields in which two versions differ."""
    pairs = ((label, _value(before, name), _value(after, name)) for name, label in TERMS_LABELS.items())
    return [Change(label, old or NOT_RECORDED, new or NOT_RECORDED) for label, old, new in pairs if old != new]


def terms_versions(versions: list[GuaranteeTerms], *, today: datetime.date) -> list[Version]:
    """Every version of a contract's terms, the latest first."""
    ordered = sorted(versions, key=lambda terms: terms.version)
    force = terms_in_force(ordered, today)
    return [
        Version(
            terms=terms,
            changes=terms_changes(ordered[place - 1], terms) if place else [],
            in_force=force is not None and terms.pk == force.pk,
            to_come=terms.effective_on > today,
        )
        for place, terms in enumerate(ordered)
    ][::-1]


def _value(terms: GuaranteeTerms, name: str) -> str:
    if name in SHARES:
        num, den = getattr(terms, f"{name}_num"), getattr(terms, f"{name}_den")
        return f"{num}/{den}"
    special = SPECIAL.get(name)
    if special is not None:
        return special(terms)
    shown = getattr(terms, f"get_{name}_display", None)
    return str(shown() if shown else getattr(terms, name))


def _span(name: str, words: Callable[[int], str]) -> Callable[[GuaranteeTerms], str]:
    return lambda terms: words(getattr(terms, name))


def _days(n: int) -> str:
    return ngettext("%(n)s day", "%(n)s days", n) % {"n": n}


def _minutes(n: int) -> str:
    return ngettext("%(n)s minute", "%(n)s minutes", n) % {"n": n}


def _seconds(n: int) -> str:
    return ngettext("%(n)s second", "%(n)s seconds", n) % {"n": n}


def _exclusions(terms: GuaranteeTerms) -> str:
    labels: dict[Any, Any] = dict(ExclusionReason.choices)
    return ", ".join(str(labels.get(reason, reason)) for reason in terms.exclusions) or _("None")


SPECIAL: dict[str, Callable[[GuaranteeTerms], str]] = {
    "path_failover_counted": lambda terms: _("Yes") if terms.path_failover_counted else _("No"),
    "root_event_window_s": _span("root_event_window_s", _seconds),
    "relapse_window_minutes": _span("relapse_window_minutes", _minutes),
    "silence_window_minutes": _span("silence_window_minutes", _minutes),
    "late_report_window_days": _span("late_report_window_days", _days),
    "dispute_window_days": _span("dispute_window_days", _days),
    "exclusions": _exclusions,
    "credit_expires_on": lambda terms: day(terms.credit_expires_on) if terms.credit_expires_on else "",
    "credit_expiry_months": lambda terms: str(terms.credit_expiry_months or ""),
}

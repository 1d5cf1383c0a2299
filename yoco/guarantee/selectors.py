"""Reading the guarantee: a year's report, its export, where an incident stands and why."""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Count, prefetch_related_objects
from django.utils import timezone

from yoco.contracts.models import ContractYear
from yoco.core.days import local_day
from yoco.core.money import Money
from yoco.credits.models import Credit
from yoco.credits.selectors import credit_amount_expected, credit_balance, credit_of_year
from yoco.guarantee.burndown import BudgetDay, BudgetTerms, DayCount, burn_down
from yoco.guarantee.export import export_content, instant
from yoco.guarantee.facts import contract_years, incident_facts, incidents_facts, waste_input
from yoco.guarantee.models import Placement, RestatementDue, Statement
from yoco.guarantee.placements import reviews_decided
from yoco.guarantee.report import Information, KindShare, StatementRef, WasteSums, YearReport, YearSummary
from yoco.guarantee.rules import DEFAULT_TERMS
from yoco.guarantee.tally import report_compute, year_rules, year_verdict, years_sums, years_tally
from yoco.incidents.models import Dispute, Exclusion, Incident
from yoco.waste.model import IncidentWaste, WasteInput, incident_waste

__all__ = [
    "incident_placement",
    "year_burn_down",
    "year_export",
    "year_report",
    "year_rules",
    "year_verdict",
    "years_report",
    "years_tally",
]


def year_report(*, year: ContractYear, as_of: datetime.datetime | None = None) -> YearReport:
    """The report of a contract year: live figures until it is closed, then those of its latest statement.

    `as_of` is the moment at which the rest of the year is looked ahead; now by default.
    """
    return years_report(years=[year], as_of=as_of)[0]


def years_report(*, years: Iterable[ContractYear], as_of: datetime.datetime | None = None) -> list[YearReport]:
    """The reports of several contract years, in their order: one pass over their placements, few queries."""
    now = as_of or timezone.now()
    wanted = [year.pk for year in years]
    found = ContractYear.objects.select_related("contract__organisation").in_bulk(wanted)
    revisions = Statement.objects.filter(year__in=wanted).defer("canonical").order_by("revision")
    statements = {statement.year_id: statement for statement in revisions}
    credited = set(wanted)
    if len(wanted) > 1:
        credited = set(Credit.objects.filter(year__in=wanted).values_list("year_id", flat=True))
    due = set(RestatementDue.objects.filter(pk__in=statements).values_list("pk", flat=True)) if statements else set()
    frozen = {pk for pk, statement in statements.items() if statement.summary is not None}
    live = [year for pk, year in found.items() if pk not in frozen]
    prefetch_related_objects(live, "contract__terms")
    rules = {year.pk: year_rules(year) for year in live}
    sums = years_sums(terms={pk: year.terms or DEFAULT_TERMS for pk, (year, _) in rules.items()}) if rules else {}
    reports = []
    for pk in wanted:
        credit = _credit(found[pk]) if pk in credited else None
        statement = statements.get(pk)
        if statement is not None and statement.summary is not None:
            report = report_of_summary(
                statement.summary, statement=statement_ref(statement), credit=credit, restatement_due=pk in due
            )
        else:
            year, terms = rules[pk]
            report = report_compute(year=found[pk], rules=year, terms=terms, credit=credit, now=now, sums=sums[pk])
        reports.append(report)
    return reports


def year_burn_down(*, year: ContractYear, terms: BudgetTerms, as_of: datetime.datetime) -> list[BudgetDay]:
    """The failures that a contract year still allowed at the end of each of its days that have begun at `as_of`.

    Of the placements as they stand: the last day's are those of `year_report`, unless a restatement is due. One query.
    """
    return burn_down(
        day_counts(year=year),
        first=year.starts_on,
        last=min(year.last_day, as_of.astimezone(ZoneInfo(year.contract.time_zone)).date()),
        terms=terms,
    )


def day_counts(*, year: ContractYear, before: datetime.datetime | None = None) -> list[DayCount]:
    """The units of a year by the local day on which their lead began, of those that began `before`. One query."""
    placed = Placement.objects.filter(year=year, lead=True)
    if before is not None:
        placed = placed.filter(started_at__lt=before)
    zone = year.contract.time_zone
    day = local_day("started_at", time_zone=zone, start=year.starts_at, end=year.ends_at)
    rows = placed.values_list("outcome").annotate(day=day, n=Count("pk")).order_by().values_list("day", "outcome", "n")
    return sorted((DayCount(*row) for row in rows), key=lambda row: (row.day, row.outcome))


def statement_ref(statement: Statement) -> StatementRef:
    """What a report says of the statement that it repeats."""
    return StatementRef(
        id=str(statement.pk),
        revision=statement.revision,
        sha256=statement.sha256,
        reason=statement.reason,
        created_at=str(instant(statement.created_at)),
    )


def report_of_summary(
    summary: dict[str, Any],
    *,
    statement: StatementRef | None,
    credit: dict[str, Any] | None,
    restatement_due: bool,
) -> YearReport:
    """A report from the frozen figures of a statement."""
    return YearReport(
        **{
            **summary,
            "year": YearSummary(**summary["year"]),
            "by_kind": {kind: KindShare(**share) for kind, share in summary["by_kind"].items()},
            "waste": WasteSums(**summary["waste"]),
            "information": Information(**summary["information"]),
            "statement": statement,
            "credit": credit,
            "restatement_due": restatement_due,
        }
    )


def _credit(year: ContractYear) -> dict[str, Any] | None:
    credit = credit_of_year(year_id=year.pk)
    if credit is None:
        return None
    balance = credit_balance(credit=credit)
    minor = balance.granted or credit_amount_expected(credit=credit)
    return {
        "id": str(credit.pk),
        "state": credit.state,
        "amount_minor": minor,
        "currency": credit.currency,
        "amount": str(Money(minor, credit.currency)) if minor is not None else None,
        "applied_minor": balance.applied,
        "applied": str(Money(balance.applied, credit.currency)),
        "left_minor": balance.available,
        "left": str(Money(balance.available, credit.currency)),
    }


@dataclass(frozen=True, slots=True)
class IncidentPlacement:
    """Where an incident stands, with the evidence, and its waste with the inputs of the formula."""

    placement: Placement
    waste: IncidentWaste
    waste_input: WasteInput
    members: list[Placement]


def incident_placement(*, incident: Incident) -> IncidentPlacement | None:
    """The placing of one incident, the members of the unit that it is counted in, and its waste by term.

    None before the incident was placed. The waste shown is that of the incident alone; what overlaps another
    incident of the same job is taken off in the year's sum.
    """
    mine = Placement.objects.filter(pk=incident.pk).values("unit_key")
    members = list(
        Placement.objects.filter(unit_key__in=mine)
        .select_related("incident", "year", "terms")
        .order_by("started_at", "pk")
    )
    placement = next((member for member in members if member.pk == incident.pk), None)
    if placement is None:
        return None
    given = waste_input(incident, incident_facts(incident))
    return IncidentPlacement(placement, incident_waste(given), given, members)


def year_export(*, year: ContractYear) -> dict[str, Any]:
    """Everything to recompute a year's share and verdict: terms, boundaries, the facts of every incident and what
    people decided about it; and what the service claims, to compare: its figures of today, and its latest frozen
    statement, byte for byte. Values are plain JSON."""
    report = year_report(year=year)
    year = ContractYear.objects.select_related("contract__organisation").get(pk=year.pk)
    placements = list(
        Placement.objects.filter(year=year).select_related("incident").order_by("started_at", "incident__public_id")
    )
    ids = {row.incident_id: str(row.incident.public_id) for row in placements}
    exclusions, disputes = _reviews_told(year)
    live = report_compute(year=year, rules=year_rules(year)[0], terms=None, credit=None, now=timezone.now())
    return export_content(
        year_id=str(year.pk),
        years=contract_years(year.contract),
        incidents=incidents_facts(row.incident for row in placements),
        placed={
            ids[row.pk]: {
                "unit": row.unit_key,
                "lead": row.lead,
                "kind": row.kind,
                "outcome": row.outcome,
                "rule": row.rule,
            }
            for row in placements
        },
        reviews={ids[pk]: review for pk, review in reviews_decided(ids).items()},
        claimed={name: value for name, value in live.as_dict().items() if name in CLAIMED},
        statement=_statement_frozen(year),
        about={
            "contract": {
                "number": year.contract.number,
                "organisation": year.contract.organisation.name,
                "currency": year.contract.currency,
                "time_zone": year.contract.time_zone,
            },
            "synthetic": report.synthetic,
            "exclusions": exclusions,
            "disputes": disputes,
            "report": report.as_dict(),
        },
    )


CLAIMED = (
    *("counted", "resolved", "share_floor", "verdict", "failures_still_allowed", "by_kind", "threshold", "unit"),
    *("pending", "unaccounted", "excluded", "not_counted"),
)


def _statement_frozen(year: ContractYear) -> dict[str, Any] | None:
    """The text whose hash the latest statement carries, and whether facts arrived after it."""
    statement = Statement.objects.filter(year=year).order_by("-revision").first()
    if statement is None:
        return None
    return {
        "revision": statement.revision,
        "sha256": statement.sha256,
        "created_at": instant(statement.created_at),
        "restatement_due": RestatementDue.objects.filter(pk=year.pk).exists(),
        "canonical": statement.canonical,
    }


def _reviews_told(year: ContractYear) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Exclusions and disputes of a year's incidents with who, when and why."""
    mine = {"incident__placement__year": year}
    exclusions = Exclusion.objects.filter(**mine).select_related("incident", "proposed_by", "decided_by")
    disputes = Dispute.objects.filter(**mine).select_related("incident", "raised_by", "decided_by")
    return (
        [
            {
                "incident": str(row.incident.public_id),
                "reason": row.reason,
                "note": row.note,
                "proposed_by": str(row.proposed_by),
                "proposed_at": instant(row.proposed_at),
                **_decision(row),
            }
            for row in exclusions.order_by("proposed_at", "pk")
        ],
        [
            {
                "incident": str(row.incident.public_id),
                "text": row.text,
                "against": {"outcome": row.against_outcome, "rule": row.against_rule},
                "raised_by": str(row.raised_by),
                "raised_at": instant(row.raised_at),
                **_decision(row),
            }
            for row in disputes.order_by("raised_at", "pk")
        ],
    )


def _decision(row: Exclusion | Dispute) -> dict[str, Any]:
    return {
        "state": row.state,
        "decided_by": str(row.decided_by) if row.decided_by else None,
        "decided_at": instant(row.decided_at),
        "decision_note": row.decision_note,
    }

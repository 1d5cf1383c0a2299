"""Reading the guarantee: a year's report, its export, where an incident stands and why."""

import datetime
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any

from django.db.models import Count, Q, Sum
from django.utils import timezone

from yoco.contracts.models import ContractYear, GuaranteeTerms
from yoco.core.money import Money
from yoco.credits.selectors import credit_amount_expected, credit_of_year
from yoco.guarantee import statistics
from yoco.guarantee.facts import incident_facts, milliseconds, waste_input, year_facts
from yoco.guarantee.models import Placement, RestatementDue, Statement
from yoco.guarantee.report import (
    Information,
    KindShare,
    StatementRef,
    WasteSums,
    YearReport,
    YearSummary,
)
from yoco.guarantee.rules import (
    DEFAULT_TERMS,
    Tally,
    Terms,
    Verdict,
    Year,
    failures_still_allowed,
    share_bounds,
    share_floor,
    verdict,
)
from yoco.incidents.models import Incident, Kind
from yoco.waste.model import IncidentWaste, WasteInput, gpu_seconds, incident_waste


def year_report(*, year: ContractYear, as_of: datetime.datetime | None = None) -> YearReport:
    """The report of a contract year: live figures until it is closed, then those of its latest statement.

    `as_of` is the moment at which the rest of the year is looked ahead; now by default.
    """
    now = as_of or timezone.now()
    year = ContractYear.objects.select_related("contract__organisation").get(pk=year.pk)
    statement = Statement.objects.filter(year=year).defer("canonical").order_by("-revision").first()
    credit = _credit(year)
    if statement is not None and statement.summary is not None:
        return report_of_summary(
            statement.summary,
            statement=statement_ref(statement),
            credit=credit,
            restatement_due=RestatementDue.objects.filter(year=year).exists(),
        )
    rules, terms = year_rules(year)
    return report_compute(year=year, rules=rules, terms=terms, credit=credit, now=now)


def year_rules(year: ContractYear) -> tuple[Year, GuaranteeTerms | None]:
    """A year as the rules see it, and the version of the terms that it is judged under."""
    versions = list(year.contract.terms.all())
    rules = year_facts(year, contract=year.contract, versions=versions)
    version = rules.terms.version if rules.terms else None
    return rules, next((terms for terms in versions if terms.version == version), None)


@dataclass(frozen=True, slots=True)
class Sums:
    """What one pass over a year's placements gives."""

    tally: Tally
    by_kind: dict[str, KindShare]
    actual_ms: int
    counterfactual_ms: int
    potential_ms: int
    estimated: bool
    synthetic: bool


def year_sums(*, year_id: uuid.UUID, terms: Terms) -> Sums:
    """Counts units by their leads and adds up waste over all placements of a year: one query, one index."""
    rows: list[Any] = list(
        Placement.objects.filter(year_id=year_id)
        .values("lead", "outcome", "kind", "without_loss")
        .annotate(
            n=Count("pk"),
            actual=Sum("waste_actual_ms"),
            counterfactual=Sum("waste_counterfactual_ms"),
            potential=Sum("waste_potential_ms"),
            estimates=Count("pk", filter=Q(waste_estimated=True)),
            synthetics=Count("pk", filter=Q(synthetic=True)),
        )
        .order_by()
    )
    counts: dict[str, int] = {}
    for row in rows:
        if row["lead"]:
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + row["n"]
    return Sums(
        tally=Tally(**counts),
        by_kind={kind: _kind_share(kind, rows, terms) for kind in Kind.values},
        actual_ms=int(sum(row["actual"] for row in rows)),
        counterfactual_ms=int(sum(row["counterfactual"] for row in rows)),
        potential_ms=int(sum(row["potential"] for row in rows)),
        estimated=any(row["estimates"] for row in rows),
        synthetic=any(row["synthetics"] for row in rows),
    )


def years_tally(*, years: Iterable[ContractYear]) -> dict[uuid.UUID, Tally]:
    """The units of several years by outcome, in one query over the tally's index: what a portfolio needs."""
    counts: dict[uuid.UUID, dict[str, int]] = {year.pk: {} for year in years}
    rows = Placement.objects.filter(year__in=list(counts), lead=True).values_list("year_id", "outcome")
    for year_id, outcome, n in rows.annotate(n=Count("pk")).order_by():
        counts[year_id][outcome] = n
    return {year_id: Tally(**found) for year_id, found in counts.items()}


def _kind_share(kind: str, rows: list[Any], terms: Terms) -> KindShare:
    counted_outcomes = {"resolved", "not_resolved"}
    if terms.unaccounted == "not_resolved":
        counted_outcomes.add("unaccounted")
    mine = [row for row in rows if row["kind"] == kind and row["lead"]]
    counted = sum(row["n"] for row in mine if row["outcome"] in counted_outcomes)
    resolved = sum(row["n"] for row in mine if row["outcome"] == "resolved")
    listed = [row for row in mine if row["outcome"] not in counted_outcomes | {"pending"}]
    return KindShare(
        counted=counted,
        resolved=resolved,
        share_floor=share_floor(resolved, counted),
        listed=sum(row["n"] for row in listed),
        listed_without_loss=sum(row["n"] for row in listed if row["without_loss"]),
    )


def report_compute(
    *,
    year: ContractYear,
    rules: Year,
    terms: GuaranteeTerms | None,
    credit: dict[str, Any] | None,
    now: datetime.datetime,
) -> YearReport:
    """The report from the placements as they stand."""
    rule_terms = rules.terms or DEFAULT_TERMS
    sums = year_sums(year_id=year.pk, terms=rule_terms)
    counts = sums.tally
    n, k = counts.n(rule_terms), counts.k
    decided = year_verdict(counts, rules)
    return YearReport(
        contract=year.contract.number,
        organisation=year.contract.organisation.name,
        year=_summary(year, rules),
        terms_version=terms.version if terms else None,
        threshold={"num": rule_terms.threshold_num, "den": rule_terms.threshold_den},
        unit=rule_terms.unit,
        counted=n,
        resolved=k,
        share_floor=share_floor(k, n),
        verdict=decided.name,
        verdict_rule=decided.rule,
        failures_still_allowed=failures_still_allowed(k, n, rule_terms.threshold_num, rule_terms.threshold_den),
        by_kind=sums.by_kind,
        excluded=counts.excluded,
        unaccounted=counts.unaccounted,
        pending=counts.pending,
        not_counted=counts.not_counted,
        waste=WasteSums(
            actual_gpu_seconds=gpu_seconds(sums.actual_ms),
            counterfactual_gpu_seconds=gpu_seconds(sums.counterfactual_ms),
            saved_gpu_seconds=gpu_seconds(sums.counterfactual_ms - sums.actual_ms),
            potential_gpu_seconds=gpu_seconds(sums.potential_ms),
            estimated=sums.estimated,
        ),
        information=information(counts, rules, now),
        synthetic=sums.synthetic,
        credit=credit,
        statement=None,
        restatement_due=False,
        as_of=_instant(now),
    )


def year_verdict(counts: Tally, rules: Year) -> Verdict:
    """The verdict of a year; a year without guarantee has none."""
    if rules.terms is None or rules.guaranteed_from is None:
        return Verdict("undecided", "no_guarantee")
    return verdict(counts, rules.terms, partial=rules.partial)


def information(
    counts: Tally, rules: Year, now: datetime.datetime, method: statistics.Method = "wilson"
) -> Information:
    """The figures beside the verdict; the chance of ending short only while part of the guaranteed year is to come."""
    terms = rules.terms or DEFAULT_TERMS
    n, k = counts.n(terms), counts.k
    low, high = statistics.interval(method, k, n)
    bounds = share_bounds(counts, terms)
    chance = None
    start, end = rules.guaranteed_from, rules.guaranteed_until
    if n and start is not None and end is not None and start < now < end:
        to_come = statistics.failures_to_come(n, milliseconds(start, now) or 0, milliseconds(now, end) or 0)
        chance = 1 - statistics.chance_of_meeting(k, n, to_come, terms.threshold_num, terms.threshold_den)
    return Information(
        interval_method=method,
        interval_low=_percent(Decimal(low), ROUND_FLOOR) if n else None,
        interval_high=_percent(Decimal(high), ROUND_CEILING) if n else None,
        bound_low=_percent(_decimal(bounds[0]), ROUND_FLOOR) if bounds else None,
        bound_high=_percent(_decimal(bounds[1]), ROUND_FLOOR) if bounds else None,
        chance_of_ending_short=f"{chance:.4f}" if chance is not None else None,
    )


def _decimal(share: Fraction) -> Decimal:
    return Decimal(share.numerator) / Decimal(share.denominator)


def _percent(share: Decimal, rounding: str) -> str:
    return str((share * 100).quantize(Decimal("0.01"), rounding=rounding))


def _instant(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")


def _summary(year: ContractYear, rules: Year) -> YearSummary:
    return YearSummary(
        id=str(year.pk),
        number=year.number,
        start=_instant(year.starts_at),
        end=_instant(year.ends_at),
        state=year.state,
        guaranteed_from=_instant(year.guaranteed_from) if year.guaranteed_from else None,
        guaranteed_until=_instant(year.guaranteed_until) if year.guaranteed_until else None,
        closes_at=_instant(rules.closes_at),
        partial=rules.partial,
    )


def statement_ref(statement: Statement) -> StatementRef:
    """What a report says of the statement that it repeats."""
    return StatementRef(
        id=str(statement.pk),
        revision=statement.revision,
        sha256=statement.sha256,
        reason=statement.reason,
        created_at=_instant(statement.created_at),
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
    minor = credit_amount_expected(credit=credit)
    return {
        "id": str(credit.pk),
        "state": credit.state,
        "amount_minor": minor,
        "currency": credit.currency,
        "amount": str(Money(minor, credit.currency)) if minor is not None else None,
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
    placement = Placement.objects.select_related("year", "terms").filter(pk=incident.pk).first()
    if placement is None:
        return None
    members = list(
        Placement.objects.filter(unit_key=placement.unit_key).select_related("incident").order_by("started_at", "pk")
    )
    given = waste_input(incident, incident_facts(incident))
    return IncidentPlacement(placement, incident_waste(given), given, members)

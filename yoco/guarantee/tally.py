"""Counting a contract year: one pass over its placements, and the report that follows from it."""

import datetime
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any

from django.db import connection
from django.db.models import Count, F, Q, Sum

from yoco.contracts.models import ContractYear, GuaranteeTerms
from yoco.guarantee import statistics
from yoco.guarantee.export import instant
from yoco.guarantee.facts import milliseconds, year_facts
from yoco.guarantee.models import Placement
from yoco.guarantee.report import Information, KindShare, WasteSums, YearReport, YearSummary
from yoco.guarantee.rules import (
    DEFAULT_TERMS,
    Tally,
    Terms,
    Verdict,
    Year,
    counted_outcomes,
    failures_still_allowed,
    share_bounds,
    share_floor,
    verdict,
)
from yoco.incidents.models import Kind
from yoco.waste.model import gpu_seconds


def year_rules(year: ContractYear) -> tuple[Year, GuaranteeTerms | None]:
    """A year as the rules see it, and the version of the terms that it is judged under."""
    versions = list(year.contract.terms.all())
    rules = year_facts(year, contract=year.contract, versions=versions)
    version = rules.terms.version if rules.terms else None
    return rules, next((terms for terms in versions if terms.version == version), None)


HALF = 2**32


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


def years_sums(*, terms: Mapping[uuid.UUID, Terms], before: datetime.datetime | None = None) -> dict[uuid.UUID, Sums]:
    """Counts units by their leads and adds up waste over all placements of these years, given each year's terms.

    One query, answered from the tally's index alone: nothing but its columns may be named here. With `before`, which
    that index lacks, only of what began earlier.
    """
    placed = Placement.objects.filter(year__in=list(terms))
    if before is not None:
        placed = placed.filter(started_at__lt=before)
    found: list[Any] = list(
        placed.values("year_id", "lead", "outcome", "kind", "without_loss")
        .annotate(
            n=Count("lead"),
            **_parts("waste_actual_ms"),
            **_parts("waste_counterfactual_ms"),
            **_parts("waste_potential_ms"),
            estimates=Count("lead", filter=Q(waste_estimated=True)),
            synthetics=Count("lead", filter=Q(synthetic=True)),
        )
        .order_by()
    )
    by_year: dict[uuid.UUID, list[Any]] = {year_id: [] for year_id in terms}
    for row in found:
        by_year[row["year_id"]].append(row)
    return {year_id: _sums(rows, terms[year_id]) for year_id, rows in by_year.items()}


def _sums(rows: list[Any], terms: Terms) -> Sums:
    counts: dict[str, int] = {}
    for row in rows:
        if row["lead"]:
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + row["n"]
    return Sums(
        tally=Tally(**counts),
        by_kind={kind: _kind_share(kind, rows, terms) for kind in Kind.values},
        actual_ms=_total(rows, "waste_actual_ms"),
        counterfactual_ms=_total(rows, "waste_counterfactual_ms"),
        potential_ms=_total(rows, "waste_potential_ms"),
        estimated=any(row["estimates"] for row in rows),
        synthetic=any(row["synthetics"] for row in rows),
    )


def _parts(name: str) -> dict[str, Sum]:
    """The sum of a column; on SQLite, where a sum beyond 64 bits is an error, the sums of its two halves.

    Else a few absurd reports would keep their year from ever being closed.
    """
    if connection.vendor == "sqlite":
        return {f"{name}_high": Sum(F(name) / HALF), f"{name}_low": Sum(F(name) % HALF)}
    return {f"{name}_low": Sum(name)}


def _total(rows: list[Any], name: str) -> int:
    return sum(int(row.get(f"{name}_high", 0)) * HALF + int(row[f"{name}_low"]) for row in rows)


def years_tally(*, years: Iterable[ContractYear]) -> dict[uuid.UUID, Tally]:
    """The units of several years by outcome, in one query over the tally's index: what a portfolio needs."""
    counts: dict[uuid.UUID, dict[str, int]] = {year.pk: {} for year in years}
    rows = Placement.objects.filter(year__in=list(counts), lead=True).values_list("year_id", "outcome")
    for year_id, outcome, n in rows.annotate(n=Count("lead")).order_by():
        counts[year_id][outcome] = n
    return {year_id: Tally(**found) for year_id, found in counts.items()}


def years_synthetic(*, year_ids: Iterable[uuid.UUID]) -> set[uuid.UUID]:
    """Those of the years in which an incident was invented, for demonstration."""
    placed = Placement.objects.filter(year__in=list(year_ids), synthetic=True)
    return set(placed.order_by().values_list("year_id", flat=True).distinct())


def years_size(*, year_ids: Iterable[uuid.UUID]) -> tuple[int, bool]:
    """How many incidents lie in these years, and whether one was invented. One query, over the tally's index alone."""
    placed = Placement.objects.filter(year__in=list(year_ids))
    found = placed.aggregate(n=Count("lead"), synthetic=Count("lead", filter=Q(synthetic=True)))
    return found["n"], found["synthetic"] > 0


def _kind_share(kind: str, rows: list[Any], terms: Terms) -> KindShare:
    in_ratio = counted_outcomes(terms)
    mine = [row for row in rows if row["kind"] == kind and row["lead"]]
    counted = sum(row["n"] for row in mine if row["outcome"] in in_ratio)
    resolved = sum(row["n"] for row in mine if row["outcome"] == "resolved")
    listed = [row for row in mine if row["outcome"] not in in_ratio | {"pending"}]
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
    sums: Sums | None = None,
) -> YearReport:
    """The report from the placements as they stand; `sums` spares a query where they are known."""
    rule_terms = rules.terms or DEFAULT_TERMS
    sums = sums or years_sums(terms={year.pk: rule_terms})[year.pk]
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
        as_of=str(instant(now)),
    )


def year_verdict(counts: Tally, rules: Year) -> Verdict:
    """The verdict of a year; a year without guarantee has none."""
    if rules.terms is None or rules.guaranteed_from is None:
        return Verdict("undecided", "no_guarantee")
    return verdict(counts, rules.terms, partial=rules.partial)


def information(counts: Tally, rules: Year, now: datetime.datetime) -> Information:
    """The figures beside the verdict; the chance of ending short only while part of the guaranteed year is to come."""
    terms = rules.terms or DEFAULT_TERMS
    n, k = counts.n(terms), counts.k
    low, high = _interval("wilson", k, n)
    bounds = share_bounds(counts, terms)
    chance = None
    start, end = rules.guaranteed_from, rules.guaranteed_until
    if n and start is not None and end is not None and start < now < end:
        so_far, to_come = milliseconds(start, now) or 0, milliseconds(now, end) or 0
        chance = statistics.chance_of_ending_short(k, n, so_far, to_come, terms.threshold_num, terms.threshold_den)
    return Information(
        interval_method="wilson",
        interval_low=low,
        interval_high=high,
        bound_low=_percent(_decimal(bounds[0]), ROUND_FLOOR) if bounds else None,
        bound_high=_percent(_decimal(bounds[1]), ROUND_FLOOR) if bounds else None,
        chance_of_ending_short=f"{chance:.4f}" if chance is not None else None,
    )


def report_with_interval(report: YearReport, method: str) -> YearReport:
    """The same report with the interval by another method. Raises KeyError for an unknown one."""
    low, high = _interval(method, report.resolved, report.counted)
    beside = replace(report.information, interval_method=method, interval_low=low, interval_high=high)
    return replace(report, information=beside)


def _interval(method: str, k: int, n: int) -> tuple[str | None, str | None]:
    """The ends in per cent, rounded outwards; None without any failure."""
    low, high = statistics.METHODS[method](k, n)
    if not n:
        return None, None
    return _percent(Decimal(low), ROUND_FLOOR), _percent(Decimal(high), ROUND_CEILING)


def _decimal(share: Fraction) -> Decimal:
    return Decimal(share.numerator) / Decimal(share.denominator)


def _percent(share: Decimal, rounding: str) -> str:
    return str((share * 100).quantize(Decimal("0.01"), rounding=rounding))


def _summary(year: ContractYear, rules: Year) -> YearSummary:
    return YearSummary(
        id=str(year.pk),
        number=year.number,
        start=str(instant(year.starts_at)),
        end=str(instant(year.ends_at)),
        state=year.state,
        guaranteed_from=instant(year.guaranteed_from),
        guaranteed_until=instant(year.guaranteed_until),
        closes_at=str(instant(rules.closes_at)),
        partial=rules.partial,
    )

"""Freezing a contract month: the year's figures up to its end, and what changed since the month before.

A snapshot is frozen as a statement is, by the same code, but says nothing of the verdict, which only a statement does.
Its text names each incident once: in the snapshot of its month, and again in later ones where it stands otherwise.
"""

import dataclasses
import datetime
import json
import logging
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F, Max, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from yoco.contracts.calendar import year_months
from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import ContractYear, GuaranteeTerms
from yoco.core.audit import audit_record
from yoco.core.clock import local_midnight
from yoco.guarantee.burndown import DayCount
from yoco.guarantee.export import instant
from yoco.guarantee.models import Placement, Snapshot
from yoco.guarantee.report import YearReport
from yoco.guarantee.rules import DEFAULT_TERMS, Year
from yoco.guarantee.selectors import day_counts, report_of_summary
from yoco.guarantee.statements import canonical_json, contract_json, incident_rows, sha256_of, summary_json, terms_json
from yoco.guarantee.tally import report_compute, year_rules, years_sums
from yoco.incidents.models import Dispute

log = logging.getLogger(__name__)

FORMAT = "yoco.snapshot/1"
VERDICT = {"verdict", "verdict_rule"}  # only a statement has one
LATE_AFTER = datetime.timedelta(hours=1)
SHORTEST_MONTH = datetime.timedelta(days=27)  # less than any month is, whatever its clocks do
AT_ONCE = 50  # of one sweep; the next goes on
Row = dict[str, Any]


def snapshots_make(*, as_of: datetime.datetime) -> list[Snapshot]:
    """Freezes the months of guaranteed years that have ended at `as_of` and have no snapshot, each year's in order.

    Each is one transaction that looks again under the contract's lock, so that nothing is made twice, however often
    this runs and however long nothing did. If a year fails, the others still get theirs; the failures are raised.
    """
    made: list[Snapshot] = []
    failures: list[Exception] = []
    for year_id in _years_due(as_of):
        try:
            while len(made) < AT_ONCE and (snapshot := _next_make(year_id, as_of)):
                made.append(snapshot)
        except Exception as error:
            log.exception("A month of contract year %s could not be frozen", year_id)
            failures.append(error)
    if failures:
        raise ExceptionGroup("Some contract months could not be frozen", failures)
    return made


@dataclass(frozen=True, slots=True)
class Month:
    """A month of a contract year, from 1; `ends_on` is the first day after it."""

    number: int
    starts_on: datetime.date
    ends_on: datetime.date
    ends_at: datetime.datetime


def month_due(year: ContractYear, *, made: int, as_of: datetime.datetime) -> Month | None:
    """The first month of a year after its month `made` that has ended at `as_of`; none before the guarantee began."""
    for number, (starts_on, ends_on) in enumerate(year_months(year.starts_on, year.ends_on), start=1):
        ends_at = local_midnight(ends_on, year.contract.time_zone)
        if number > made and year.guaranteed_from is not None and ends_at > year.guaranteed_from:
            return Month(number, starts_on, ends_on, ends_at) if ends_at <= as_of else None
    return None


def _years_due(as_of: datetime.datetime) -> list[uuid.UUID]:
    """Years that have a month to freeze; the database leaves out those in which none can have ended."""
    years = ContractYear.objects.filter(guaranteed_from__lt=as_of).select_related("contract")
    years = years.annotate(last=Coalesce(Max("snapshots__ends_at"), F("starts_at")), made=Max("snapshots__number"))
    can_be = years.filter(Q(last__lte=as_of - SHORTEST_MONTH) | Q(ends_at__lte=as_of), last__lt=F("ends_at"))
    return [year.pk for year in can_be.order_by("last", "pk") if month_due(year, made=year.made or 0, as_of=as_of)]


@transaction.atomic
def _next_make(year_id: uuid.UUID, as_of: datetime.datetime) -> Snapshot | None:
    """The earliest month of a year that is due, frozen; None if there is none, or no terms to judge it by."""
    contracts_lock([ContractYear.objects.values_list("contract_id", flat=True).get(pk=year_id)])
    year = ContractYear.objects.select_related("contract__organisation").get(pk=year_id)
    previous = Snapshot.objects.filter(year=year).order_by("-number").defer("canonical").first()
    month = month_due(year, made=previous.number if previous else 0, as_of=as_of)
    rules, terms = year_rules(year)
    if month is None or terms is None:
        return None
    return _write(year, month, previous, rules, terms)


def _write(year: ContractYear, month: Month, previous: Snapshot | None, rules: Year, terms: GuaranteeTerms) -> Snapshot:
    now = timezone.now()
    late = now - month.ends_at > LATE_AFTER
    sums = years_sums(terms={year.pk: rules.terms or DEFAULT_TERMS}, before=month.ends_at)[year.pk]
    report = report_compute(year=year, rules=rules, terms=terms, credit=None, now=month.ends_at, sums=sums)
    summary = {name: value for name, value in summary_json(report).items() if name not in VERDICT}
    frozen = Snapshot.objects.filter(year=year).order_by("number").values_list("canonical", flat=True)
    incidents, removed = rows_changed(
        rows_frozen(frozen.iterator()),
        incident_rows(Placement.objects.filter(year=year, started_at__lt=month.ends_at)),
        since=previous.ends_at if previous else None,
    )
    canonical = canonical_json(
        {
            "format": FORMAT,
            "contract": contract_json(year.contract),
            "month": {
                "number": month.number,
                "starts_on": month.starts_on.isoformat(),
                "ends_on": month.ends_on.isoformat(),
                "ends_at": instant(month.ends_at),
            },
            "made_at": instant(now),
            "late": late,
            "previous_sha256": previous.sha256 if previous else None,
            "terms": terms_json(terms),
            "report": summary,
            "days": [[row.day.isoformat(), row.outcome, row.n] for row in day_counts(year=year, before=month.ends_at)],
            "incidents": incidents,
            "removed": removed,
            "disputes": list(_disputes(year, since=previous.created_at if previous else year.starts_at, until=now)),
        }
    )
    snapshot = Snapshot.objects.create(
        year=year,
        **dataclasses.asdict(month),
        late=late,
        terms=terms,
        counted=report.counted,
        resolved=report.resolved,
        sha256=sha256_of(canonical),
        canonical=canonical,
        summary=summary,
        created_at=now,
    )
    audit_record(
        action="snapshot.created",
        actor=None,
        subject=snapshot,
        organisation_id=year.contract.organisation_id,
        data={"year": str(year.pk), "month": month.number, "sha256": snapshot.sha256, "late": late},
    )
    return snapshot


def rows_frozen(earlier: Iterable[str]) -> dict[str, Row]:
    """How each incident stood after the last of these texts, which are those of all snapshots of a year up to it."""
    stood: dict[str, Row] = {}
    for text in earlier:
        rows_follow(stood, json.loads(text))
    return stood


def rows_follow(stood: dict[str, Row], content: Row) -> None:
    """Brings `stood` from the snapshot before to the one of this content."""
    for row in content["incidents"]:
        stood[row["id"]] = {name: value for name, value in row.items() if name not in CHANGE_FIELDS}
    for row in content["removed"]:
        stood.pop(row["id"], None)


CHANGE_FIELDS = {"change", "outcome_before", "rule_before"}


def rows_changed(
    before: dict[str, Row], now: Iterable[Row], *, since: datetime.datetime | None
) -> tuple[list[Row], list[Row]]:
    """Of the incidents as they stand, those that are new or stand otherwise than `before`, each with what changed;
    and those that are gone, because they belong to another year now. `since` is the end of the month before."""
    gone = dict(before)
    changed = []
    for row in now:
        old = gone.pop(row["id"], None)
        if old != row:
            changed.append(
                {
                    **row,
                    "change": change_of(old, row, since=since),
                    "outcome_before": old["outcome"] if old else None,
                    "rule_before": old["rule"] if old else None,
                }
            )
    removed = [
        {"id": row["id"], "started_at": row["started_at"], "outcome_before": row["outcome"], "rule_before": row["rule"]}
        for row in gone.values()
    ]
    return changed, removed


def change_of(old: Row | None, new: Row, *, since: datetime.datetime | None) -> str:
    """A stable code of why an incident is named; the first that applies. `guarantee.labels.CHANGES` has the words."""
    if old is None:
        began = datetime.datetime.fromisoformat(new["started_at"])
        return "late_report" if since is not None and began < since else "new"
    if new["rule"] != old["rule"] and new["rule"] in ("dispute_upheld", "explained"):
        return str(new["rule"])
    if new["outcome"] != old["outcome"]:
        if new["outcome"] == "excluded":
            return "excluded"
        if old["outcome"] == "excluded":
            return "exclusion_withdrawn"
        if old["outcome"] == "pending":
            return "decided"
    if (new["unit"], new["lead"]) != (old["unit"], old["lead"]):
        return "regrouped"
    return "amended" if new["revision"] != old["revision"] else "placed_anew"


def _disputes(year: ContractYear, *, since: datetime.datetime, until: datetime.datetime) -> Iterator[Row]:
    """The objections that were raised or decided in between, as they stand."""
    raised = Q(raised_at__gt=since, raised_at__lte=until) | Q(decided_at__gt=since, decided_at__lte=until)
    rows = Dispute.objects.filter(raised, incident__placement__year=year).select_related("incident")
    for row in rows.order_by("raised_at", "pk"):
        yield {
            "incident": str(row.incident.public_id),
            "state": row.state,
            "raised_at": instant(row.raised_at),
            "decided_at": instant(row.decided_at),
        }


def snapshot_report(snapshot: Snapshot) -> YearReport:
    """The figures that a snapshot froze. Their verdict is `undecided`, whatever they are: a snapshot has none."""
    summary = {**snapshot.summary, "verdict": "undecided", "verdict_rule": ""}
    return report_of_summary(summary, statement=None, credit=None, restatement_due=False)


def snapshot_days(content: dict[str, Any]) -> list[DayCount]:
    """The units by day that a snapshot's canonical JSON counts."""
    return [DayCount(datetime.date.fromisoformat(day), outcome, n) for day, outcome, n in content["days"]]

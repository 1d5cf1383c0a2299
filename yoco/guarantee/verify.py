"""Proves statements and monthly snapshots: each hash is that of its text, and text, columns and chain agree."""

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, QuerySet, Subquery

from yoco.contracts.models import ContractYear, YearState
from yoco.credits.models import Credit, CreditState
from yoco.guarantee.models import Snapshot, Statement
from yoco.guarantee.rules import commitment_met
from yoco.guarantee.snapshots import rows_follow
from yoco.guarantee.statements import canonical_json, sha256_of, terms_json


@dataclass(frozen=True, slots=True)
class BrokenStatement:
    """A row that does not hold, and why. `row` names table and key."""

    row: str
    reason: str

    def __str__(self) -> str:
        return f"{self.row}: {self.reason}"


def statements_verify(
    *, contract_id: uuid.UUID | None = None, year_id: uuid.UUID | None = None
) -> list[BrokenStatement]:
    """Every broken statement of one contract or year, or of all, in the order of year and revision. Reads only."""
    statements = Statement.objects.select_related("terms").order_by("year__contract", "year__number", "revision")
    years = ContractYear.objects.filter(state=YearState.CLOSED, guaranteed_from__isnull=False)
    if contract_id is not None:
        statements = statements.filter(year__contract=contract_id)
        years = years.filter(contract=contract_id)
    if year_id is not None:
        statements, years = statements.filter(year=year_id), years.filter(pk=year_id)
    broken = [
        BrokenStatement(f"contracts_contractyear {pk}", "is closed without a statement")
        for pk in years.filter(statements=None).order_by("pk").values_list("pk", flat=True)
    ]
    broken += [
        BrokenStatement(f"contracts_contractyear {pk}", "fell short by its latest statement and has no live credit")
        for pk in _uncredited(years)
    ]
    previous: Statement | None = None
    for statement in statements.iterator(chunk_size=50):
        before = previous if previous is not None and previous.year_id == statement.year_id else None
        broken += [
            BrokenStatement(f"guarantee_statement {statement.pk}", reason) for reason in _faults(statement, before)
        ]
        broken += [
            BrokenStatement(f"contracts_guaranteeterms {statement.terms_id}", reason)
            for reason in _terms_changed(statement)
        ]
        previous = statement
    return broken


def _uncredited(years: QuerySet[ContractYear]) -> QuerySet[ContractYear, uuid.UUID]:
    """The years of which the latest statement says `short` although no credit stands."""
    latest = Statement.objects.filter(year=OuterRef("pk")).order_by("-revision").values("verdict")[:1]
    live = Credit.objects.filter(year=OuterRef("pk")).exclude(state=CreditState.REVERSED)
    short = years.annotate(latest=Subquery(latest)).filter(~Exists(live), latest="short")
    return short.order_by("pk").values_list("pk", flat=True)


def _faults(statement: Statement, before: Statement | None) -> Iterator[str]:
    if sha256_of(statement.canonical) != statement.sha256:
        yield "its hash is not that of its text"
        return
    try:
        content = json.loads(statement.canonical)
        report, incidents = content["report"], content["incidents"]
    except (ValueError, KeyError, TypeError):
        yield "its text is no statement"
        return
    if canonical_json(content) != statement.canonical:
        yield "its text is not canonical"
    if report != statement.summary:
        yield "its summary differs from its text"
    columns = (statement.counted, statement.resolved, statement.verdict, statement.revision, statement.terms.version)
    text = (report["counted"], report["resolved"], report["verdict"], content["revision"], content["terms"]["version"])
    if columns != text:
        yield "its columns differ from its text"
    if statement.revision != (before.revision + 1 if before else 1):
        yield "a revision before it is missing"
    if content["previous_sha256"] != (before.sha256 if before else None):
        yield "it does not follow from the revision before it"
    if statement.revision > 1 and not statement.reason:
        yield "it is a restatement without a reason"
    yield from _miscounted(content["terms"], report, incidents)


def _terms_changed(statement: Statement) -> Iterator[str]:
    """Fields of the terms that are no longer what the statement froze. A text that is no statement is named above."""
    try:
        frozen = dict(json.loads(statement.canonical)["terms"])
    except (ValueError, KeyError, TypeError):
        return
    for name, value in terms_json(statement.terms).items():
        if name not in frozen:
            continue  # a field that terms did not have yet
        if frozen[name] != value:
            yield f"its {name} is {value}, but statement {statement.pk} froze {frozen[name]}"


def snapshots_verify(*, contract_id: uuid.UUID | None = None) -> list[BrokenStatement]:
    """Every broken monthly snapshot of one contract, or of all, in the order of year and month. Reads only."""
    snapshots = Snapshot.objects.select_related("terms").order_by("year__contract", "year__number", "number")
    if contract_id is not None:
        snapshots = snapshots.filter(year__contract=contract_id)
    broken = []
    previous: Snapshot | None = None
    stood: dict[str, dict[str, object]] = {}
    for snapshot in snapshots.iterator(chunk_size=20):
        if previous is None or previous.year_id != snapshot.year_id:
            previous, stood = None, {}
        broken += [
            BrokenStatement(f"guarantee_snapshot {snapshot.pk}", reason)
            for reason in _snapshot_faults(snapshot, previous, stood)
        ]
        previous = snapshot
    return broken


def _snapshot_faults(snapshot: Snapshot, before: Snapshot | None, stood: dict[str, dict[str, object]]) -> Iterator[str]:
    """`stood` are the incidents after the snapshot before, and afterwards those after this one."""
    if sha256_of(snapshot.canonical) != snapshot.sha256:
        yield "its hash is not that of its text"
        return
    try:
        content = json.loads(snapshot.canonical)
        report, month, terms = content["report"], content["month"], content["terms"]
        rows_follow(stood, content)
    except (ValueError, KeyError, TypeError):
        yield "its text is no snapshot"
        return
    if report != snapshot.summary:
        yield "its summary differs from its text"
    columns = (snapshot.counted, snapshot.resolved, snapshot.number, snapshot.late, snapshot.terms.version)
    text = (report["counted"], report["resolved"], month["number"], content["late"], terms["version"])
    if (*columns, str(snapshot.starts_on), str(snapshot.ends_on)) != (*text, month["starts_on"], month["ends_on"]):
        yield "its columns differ from its text"
    if content["previous_sha256"] != (before.sha256 if before else None):
        yield "it does not follow from the snapshot before it"
    if before is not None and snapshot.number != before.number + 1:
        yield "a month before it is missing"
    if _k_of_n(terms, stood.values()) != (report["resolved"], report["counted"]):
        yield "its incidents and those before it do not add up to its k of n"


def _k_of_n(terms: dict[str, object], incidents: Iterable[dict[str, object]]) -> tuple[int, int]:
    """The sums of frozen rows: units that were resolved, and units that count."""
    counted = {"resolved", "not_resolved"} | ({"unaccounted"} if terms["unaccounted"] == "not_resolved" else set())
    leads = [item["outcome"] for item in incidents if item["lead"]]
    return leads.count("resolved"), sum(outcome in counted for outcome in leads)


def _miscounted(
    terms: dict[str, object], report: dict[str, object], incidents: list[dict[str, object]]
) -> Iterator[str]:
    k, n = _k_of_n(terms, incidents)
    if (n, k) != (report["counted"], report["resolved"]):
        yield "its incidents do not add up to its k of n"
    num, den = terms["threshold_num"], terms["threshold_den"]
    assert isinstance(num, int)
    assert isinstance(den, int)
    if report["verdict"] in ("met", "short") and (report["verdict"] == "met") != commitment_met(k, n, num, den):
        yield "its verdict does not follow from its k of n"

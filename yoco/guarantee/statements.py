"""Freezing a contract year: canonical JSON, its hash, and the append-only row that carries both."""

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.contracts.services import TERMS_FIELDS
from yoco.guarantee.models import Placement, Statement
from yoco.guarantee.report import YearReport
from yoco.guarantee.tally import report_compute, year_rules

FORMAT = "yoco.statement/1"
# Where the report's live parts stand; a statement can freeze neither a credit that follows from it nor its own hash.
LIVE = {"credit", "statement", "restatement_due"}


def canonical_json(value: Any) -> str:
    """One text for one value: keys sorted, no spaces, characters as they are, no NaN. Hash its UTF-8 bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_of(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()


def terms_json(terms: GuaranteeTerms) -> dict[str, Any]:
    """Every field of a version, by name."""
    values = {name: getattr(terms, name) for name in TERMS_FIELDS}
    dates = {name: value.isoformat() for name, value in values.items() if isinstance(value, datetime.date)}
    return {"version": terms.version, "effective_on": terms.effective_on.isoformat(), **values, **dates}


def contract_json(contract: Contract) -> dict[str, str]:
    """Whose text it is."""
    return {
        "number": contract.number,
        "organisation": contract.organisation.name,
        "currency": contract.currency,
        "time_zone": contract.time_zone,
    }


def statement_write(*, year: ContractYear, reason: str) -> Statement:
    """The next revision of a year's statement, from its placements as they stand. The caller holds the year's lock."""
    rules, terms = year_rules(year)
    assert terms is not None, "a year without guarantee has no statement"
    now = timezone.now()
    report = report_compute(year=year, rules=rules, terms=terms, credit=None, now=now)
    summary = summary_json(report)
    last = Statement.objects.filter(year=year).order_by("-revision").only("revision", "sha256").first()
    revision = last.revision + 1 if last else 1
    canonical = canonical_json(
        {
            "format": FORMAT,
            "contract": contract_json(year.contract),
            "revision": revision,
            "reason": reason,
            "previous_sha256": last.sha256 if last else None,
            "terms": terms_json(terms),
            "report": summary,
            "incidents": list(incident_rows(Placement.objects.filter(year=year))),
        }
    )
    return Statement.objects.create(
        year=year,
        revision=revision,
        reason=reason,
        terms=terms,
        counted=report.counted,
        resolved=report.resolved,
        verdict=report.verdict,
        sha256=sha256_of(canonical),
        canonical=canonical,
        summary=summary,
        created_at=now,
    )


def statement_differs(*, year: ContractYear, statement: Statement) -> bool:
    """Whether the year's incidents stand otherwise now than in this statement."""
    frozen = json.loads(statement.canonical).get("incidents")
    return canonical_json(frozen) != canonical_json(list(incident_rows(Placement.objects.filter(year=year))))


def summary_json(report: YearReport) -> dict[str, Any]:
    """The figures of a report that a statement freezes."""
    return {name: value for name, value in dataclasses.asdict(report).items() if name not in LIVE}


def incident_rows(placed: QuerySet[Placement]) -> Iterator[dict[str, Any]]:
    """Every incident with the rule that placed it, in an order that depends on nothing but the facts."""
    for row in (
        placed.select_related("incident").order_by("started_at", "incident__public_id").iterator(chunk_size=2000)
    ):
        yield {
            "id": str(row.incident.public_id),
            "revision": row.incident_revision,
            "started_at": row.started_at.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z"),
            "unit": row.unit_key,
            "lead": row.lead,
            "kind": row.kind,
            "outcome": row.outcome,
            "rule": row.rule,
            "conditions": {item["condition"]: item["reason"] for item in row.evidence},
            "synthetic": row.synthetic,
            "waste_actual_gpu_ms": row.waste_actual_ms,
            "waste_counterfactual_gpu_ms": row.waste_counterfactual_ms,
            "waste_estimated": row.waste_estimated,
        }

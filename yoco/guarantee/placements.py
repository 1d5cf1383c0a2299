"""Keeps the Placement table true: one row per incident, recomputed whenever a fact, a review or the terms change.

The rules are pure; this module loads what they need, in a number of queries that does not depend on how many incidents
changed, and writes what they say.
"""

import datetime
import uuid
from collections.abc import Collection

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from yoco.contracts.locks import contracts_lock_with_terms
from yoco.contracts.models import Contract, ContractYear, YearState
from yoco.core.bulk import rows_write
from yoco.core.compiled import compiled
from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.facts import EPOCH, milliseconds, waste_input
from yoco.guarantee.models import Outcome, Placement, RestatementDue, Statement
from yoco.guarantee.neighbourhood import Held, Loaded, neighbourhood
from yoco.guarantee.rules import Placing, Review, place_unit, units
from yoco.incidents.models import Decision, Dispute, Exclusion, Incident, Origin
from yoco.waste.model import incident_waste, overlaps_ms

# What a statement freezes of an incident: a change to any of it makes a restatement due.
COMPARED = (
    "year_id",
    "unit_key",
    "lead",
    "kind",
    "outcome",
    "rule",
    "without_loss",
    "started_at",
    "synthetic",
    "waste_actual_ms",
    "waste_counterfactual_ms",
    "waste_potential_ms",
    "waste_estimated",
)
CHUNK = 1000
UPDATED = [
    "year",
    "terms",
    "run",
    "root_event_key",
    "started_at",
    "stall_from",
    "ended_at",
    "kind",
    "unit_key",
    "lead",
    "outcome",
    "rule",
    "without_loss",
    "evidence",
    "synthetic",
    "waste_actual_ms",
    "waste_counterfactual_ms",
    "waste_potential_ms",
    "waste_estimated",
    "waste_terms",
    "incident_revision",
    "placed_at",
]


@transaction.atomic(savepoint=False)
def placements_refresh(
    *, incident_ids: Collection[int], reason: str = "late_report", held: Held | None = None
) -> set[uuid.UUID]:
    """Places these incidents and every other one whose placing depends on them. Returns the closed years it changed.

    `reason` is the stable code of what made this necessary; a closed year keeps its statement and is restated later.
    Writers of one contract take turns: each sees what the others placed, so no failure counts twice. Any number of
    incidents may be given: a thousand at a time are held in memory, in the order in which they began. `held` spares
    queries to a caller who knows the rows already.
    """
    if held is not None and len(incident_ids) <= CHUNK:
        contracts, ordered = {held.contract.pk: held.contract}, list(incident_ids)
    else:
        contracts, ordered = _locked(sorted(set(incident_ids)))
        held = None  # of several chunks, a later one meets what an earlier one has placed
    new = held.created if held is not None else frozenset()
    changed_years: set[uuid.UUID] = set()
    for start in range(0, len(ordered), CHUNK):
        loaded, touched = neighbourhood(contracts, ordered[start : start + CHUNK], held)
        reviews = _reviews(loaded, new)
        placed: dict[int, Placement] = {}
        for part in loaded.values():
            placed |= _place(part, touched, reviews)
        changed_years |= _store(placed, new)
    closed = {year.pk for one in contracts.values() for year in one.years.all() if year.state == YearState.CLOSED}
    return _restatements_mark(changed_years & closed, reason)


def _locked(ids: list[int]) -> tuple[dict[uuid.UUID, Contract], list[int]]:
    """The contracts of these incidents, locked, and the incidents in the order in which they began."""
    rows: list[tuple[datetime.datetime, int, uuid.UUID]] = []
    for start in range(0, len(ids), CHUNK):
        found = Incident.objects.filter(pk__in=ids[start : start + CHUNK]).order_by()
        rows += found.values_list("started_at", "pk", "contract_id")
    if not rows:
        return {}, []
    return contracts_lock_with_terms({contract_id for _, _, contract_id in rows}), [pk for _, pk, _ in sorted(rows)]


def _reviews(loaded: dict[uuid.UUID, Loaded], new: Collection[int]) -> dict[str, Review]:
    """What people decided, by the incident's public id."""
    public = {pk: facts.id for part in loaded.values() for pk, facts in part.facts.items() if pk not in new}
    return {public[pk]: review for pk, review in reviews_decided(public).items()} if public else {}


def reviews_decided(incident_ids: Collection[int]) -> dict[int, Review]:
    """What people decided about these incidents: accepted exclusions, and objections upheld against another placing.

    An objection upheld against an exclusion withdrew it and leaves no trace in the placing.
    """
    excluded = dict(
        Exclusion.objects.filter(incident__in=incident_ids, state=Decision.ACCEPTED).values_list(
            "incident_id", "reason"
        )
    )
    upheld = set(
        Dispute.objects.filter(incident__in=incident_ids, state=Decision.ACCEPTED)
        .exclude(against_outcome=Outcome.EXCLUDED)
        .values_list("incident_id", flat=True)
    )
    return {pk: Review(excluded_for=excluded.get(pk), dispute_upheld=pk in upheld) for pk in excluded.keys() | upheld}


def _place(part: Loaded, touched: set[int], reviews: dict[str, Review]) -> dict[int, Placement]:
    """The placements of the touched incidents of one contract; they make up whole units."""
    primary = {facts.id: pk for pk, facts in part.facts.items()}
    overlaps = _overlaps(part)
    terms_of_year = {str(year.pk): year for year in part.contract.years.all()}
    terms_by_version = {terms.version: terms for terms in part.contract.terms.all()}
    rules_of_year = {year.id: year for year in part.years}
    placed: dict[int, Placement] = {}
    for unit in units(part.facts.values(), part.years):
        if primary[unit[0].id] not in touched:
            continue
        for placing in place_unit(unit, years=part.years, reviews=reviews):
            pk = primary[placing.incident]
            year = rules_of_year[placing.year] if placing.year else None
            placed[pk] = _placement(
                part.incidents[pk],
                part.facts[pk],
                placing,
                year=terms_of_year[placing.year] if placing.year else None,
                terms_id=terms_by_version[year.terms.version].pk if year and year.terms else None,
                stall_from=min(part.stalls[pk][0], part.facts[pk].started_at),
                overlap_ms=overlaps[pk],
            )
    return placed


def _overlaps(part: Loaded) -> dict[int, int]:
    """Per incident, the milliseconds of its stall in which its job stood still already."""
    by_run: dict[uuid.UUID, list[tuple[int, int, str, int]]] = {}
    for pk, incident in part.incidents.items():
        start, end = (milliseconds(EPOCH, at) or 0 for at in part.stalls[pk])
        by_run.setdefault(incident.run_id, []).append((start, end, part.facts[pk].id, pk))
    overlaps: dict[int, int] = {}
    for stalls in by_run.values():
        stalls.sort()
        found = overlaps_ms((start, end) for start, end, _, _ in stalls)
        overlaps |= {pk: value for (*_, pk), value in zip(stalls, found, strict=True)}
    return overlaps


def _placement(
    incident: Incident,
    facts: IncidentFacts,
    placing: Placing,
    *,
    year: ContractYear | None,
    terms_id: uuid.UUID | None,
    stall_from: datetime.datetime,
    overlap_ms: int,
) -> Placement:
    waste = incident_waste(waste_input(incident, facts, overlap_ms=overlap_ms))
    return Placement(
        incident=incident,
        year=year,
        terms_id=terms_id,
        run_id=incident.run_id,
        root_event_key=incident.root_event_id,
        started_at=facts.started_at,
        stall_from=stall_from,
        ended_at=facts.ended_at,
        kind=placing.kind,
        unit_key=placing.unit_key,
        lead=placing.lead,
        outcome=placing.outcome,
        rule=placing.rule,
        without_loss=placing.without_loss,
        evidence=evidence_json(placing),
        synthetic=incident.origin == Origin.SYNTHETIC,
        waste_actual_ms=waste.actual,
        waste_counterfactual_ms=waste.counterfactual,
        waste_potential_ms=waste.potential,
        waste_estimated=bool(waste.estimated) and not facts.explained,
        waste_terms={"actual": waste.terms, "counterfactual": waste.counterfactual_terms},
        incident_revision=incident.revision,
        placed_at=timezone.now(),
    )


def evidence_json(placing: Placing) -> list[dict[str, object]]:
    """The four conditions as the portal renders them: met or not, a stable reason code, the facts looked at."""
    return [{"condition": c.name, "met": c.met, "reason": c.reason, "facts": c.facts} for c in placing.conditions]


@compiled
def _placed(*, ids: Collection[int]) -> QuerySet[Placement]:
    return Placement.objects.defer("evidence").filter(pk__in=ids)


def _store(placed: dict[int, Placement], new: Collection[int]) -> set[uuid.UUID]:
    """Writes these placements. Returns the years in which something changed that a statement freezes."""
    known = [pk for pk in placed if pk not in new]
    before = {row.pk: row for row in _placed(ids=known)} if known else {}
    leads = [pk for pk, row in before.items() if row.lead and not placed[pk].lead]
    moved = [pk for pk, row in before.items() if row.unit_key != placed[pk].unit_key and row.lead]
    if leads or moved:
        # One statement inserts old and new leads in any order; the database allows one lead per unit at any instant.
        Placement.objects.filter(pk__in={*leads, *moved}).update(lead=False)
    rows_write(list(placed.values()), unique=("incident",), update=tuple(UPDATED))
    changed_years: set[uuid.UUID] = set()
    for pk, row in placed.items():
        old = before.get(pk)
        if old is None or any(getattr(old, name) != getattr(row, name) for name in COMPARED):
            changed_years |= {year for year in (row.year_id, old.year_id if old else None) if year}
    return changed_years


def _restatements_mark(changed_years: set[uuid.UUID], reason: str) -> set[uuid.UUID]:
    """Marks those of these years that have a statement: it stays, and the next sweep restates it."""
    if not changed_years:
        return set()
    closed = set(Statement.objects.filter(year__in=changed_years, revision=1).values_list("year_id", flat=True))
    for year_id in closed:
        due, _ = RestatementDue.objects.get_or_create(year_id=year_id)
        if reason not in due.reasons:
            due.reasons.append(reason)
            due.save(update_fields=["reasons"])
    return closed

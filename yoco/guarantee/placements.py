"""Keeps the Placement table true: one row per incident, recomputed whenever a fact, a review or the terms change.

The rules are pure; this module loads what they need, in a number of queries that does not depend on how many incidents
changed, and writes what they say.
"""

import datetime
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from yoco.contracts.models import Contract, ContractYear, CountedUnit, GuaranteeTerms
from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.facts import contract_years, incident_facts, stall_of, waste_input
from yoco.guarantee.models import Placement, RestatementDue, Statement
from yoco.guarantee.rules import Placing, Review, Year, place_unit, terms_at, units
from yoco.incidents.models import Decision, Dispute, Exclusion, Incident, Origin, Run
from yoco.waste.model import incident_waste, overlaps_ms

COMPARED = ("year_id", "unit_key", "lead", "kind", "outcome", "rule", "without_loss")
UPDATED = [
    "year",
    "terms",
    "run",
    "root_event",
    "started_at",
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
    "incident_revision",
    "placed_at",
]


@dataclass
class Loaded:
    """The incidents of one contract that were loaded for placing, by primary key."""

    contract: Contract
    years: list[Year]
    incidents: dict[int, Incident] = field(default_factory=dict)
    facts: dict[int, IncidentFacts] = field(default_factory=dict)

    def add(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            self.incidents[incident.pk] = incident
            self.facts[incident.pk] = incident_facts(incident)

    @property
    def window(self) -> datetime.timedelta:
        """The longest time over which two incidents of this contract can be one."""
        return max(terms_at(at, self.years).relapse_window for at in self._instants())

    def _instants(self) -> list[datetime.datetime]:
        return [year.starts_at for year in self.years] + [facts.started_at for facts in self.facts.values()]


@transaction.atomic
def placements_refresh(
    *, incident_ids: Collection[int], reason: str = "late_report", year_held: bool = False
) -> set[uuid.UUID]:
    """Places these incidents and every other one whose placing depends on them. Returns the closed years it changed.

    `reason` is the stable code of what made this necessary; a closed year keeps its statement and is restated later.
    `year_held` says that the caller closes a year and so keeps every other writer of its contract out already.
    """
    changed = set(incident_ids)
    involved = list(Incident.objects.filter(pk__in=changed).values_list("contract_id", "run_id").distinct())
    if not involved:
        return set()
    if not year_held:
        _writers_lock(contracts={contract for contract, _ in involved}, runs={run for _, run in involved})
    contracts = Contract.objects.prefetch_related("years", "terms").in_bulk({contract for contract, _ in involved})
    loaded = {pk: Loaded(contract, contract_years(contract)) for pk, contract in contracts.items()}
    for incident in Incident.objects.filter(pk__in=changed):
        loaded[incident.contract_id].add([incident])
    _neighbours_load(loaded, changed)

    reviews = _reviews(loaded)
    placed: dict[int, Placement] = {}
    for part in loaded.values():
        placed |= _place(part, changed, reviews)
    return _store(placed, reason)


def _writers_lock(*, contracts: Collection[uuid.UUID], runs: Collection[uuid.UUID]) -> None:
    """First keeps the contracts' years from closing until this transaction ends, then serialises the writers of a
    workload: each sees what the others placed, so no failure counts twice.

    Writers of different workloads do not wait for each other, unless the terms count a root event once for all of them.
    The first lock is PostgreSQL's alone, because SQLite has one writer at a time; Django offers no FOR KEY SHARE.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM contracts_contractyear WHERE contract_id = ANY(%s) ORDER BY id FOR KEY SHARE",
                [list(contracts)],
            )
        across = GuaranteeTerms.objects.filter(contract__in=contracts, unit=CountedUnit.ROOT_EVENT)
        whole = Contract.objects.filter(pk__in=across.values("contract_id"))
        list(whole.select_for_update(no_key=True).order_by("pk").values_list("pk"))
        list(Run.objects.filter(pk__in=runs).select_for_update(no_key=True).order_by("pk").values_list("pk"))


def _neighbours_load(loaded: dict[uuid.UUID, Loaded], changed: set[int]) -> None:
    """Loads every incident that may share a unit or a stall with a changed one, until nothing more is found."""
    window = max(part.window for part in loaded.values())
    runs = {incident.run_id for part in loaded.values() for incident in part.incidents.values()}
    events = {i.root_event_id for part in loaded.values() for i in part.incidents.values() if i.root_event_id}
    keys = list(Placement.objects.filter(pk__in=changed).values_list("unit_key", flat=True))
    low, high = _extent(loaded)
    seen: tuple[datetime.datetime, datetime.datetime] | None = None
    while seen is None or low < seen[0] or high > seen[1]:
        near = Q(run_id__in=runs, ended_at__gte=low - window, started_at__lte=high + window)
        if keys:
            near |= Q(unit_key__in=keys)
        if any(terms_at(low, part.years).unit == "root_event" for part in loaded.values()):
            near |= Q(root_event_id__in=events)
        known = {pk for part in loaded.values() for pk in part.incidents}
        found = Incident.objects.filter(placement__in=Placement.objects.filter(near)).exclude(pk__in=known)
        rows = list(found)
        for incident in rows:
            loaded[incident.contract_id].add([incident])
        seen = low, high
        if rows:
            low, high = _extent(loaded, touching=changed, window=window)


def _extent(
    loaded: dict[uuid.UUID, Loaded], touching: set[int] | None = None, window: datetime.timedelta | None = None
) -> tuple[datetime.datetime, datetime.datetime]:
    """First start to last end of the loaded incidents; with `touching`, of those that are near to these in time."""
    spans = sorted(
        (facts.started_at, facts.ended_at, pk) for part in loaded.values() for pk, facts in part.facts.items()
    )
    if touching is None or window is None:
        return min(start for start, _, _ in spans), max(end for _, end, _ in spans)
    low = high = None
    cluster: list[tuple[datetime.datetime, datetime.datetime, int]] = []
    until: datetime.datetime | None = None
    clusters = []
    for span in spans:
        if until is not None and span[0] > until + window:
            clusters.append(cluster)
            cluster = []
        cluster.append(span)
        until = span[1] if until is None else max(until, span[1])
    clusters.append(cluster)
    for members in clusters:
        if any(pk in touching for _, _, pk in members):
            start, end = min(m[0] for m in members), max(m[1] for m in members)
            low = start if low is None else min(low, start)
            high = end if high is None else max(high, end)
    assert low is not None
    assert high is not None
    return low, high


def _reviews(loaded: dict[uuid.UUID, Loaded]) -> dict[str, Review]:
    """What people decided, by the incident's public id."""
    public = {pk: facts.id for part in loaded.values() for pk, facts in part.facts.items()}
    excluded = dict(
        Exclusion.objects.filter(incident__in=public, state=Decision.ACCEPTED).values_list("incident_id", "reason")
    )
    upheld = set(
        Dispute.objects.filter(incident__in=public, state=Decision.ACCEPTED)
        .exclude(against_outcome="excluded")
        .values_list("incident_id", flat=True)
    )
    return {
        public[pk]: Review(excluded_for=excluded.get(pk), dispute_upheld=pk in upheld)
        for pk in excluded.keys() | upheld
    }


def _place(part: Loaded, changed: set[int], reviews: dict[str, Review]) -> dict[int, Placement]:
    """The placements of the changed incidents, of their units, and of the stalls that they overlap."""
    primary = {facts.id: pk for pk, facts in part.facts.items()}
    overlaps = _overlaps(part)
    terms_of_year = {str(year.pk): year for year in part.contract.years.all()}
    terms_by_version = {terms.version: terms for terms in part.contract.terms.all()}
    rules_of_year = {year.id: year for year in part.years}
    touched = _touched(part, changed)
    placed: dict[int, Placement] = {}
    for unit in units(part.facts.values(), part.years):
        members = {primary[facts.id] for facts in unit}
        if not members & touched:
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
                overlap_ms=overlaps[pk],
            )
    return placed


def _overlaps(part: Loaded) -> dict[int, int]:
    """Per incident, the milliseconds of its stall in which its job stood still already."""
    by_run: dict[uuid.UUID, list[tuple[tuple[int, int], str, int]]] = {}
    for pk, incident in part.incidents.items():
        facts = part.facts[pk]
        by_run.setdefault(incident.run_id, []).append((stall_of(incident, facts), facts.id, pk))
    overlaps: dict[int, int] = {}
    for stalls in by_run.values():
        stalls.sort()
        found = overlaps_ms(stall for stall, _, _ in stalls)
        overlaps |= {pk: value for (_, _, pk), value in zip(stalls, found, strict=True)}
    return overlaps


def _touched(part: Loaded, changed: set[int]) -> set[int]:
    """The changed incidents and the others of their workloads: a neighbour's unit or overlap may have changed."""
    mine = {pk for pk in changed if pk in part.incidents}
    runs = {part.incidents[pk].run_id for pk in mine}
    low = min((part.facts[pk].started_at for pk in mine), default=None)
    high = max((part.facts[pk].ended_at for pk in mine), default=None)
    if low is None or high is None:
        return mine
    window = part.window
    return mine | {
        pk
        for pk, incident in part.incidents.items()
        if incident.run_id in runs
        and part.facts[pk].ended_at >= low - window
        and part.facts[pk].started_at <= high + window
    }


def _placement(
    incident: Incident,
    facts: IncidentFacts,
    placing: Placing,
    *,
    year: ContractYear | None,
    terms_id: uuid.UUID | None,
    overlap_ms: int,
) -> Placement:
    waste = incident_waste(waste_input(incident, facts, overlap_ms=overlap_ms))
    return Placement(
        incident=incident,
        year=year,
        terms_id=terms_id,
        run_id=incident.run_id,
        root_event_id=incident.root_event_id,
        started_at=facts.started_at,
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
        waste_estimated=bool(waste.estimated),
        incident_revision=incident.revision,
        placed_at=timezone.now(),
    )


def evidence_json(placing: Placing) -> list[dict[str, object]]:
    """The four conditions as the portal renders them: met or not, a stable reason code, the facts looked at."""
    return [{"condition": c.name, "met": c.met, "reason": c.reason, "facts": c.facts} for c in placing.conditions]


def _store(placed: dict[int, Placement], reason: str) -> set[uuid.UUID]:
    before = Placement.objects.defer("evidence").in_bulk(placed)
    leads = [pk for pk, row in before.items() if row.lead and not placed[pk].lead]
    moved = [pk for pk, row in before.items() if row.unit_key != placed[pk].unit_key and row.lead]
    if leads or moved:
        # One statement inserts old and new leads in any order; the database allows one lead per unit at any instant.
        Placement.objects.filter(pk__in={*leads, *moved}).update(lead=False)
    Placement.objects.bulk_create(
        placed.values(), update_conflicts=True, unique_fields=["incident"], update_fields=UPDATED, batch_size=1000
    )
    changed_years: set[uuid.UUID] = set()
    for pk, row in placed.items():
        old = before.get(pk)
        if old is None or any(getattr(old, name) != getattr(row, name) for name in COMPARED):
            changed_years |= {year for year in (row.year_id, old.year_id if old else None) if year}
    return _restatements_mark(changed_years, reason)


def _restatements_mark(changed_years: set[uuid.UUID], reason: str) -> set[uuid.UUID]:
    """Marks those of these years that have a statement: it stays, and the next sweep restates it."""
    if not changed_years:
        return set()
    closed = set(Statement.objects.filter(year__in=changed_years, revision=1).values_list("year_id", flat=True))
    for year_id in closed:
        RestatementDue.objects.get_or_create(year_id=year_id)
        due = RestatementDue.objects.select_for_update().get(year_id=year_id)
        if reason not in due.reasons:
            due.reasons.append(reason)
            due.save(update_fields=["reasons"])
    return closed

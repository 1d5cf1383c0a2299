"""Which incidents have to be looked at together: those whose placing or waste depends on an incident that changed."""

import datetime
import uuid
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Q, QuerySet

from yoco.contracts.models import Contract
from yoco.core.compiled import compiled
from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.facts import contract_years, incidents_facts, stall_of
from yoco.guarantee.models import Placement
from yoco.guarantee.rules import DEFAULT_TERMS, Year, units
from yoco.incidents.models import Incident

Span = tuple[datetime.datetime, datetime.datetime]


@dataclass(frozen=True, slots=True)
class Held:
    """What a writer knows already, under the contract's lock.

    The contract of all incidents, with years and terms prefetched; whole rows of incidents, by key; and which of them
    are new, so that nothing refers to them yet.
    """

    contract: Contract
    incidents: Mapping[int, Incident]
    created: frozenset[int]


@dataclass
class Loaded:
    """The incidents of one contract that were loaded, by primary key, with their facts and the stalls of their jobs."""

    years: list[Year]
    contract: Contract
    incidents: dict[int, Incident] = field(default_factory=dict)
    facts: dict[int, IncidentFacts] = field(default_factory=dict)
    stalls: dict[int, Span] = field(default_factory=dict)

    def add(self, incident: Incident, facts: IncidentFacts) -> None:
        """Takes an incident in."""
        self.incidents[incident.pk] = incident
        self.facts[incident.pk] = facts
        self.stalls[incident.pk] = stall_of(incident, facts)

    @property
    def window(self) -> datetime.timedelta:
        """The longest time over which two incidents of this contract can be one."""
        return max((year.terms or DEFAULT_TERMS).relapse_window for year in self.years) if self.years else WINDOW

    def touched_by(self, seeds: Collection[int]) -> set[int]:
        """The members of every unit that holds a seed, or an incident whose stall overlaps that of a seed."""
        mine = {pk for pk in seeds if pk in self.incidents}
        near = mine | self._overlapping(mine)
        primary = {facts.id: pk for pk, facts in self.facts.items()}
        touched: set[int] = set()
        for unit in units(self.facts.values(), self.years):
            members = {primary[facts.id] for facts in unit}
            if members & near:
                touched |= members
        return touched

    def _overlapping(self, mine: set[int]) -> set[int]:
        by_run: dict[uuid.UUID, list[Span]] = {}
        for pk in mine:
            by_run.setdefault(self.incidents[pk].run_id, []).append(self.stalls[pk])
        merged = {run: _merged(spans) for run, spans in by_run.items()}
        return {
            pk
            for pk, incident in self.incidents.items()
            if incident.run_id in merged and _meets(merged[incident.run_id], self.stalls[pk])
        }


WINDOW = DEFAULT_TERMS.relapse_window
CHUNK = 1000
FEW = 100  # incidents whose neighbours are fetched at once: a cursor takes three round trips


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The union of these spans, in order."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _meets(union: list[Span], span: Span) -> bool:
    """Whether a span meets a union of spans, its ends included."""
    index = bisect_left(union, span[0], key=lambda member: member[1])
    return index < len(union) and union[index][0] <= span[1]


def neighbourhood(
    contracts: Mapping[uuid.UUID, Contract], changed: Collection[int], held: Held | None = None
) -> tuple[dict[uuid.UUID, Loaded], set[int]]:
    """Loads what the placing of the changed incidents depends on. Returns it by contract, and the incidents to place.

    Four queries, one where all is held and new, and two more for every further step of a chain of incidents. Memory
    grows with what is loaded, however far apart in time the changed incidents lie.
    """
    loaded = {pk: Loaded(contract_years(contract), contract) for pk, contract in contracts.items()}
    ours = [held.incidents[pk] for pk in changed if pk in held.incidents] if held is not None else []
    _add(loaded, ours)
    _load(loaded, set(changed) - {incident.pk for incident in ours})
    placed = set(changed) - (held.created if held is not None else set())
    mates = set[int]()
    if placed:
        # Whoever shared a unit with a changed incident may have to lead it now.
        mates = set(_mates(placed=placed)) - set(changed)
    seeds = {*changed, *mates}
    frontier, seen = {pk for part in loaded.values() for pk in part.incidents}, set[int]()
    missing = mates
    while frontier:
        known = {pk for part in loaded.values() for pk in part.incidents}
        _load(loaded, (missing | _near(loaded, frontier)) - known)
        missing = set()
        seen |= frontier
        touched = {pk for part in loaded.values() for pk in part.touched_by(seeds)}
        frontier = touched - seen
    return loaded, touched


@compiled
def _mates(*, placed: Collection[int]) -> QuerySet[Placement, int]:
    keys = Placement.objects.filter(pk__in=placed).values("unit_key")
    return Placement.objects.filter(unit_key__in=keys).values_list("pk", flat=True)


@compiled
def _incidents(*, ids: Collection[int]) -> QuerySet[Incident]:
    return Incident.objects.filter(pk__in=ids)


def _load(loaded: Mapping[uuid.UUID, Loaded], wanted: Collection[int]) -> None:
    ids = sorted(wanted)
    for start in range(0, len(ids), CHUNK):
        _add(loaded, _incidents(ids=ids[start : start + CHUNK]))


def _add(loaded: Mapping[uuid.UUID, Loaded], rows: Sequence[Incident]) -> None:
    for incident, facts in zip(rows, incidents_facts(rows), strict=True):
        loaded[incident.contract_id].add(incident, facts)


def _placements(
    *, runs: Collection[uuid.UUID], since: datetime.datetime, until: datetime.datetime, events: Collection[uuid.UUID]
) -> QuerySet[Placement, tuple[int, uuid.UUID, uuid.UUID | None, datetime.datetime, datetime.datetime]]:
    """What stalled these runs in this span of time, or belongs to these root events."""
    of_runs = Q(run_id__in=runs, ended_at__gte=since, stall_from__lte=until)
    near = Placement.objects.filter(of_runs | Q(root_event_key__in=events)).order_by()
    return near.values_list("pk", "run_id", "root_event_key", "stall_from", "ended_at")


_placements_of_few = compiled(_placements)


def _near(loaded: Mapping[uuid.UUID, Loaded], frontier: Collection[int]) -> set[int]:
    """Placements of the same workloads within the window of these incidents, or of the same root events.

    The database bounds all of them by one span of time. Each row is then held against the windows of its own workload,
    column by column, so that a year between two incidents loads nothing of what lies there.
    """
    spans: dict[uuid.UUID, list[Span]] = {}
    events: set[uuid.UUID] = set()
    for part in loaded.values():
        for pk in part.incidents.keys() & frontier:
            incident, facts, (begin, end) = part.incidents[pk], part.facts[pk], part.stalls[pk]
            window = min(begin, facts.started_at) - part.window, max(end, facts.ended_at) + part.window
            spans.setdefault(incident.run_id, []).append(window)
            if incident.root_event_id is not None:
                events.add(incident.root_event_id)
    if not spans:
        return set()
    merged = {run: _merged(windows) for run, windows in spans.items()}
    since = min(windows[0][0] for windows in merged.values())
    until = max(windows[-1][1] for windows in merged.values())
    if len(frontier) > FEW:
        rows = _placements(runs=merged, since=since, until=until, events=events).iterator(chunk_size=2000)
    else:
        rows = iter(_placements_of_few(runs=merged.keys(), since=since, until=until, events=events))
    return {
        pk
        for pk, run, event, begin, end in rows
        if event in events or (run in merged and _meets(merged[run], (begin, end)))
    }

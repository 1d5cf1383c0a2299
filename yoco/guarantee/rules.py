"""The guarantee's rules: where an incident is placed, what counts once, and whether the commitment is met.

Pure and total: the same facts, terms and reviews give the same answer, whatever the order in which they arrived.
The rule ids are explained in docs/guarantee.md and translated in guarantee/labels.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Literal, Protocol

from yoco.guarantee.evidence import (
    Condition,
    IncidentFacts,
    conditions,
    evidenced_kind,
    path_healed,
    restarted,
    run_complete,
    same_cause,
    trigger_evidenced,
    within,
)
from yoco.incidents.trigger import Kind

Outcome = Literal["resolved", "not_resolved", "pending", "unaccounted", "excluded", "not_counted"]
Placed = tuple[Outcome, str, IncidentFacts]
VerdictName = Literal["met", "short", "no_failures", "undecided"]
Counted = Literal["always", "evidenced", "never"]

# A unit with several members takes the outcome of the member that weighs most: one member that was not resolved is a
# failure that was not resolved. What is outside the ratio decides only when nothing else is left.
WEIGHT: dict[Outcome, int] = {
    "not_resolved": 0,
    "unaccounted": 1,
    "pending": 2,
    "resolved": 3,
    "excluded": 4,
    "not_counted": 5,
}

# The rule that decides when a condition is the first that is not met.
FAILED_RULE = {
    "live_migration": "no_live_migration",
    "no_lost_progress": "lost_progress",
    "no_rollback": "rolled_back",
    "no_recompute": "recomputed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The fields of a GuaranteeTerms version that decide placing and verdict."""

    version: int = 1
    threshold_num: int = 90
    threshold_den: int = 100
    counted_unplanned: Counted = "always"
    counted_preventive: Counted = "evidenced"
    counted_planned: Counted = "never"
    path_failover_counted: bool = False
    unit: Literal["root_event_workload", "root_event", "incident"] = "root_event_workload"
    root_event_window_s: int = 60
    relapse_window_minutes: int = 30
    unaccounted: Literal["not_resolved", "listed"] = "not_resolved"
    open_incident_cutoff: Literal["not_resolved", "listed"] = "not_resolved"
    empty_year: Literal["met", "no_verdict"] = "met"
    partial_year: Literal["own_verdict", "no_verdict"] = "own_verdict"
    exclusions: tuple[str, ...] = ("user_error", "unsupported_workload", "agent_disabled", "site_outage")

    @property
    def relapse_window(self) -> timedelta:
        return timedelta(minutes=self.relapse_window_minutes)

    def counted(self, kind: Kind) -> Counted:
        """Whether failures of this kind count."""
        by_kind: dict[Kind, Counted] = {
            "unplanned": self.counted_unplanned,
            "preventive": self.counted_preventive,
            "planned": self.counted_planned,
        }
        return by_kind[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Year:
    """A contract year as instants, half-open, the part of it that is guaranteed, and when late reports stop counting.

    `terms` is the version that the whole year is judged under; None without guarantee.
    """

    id: str
    starts_at: datetime
    ends_at: datetime
    guaranteed_from: datetime | None
    guaranteed_until: datetime | None
    closes_at: datetime
    terms: Terms | None
    partial: bool = False
    closed: bool = False

    def covers(self, at: datetime) -> bool:
        """Whether the guarantee was in force at that instant."""
        start, end = self.guaranteed_from, self.guaranteed_until
        return start is not None and end is not None and start <= at < end


@dataclass(frozen=True, slots=True)
class Review:
    """What people decided about an incident: an accepted exclusion's reason, and whether a dispute was upheld."""

    excluded_for: str | None = None
    dispute_upheld: bool = False


@dataclass(frozen=True, slots=True)
class Placing:
    """Where one incident stands. `lead` marks the one member that stands for its unit in the tally."""

    incident: str
    unit_key: str
    lead: bool
    year: str | None
    kind: Kind
    outcome: Outcome
    rule: str
    conditions: tuple[Condition, ...]
    kind_reported: Kind

    @property
    def without_loss(self) -> bool:
        """All four conditions are met, whether or not the incident counts."""
        return all(condition.met for condition in self.conditions)


NO_REVIEW = Review()
DEFAULT_TERMS = Terms()


def order(facts: IncidentFacts) -> tuple[datetime, str]:
    """The order in which incidents are looked at: when they began, then their id. Arrival plays no part."""
    return facts.started_at, facts.id


def year_at(at: datetime, years: Iterable[Year]) -> Year | None:
    """The contract year of an instant; None outside the contract."""
    return next((year for year in years if year.starts_at <= at < year.ends_at), None)


def terms_at(at: datetime, years: Iterable[Year]) -> Terms:
    """The terms that group incidents at an instant: those of its year, the published defaults outside any."""
    year = year_at(at, years)
    return (year.terms if year else None) or DEFAULT_TERMS


def units(incidents: Iterable[IncidentFacts], years: Sequence[Year]) -> list[list[IncidentFacts]]:
    """Groups the incidents that count once, each group and the list in `order`.

    Joined are: the members of one root event (on one workload, unless the terms count root events alone or incidents
    alone), and a workload that fails again for the same cause within the relapse window: one incident with attempts.
    Two incidents are joined under the terms of the earlier one's year. Incidents with the same id are one.
    """
    ordered = sorted({facts.id: facts for facts in incidents}.values(), key=order)
    parent = list(range(len(ordered)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first_of_event: dict[tuple[str, str], int] = {}
    of_run: dict[str, list[int]] = {}
    terms_of = [terms_at(facts.started_at, years) for facts in ordered]
    relapses_until = [facts.ended_at + terms.relapse_window for facts, terms in zip(ordered, terms_of, strict=True)]
    for index, facts in enumerate(ordered):
        if facts.root_event is not None:
            anchor = first_of_event.setdefault((facts.root_event, facts.run), index)
            if terms_of[anchor].unit != "incident":
                parent[root(index)] = root(anchor)
            anchor = first_of_event.setdefault((facts.root_event, ""), index)
            if terms_of[anchor].unit == "root_event":
                parent[root(index)] = root(anchor)
        recent = of_run.setdefault(facts.run, [])
        recent[:] = [i for i in recent if facts.started_at <= relapses_until[i]]
        for i in recent:
            # A storm of reports about one workload is one unit soon: what is joined already is not compared again.
            if root(i) != root(index) and fails_again(ordered[i], facts, terms_of[i]):
                parent[root(index)] = root(i)
        recent.append(index)

    groups: dict[int, list[IncidentFacts]] = {}
    for index, facts in enumerate(ordered):
        groups.setdefault(root(index), []).append(facts)
    return sorted(groups.values(), key=lambda group: order(group[0]))


def fails_again(earlier: IncidentFacts, later: IncidentFacts, terms: Terms) -> bool:
    """The same workload failed again for the same cause within the relapse window. A planned move is no failure."""
    return (
        earlier.run == later.run
        and "planned" not in (evidenced_kind(earlier), evidenced_kind(later))
        and order(earlier) < order(later)
        and within(later.started_at, earlier.ended_at, terms.relapse_window)
        and same_cause(earlier, later)
    )


def unit_key(unit: Sequence[IncidentFacts]) -> str:
    """The key of a unit: its earliest member, and that member's workload, which no other customer shares."""
    return f"{unit[0].id}:{unit[0].run}"


def place_unit(unit: Sequence[IncidentFacts], *, years: Sequence[Year], reviews: Mapping[str, Review]) -> list[Placing]:
    """Places every member of a unit (one of the groups of `units`) and names the one that leads it.

    The whole unit belongs to the contract year in which its earliest member began.
    """
    year = year_at(unit[0].started_at, years)
    key = unit_key(unit)
    placed = _place_members(unit, year, reviews)
    lead = min(placed, key=lambda item: (WEIGHT[item[0]], order(item[2])))[2]
    return [
        Placing(
            incident=facts.id,
            unit_key=key,
            lead=facts is lead,
            year=year.id if year else None,
            kind=evidenced_kind(facts),
            outcome=outcome,
            rule=rule,
            conditions=conditions(facts),
            kind_reported=facts.kind,
        )
        for outcome, rule, facts in placed
    ]


def _place_members(unit: Sequence[IncidentFacts], year: Year | None, reviews: Mapping[str, Review]) -> list[Placed]:
    """A unit is never resolved because a member that failed was excluded: then the whole unit leaves the ratio."""
    placed = [(*_place(facts, unit, year, reviews), facts) for facts in unit]
    if not _resolved(placed) or all(outcome != "excluded" for outcome, _, _ in placed):
        return placed
    kept = {facts.id: replace(reviews.get(facts.id, NO_REVIEW), excluded_for=None) for facts in unit}
    if _resolved([(*_place(facts, unit, year, kept), facts) for facts in unit]):
        return placed
    return [
        ("excluded", "excluded_with_unit", facts) if outcome == "resolved" else (outcome, rule, facts)
        for outcome, rule, facts in placed
    ]


def _resolved(placed: Iterable[Placed]) -> bool:
    return min(WEIGHT[outcome] for outcome, _, _ in placed) == WEIGHT["resolved"]


def place(facts: IncidentFacts, *, year: Year | None, review: Review = NO_REVIEW) -> Placing:
    """Places an incident that stands alone."""
    return place_unit([facts], years=[year] if year else [], reviews={facts.id: review})[0]


def _place(
    facts: IncidentFacts, unit: Sequence[IncidentFacts], year: Year | None, reviews: Mapping[str, Review]
) -> tuple[Outcome, str]:
    """The first rule that applies decides."""
    review = reviews.get(facts.id, NO_REVIEW)
    if year is None:
        return "not_counted", "outside_contract"
    terms = year.terms
    if terms is None or year.guaranteed_from is None:
        return "not_counted", "outside_guarantee"
    if review.dispute_upheld:
        return "not_resolved", "dispute_upheld"
    if not year.covers(unit[0].started_at):
        return "not_counted", "outside_guarantee"
    if review.excluded_for in terms.exclusions:
        return "excluded", f"excluded_{review.excluded_for}"
    if facts.explained:
        return "not_counted", "explained"
    counted = terms.counted(evidenced_kind(facts))
    if counted == "never":
        return "not_counted", "kind_not_counted"
    if path_healed(facts) and not terms.path_failover_counted:
        return "not_counted", "path_failover"
    if facts.origin == "silence" and facts.open:
        return "unaccounted", "silent" if terms.unaccounted == "not_resolved" else "silent_listed"
    if counted == "evidenced" and not trigger_evidenced(facts):
        return "not_counted", "trigger_not_evidenced"
    if facts.open or (facts.resumed_at is not None and facts.resumed_at >= year.closes_at):
        if not year.closed:
            return "pending", "still_open"
        if terms.open_incident_cutoff == "listed":
            return "not_counted", "open_at_close_listed"
        return "not_resolved", "open_at_close"
    return _by_evidence(facts, unit, terms, reviews)


def _by_evidence(
    facts: IncidentFacts, unit: Sequence[IncidentFacts], terms: Terms, reviews: Mapping[str, Review]
) -> tuple[Outcome, str]:
    # Where the terms count a healed path, nothing had to migrate; the other three conditions are met.
    if not path_healed(facts):
        failed = next((condition for condition in conditions(facts) if not condition.met), None)
        if failed is not None:
            return "not_resolved", FAILED_RULE[failed.name]
    for later in unit:
        excluded = reviews.get(later.id, NO_REVIEW).excluded_for in terms.exclusions
        if restarted(later) and not excluded and fails_again(facts, later, terms):
            return "not_resolved", "relapse"
    if path_healed(facts):
        return "resolved", "path_healed"
    return "resolved", "run_complete" if run_complete(facts) else "without_loss"


def place_all(
    incidents: Iterable[IncidentFacts], *, years: Sequence[Year], reviews: Mapping[str, Review] | None = None
) -> list[Placing]:
    """Places any number of incidents of one contract."""
    placings: list[Placing] = []
    for unit in units(incidents, years):
        placings += place_unit(unit, years=years, reviews=reviews or {})
    return placings


class Unaccounted(Protocol):
    """Terms, as the rules or the database know them."""

    @property
    def unaccounted(self) -> str: ...


def counted_outcomes(terms: Unaccounted) -> set[str]:
    """The outcomes that stand in a year's ratio."""
    return {"resolved", "not_resolved"} | ({"unaccounted"} if terms.unaccounted == "not_resolved" else set())


@dataclass(frozen=True, slots=True)
class Tally:
    """Units of a year by outcome. `unaccounted` stands apart even where it counts as not resolved."""

    resolved: int = 0
    not_resolved: int = 0
    pending: int = 0
    unaccounted: int = 0
    excluded: int = 0
    not_counted: int = 0

    def n(self, terms: Terms) -> int:
        """The denominator: every counted failure that is decided."""
        return sum(getattr(self, outcome) for outcome in counted_outcomes(terms))

    @property
    def k(self) -> int:
        """The numerator: failures resolved without loss."""
        return self.resolved


def tally(placings: Iterable[Placing]) -> Tally:
    """Counts each unit once, by its lead."""
    counts: dict[str, int] = {}
    for placing in placings:
        if placing.lead:
            counts[placing.outcome] = counts.get(placing.outcome, 0) + 1
    return Tally(**counts)


def commitment_met(resolved: int, counted: int, threshold_num: int, threshold_den: int) -> bool:
    """`met ⇔ resolved · den ≥ counted · num`, in integers; exactly the threshold passes, and so does an empty year."""
    return resolved * threshold_den >= counted * threshold_num


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict with the id of the rule that gave it."""

    name: VerdictName
    rule: str


def verdict(counts: Tally, terms: Terms, *, partial: bool = False) -> Verdict:
    """The year's verdict as far as it is known: pending failures leave it open only if they can still change it."""
    n, k, pending = counts.n(terms), counts.k, counts.pending
    if partial and terms.partial_year == "no_verdict":
        return Verdict("undecided", "partial_year_no_verdict")
    if n + pending == 0:
        if terms.empty_year == "no_verdict":
            return Verdict("undecided", "empty_year_no_verdict")
        return Verdict("no_failures", "empty_year_met")
    worst = commitment_met(k, n + pending, terms.threshold_num, terms.threshold_den)
    best = commitment_met(k + pending, n + pending, terms.threshold_num, terms.threshold_den)
    if worst != best:
        return Verdict("undecided", "pending_decide")
    return Verdict("met", "threshold_met") if best else Verdict("short", "threshold_missed")


def failures_still_allowed(resolved: int, counted: int, threshold_num: int, threshold_den: int) -> int:
    """`⌊n·(den-num)/den⌋ - (n-k)`: misses that the year could still have at this n; negative when it fell short."""
    return counted * (threshold_den - threshold_num) // threshold_den - (counted - resolved)


def share_floor(resolved: int, counted: int) -> str | None:
    """The share in per cent, floored to two decimals: 89.999 % is "89.99". None for a year without failures."""
    if counted == 0:
        return None
    hundredths = resolved * 10_000 // counted
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def share_bounds(counts: Tally, terms: Terms) -> tuple[Fraction, Fraction] | None:
    """The lowest and highest share that pending failures can still lead to; None without any failure."""
    n, pending = counts.n(terms), counts.pending
    if n + pending == 0:
        return None
    return Fraction(counts.k, n + pending), Fraction(counts.k + pending, n + pending)

"""From database rows to the facts that the pure rules and the waste formulas take."""

import datetime
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms, YearState
from yoco.contracts.selectors import year_closes_at, year_is_partial, year_terms_of
from yoco.guarantee.evidence import IncidentFacts, evidenced_kind, restarted
from yoco.guarantee.rules import Terms, Year
from yoco.incidents.models import AgentBoot, Incident, IncidentState, Origin, Run
from yoco.waste.model import How, WasteInput

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# Fields that an incident and its facts share by name.
IDENTITY = {"id", "run", "root_event", "open", "explained", "run_ended_at", "run_ended_step"}
SHARED = [field.name for field in fields(IncidentFacts) if field.name not in IDENTITY]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run as its agent's heartbeat told it, and the last step committed by then."""

    at: datetime.datetime
    step: int | None


def incidents_facts(incidents: Iterable[Incident]) -> list[IncidentFacts]:
    """What the rules see of these incidents, in their order.

    Two queries more where a report names no step afterwards: whether its run had ended there.
    """
    rows = list(incidents)
    ended = _runs_ended([row for row in rows if _may_be_complete(row)])
    return [incident_facts(row, ended=ended.get(row.pk)) for row in rows]


def incident_facts(incident: Incident, *, ended: RunEnd | None = None) -> IncidentFacts:
    """The facts of one incident, given the end of its run after its recovery."""
    return IncidentFacts(
        id=str(incident.public_id),
        run=str(incident.run_id),
        root_event=str(incident.root_event_id) if incident.root_event_id else None,
        explained=incident.origin == Origin.SILENCE and incident.state != IncidentState.OPEN,
        open=incident.state == IncidentState.OPEN,
        run_ended_at=ended.at if ended else None,
        run_ended_step=ended.step if ended else None,
        **{name: getattr(incident, name) for name in SHARED},
    )


def _may_be_complete(incident: Incident) -> bool:
    known = incident.last_committed_step is not None and incident.resumed_at is not None
    return known and incident.first_step_after is None


def _runs_ended(incidents: Sequence[Incident]) -> dict[int, RunEnd]:
    """By incident: the first end of its run, told in order, at or after its recovery.

    A boot's end is no end of the run if another boot of it was heard before and after. A boot that began afterwards is
    a later run under the same name.
    """
    if not incidents:
        return {}
    runs = Run.objects.in_bulk({row.run_id for row in incidents})
    boots_of: dict[tuple[uuid.UUID, str], list[AgentBoot]] = {}
    boots = AgentBoot.objects.filter(
        contract__in={run.contract_id for run in runs.values()},
        run_id__in={run.run_id for run in runs.values()},
    )
    for boot in boots.order_by("run_ended_at", "pk"):
        boots_of.setdefault((boot.contract_id, boot.run_id), []).append(boot)
    ends_of = {key: [end for boot in mine if (end := _end(boot, mine))] for key, mine in boots_of.items()}
    found = {}
    for row in incidents:
        run = runs[row.run_id]
        ends = ends_of.get((run.contract_id, run.run_id), [])
        after = [end for end in ends if row.resumed_at is not None and end.at >= row.resumed_at]
        if after:
            found[row.pk] = after[0]
    return found


def _end(boot: AgentBoot, boots: Iterable[AgentBoot]) -> RunEnd | None:
    """The end of the run that this boot told, unless another of its boots shows that it went on."""
    at = boot.run_ended_at
    if at is None:
        return None
    went_on = any(other.pk != boot.pk and other.first_seen_at <= at < other.last_seen_at for other in boots)
    return None if went_on else RunEnd(at, boot.last_step)


def terms_facts(terms: GuaranteeTerms) -> Terms:
    """The terms that decide placing and verdict."""
    values = {field.name: getattr(terms, field.name) for field in fields(Terms) if field.name != "exclusions"}
    return Terms(**values, exclusions=tuple(terms.exclusions))


def year_facts(year: ContractYear, *, contract: Contract, versions: list[GuaranteeTerms]) -> Year:
    """A contract year with the version that it is judged under."""
    terms = year_terms_of(versions, year=year, contract=contract)
    return Year(
        id=str(year.pk),
        starts_at=year.starts_at,
        ends_at=year.ends_at,
        guaranteed_from=year.guaranteed_from,
        guaranteed_until=year.guaranteed_until,
        closes_at=year_closes_at(year=year, contract=contract, terms=terms),
        terms=terms_facts(terms) if terms else None,
        partial=year_is_partial(year=year, contract=contract, terms=terms),
        closed=year.state == YearState.CLOSED,
    )


def contract_years(contract: Contract) -> list[Year]:
    """All years of a contract; two queries unless years and terms are prefetched."""
    versions = list(contract.terms.all())
    return [year_facts(year, contract=contract, versions=versions) for year in contract.years.all()]


def milliseconds(start: datetime.datetime | None, end: datetime.datetime | None) -> int | None:
    """Whole milliseconds from start to end, at least zero; None if either is unknown."""
    if start is None or end is None:
        return None
    return max(0, (end - start) // datetime.timedelta(milliseconds=1))


def waste_how(facts: IncidentFacts, *, attempted: bool) -> How:
    """Which formula describes what happened. The evidence decides: a job that went back lost that time, whatever was
    claimed."""
    if facts.open or facts.explained:
        return "open"
    before, after = facts.last_committed_step, facts.first_step_after
    went_back = before is not None and after is not None and after <= before
    if restarted(facts) or went_back or facts.resolution == "abandoned" or facts.resumed_at is None:
        tried = attempted or facts.resolution == "live_migration"
        return "migration_failed" if tried else "restarted"
    kind = evidenced_kind(facts)
    if kind == "planned":
        return "planned_move"
    return "preventive_move" if kind == "preventive" else "migrated"


def waste_input(incident: Incident, facts: IncidentFacts, *, overlap_ms: int = 0) -> WasteInput:
    """The durations of an incident's phases. Their sum is the measured stall, however little is known of its parts."""
    how = waste_how(facts, attempted=bool(incident.attempts))
    stall = milliseconds(facts.detected_at, facts.resumed_at)
    # A move that was announced lets the job run until it is quiet.
    announced = how in ("planned_move", "preventive_move")
    migration = milliseconds(facts.quiesced_at, facts.resumed_at) if announced else stall
    queue = restart = None
    if how in ("restarted", "migration_failed"):
        migration = 0 if how == "restarted" else None
        # Only the whole stall is measured: the time of a failed attempt is inside it, and so is no saving.
        if stall is not None:
            queue = min(milliseconds(facts.detected_at, facts.spare_ready_at) or 0, stall)
            restart = stall - queue
            migration = 0
    age = milliseconds(incident.last_checkpoint_at, facts.started_at)
    return WasteInput(
        how=how,
        gpus=incident.gpus,
        detection_ms=milliseconds(facts.started_at, facts.detected_at),
        queue_ms=queue,
        restart_ms=restart,
        recompute_ms=age,
        migration_ms=migration,
        step_ms=incident.step_ms,
        redo_limit_ms=age,
        preempted_gpus=incident.preempted_gpus or 0,
        preempted_ms=incident.preempted_ms or 0,
        overlap_ms=overlap_ms,
    )


def stall_of(incident: Incident, facts: IncidentFacts) -> tuple[datetime.datetime, datetime.datetime]:
    """From when to when the job lost time: since its last checkpoint if it went back to it, since it was quiet if the
    move was announced, else since the start."""
    how = waste_how(facts, attempted=bool(incident.attempts))
    start = facts.started_at
    if how in ("restarted", "migration_failed") and incident.last_checkpoint_at:
        start = min(start, incident.last_checkpoint_at)
    if how in ("planned_move", "preventive_move") and facts.quiesced_at:
        start = facts.quiesced_at
    return start, max(start, facts.resumed_at or facts.ended_at)

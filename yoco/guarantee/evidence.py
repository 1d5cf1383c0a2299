"""The facts of one incident and what they prove. Pure: neither Django nor pandas, no clock, no database.

A reporter states facts; it is also the party that would owe the credit. So nothing here believes a flag: a flag can
only speak against its reporter. Missing evidence means that a condition is not met, with that reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from yoco.guarantee.triggers import reading_evidences, xid_foretells
from yoco.incidents.phases import PHASE_ORDER
from yoco.incidents.trigger import FAILURE_SIGNALS, Kind, kind_evidenced

LIVE_SOURCES = frozenset({"replica", "leaving_worker", "redundant_shard"})
PHASES = (
    "started_at",
    "detected_at",
    "quiesced_at",
    "spare_ready_at",
    "state_moved_at",
    "state_verified_at",
    "resumed_at",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFacts:
    """What is known of one incident. Ids are texts, times are aware UTC, None means not reported."""

    id: str
    run: str
    kind: Kind
    signal: str
    started_at: datetime
    root_event: str | None = None
    origin: str = "agent"
    open: bool = False
    explained: bool = False
    xid: int | None = None
    trigger_detail: Mapping[str, Any] = field(default_factory=dict)
    node: str = ""
    rank: int | None = None
    detected_at: datetime | None = None
    quiesced_at: datetime | None = None
    spare_ready_at: datetime | None = None
    state_moved_at: datetime | None = None
    state_verified_at: datetime | None = None
    resumed_at: datetime | None = None
    last_committed_step: int | None = None
    first_step_after: int | None = None
    samples_before: int | None = None
    samples_after: int | None = None
    samples_per_step: int | None = None
    checkpoint_loaded: bool | None = None
    state_source: str = ""
    state_bytes: int | None = None
    digest_algorithm: str = ""
    digest_sent: str = ""
    digest_received: str = ""
    resolution: str = ""
    # The first end of the run that its agent told in order after the recovery, and the last step committed by then.
    run_ended_at: datetime | None = None
    run_ended_step: int | None = None

    @property
    def cause(self) -> str:
        """What failed, as far as it is named: `xid:79`, or the signal."""
        return f"xid:{self.xid}" if self.xid is not None else self.signal

    @property
    def ended_at(self) -> datetime:
        """The end of what is known: resumption, else the latest earlier phase."""
        times: list[datetime] = [at for name in PHASES if (at := getattr(self, name)) is not None]
        return max(times)


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the four conditions: whether the evidence meets it, a stable reason code, and the facts looked at."""

    name: str
    met: bool
    reason: str
    facts: dict[str, Any]


def _condition(name: str, reason: str, **facts: Any) -> Condition:
    return Condition(name, reason.startswith("ok_"), reason, facts)


def live_migration(facts: IncidentFacts) -> Condition:
    """Condition 1: the state came from a live peer or from the leaving worker's memory, not from storage."""
    missing = [name for name in PHASES if getattr(facts, name) is None]
    if facts.resolution in ("checkpoint_restart", "abandoned", "path_failover"):
        reason = f"reported_{facts.resolution}"
    elif not facts.state_source:
        reason = "source_missing"
    elif facts.state_source not in LIVE_SOURCES:
        reason = "source_not_live"
    elif not facts.state_bytes:
        reason = "no_bytes_moved"
    elif not (facts.digest_algorithm and facts.digest_sent and facts.digest_received):
        reason = "digest_missing"
    elif facts.digest_sent != facts.digest_received:
        reason = "digest_differs"
    elif missing:
        reason = "phases_missing"
    elif not _phases_in_order(facts):
        reason = "phases_out_of_order"
    else:
        reason = "ok_live_source"
    return _condition(
        "live_migration",
        reason,
        state_source=facts.state_source,
        state_bytes=facts.state_bytes,
        digest_algorithm=facts.digest_algorithm,
        digest_sent=facts.digest_sent,
        digest_received=facts.digest_received,
        missing_phases=missing,
        resolution=facts.resolution,
    )


def _phases_in_order(facts: IncidentFacts) -> bool:
    """No phase comes before its cause, by the table that the ingest checks each report with."""
    times = [(getattr(facts, before), getattr(facts, after)) for before, after in PHASE_ORDER]
    return all(first is None or second is None or first <= second for first, second in times)


def run_complete(facts: IncidentFacts) -> bool:
    """No step was left to do: after the recovery the run ended in order, at the step committed last before the failure.

    The end is told by the run's heartbeat, not by the report of the incident.
    """
    if facts.first_step_after is not None or facts.last_committed_step is None or facts.resumed_at is None:
        return False
    ended = facts.run_ended_at
    return ended is not None and ended >= facts.resumed_at and facts.run_ended_step == facts.last_committed_step


def no_lost_progress(facts: IncidentFacts) -> Condition:
    """Condition 2: the first step committed afterwards is the last committed step plus one, or none was left to do."""
    before, after = facts.last_committed_step, facts.first_step_after
    if run_complete(facts):
        reason = "ok_run_complete"
    elif before is None or after is None:
        reason = "steps_missing"
    elif after > before + 1:
        reason = "steps_skipped"
    elif after < before + 1:
        reason = "steps_lost"
    else:
        reason = "ok_next_step"
    ended = {"run_ended_step": facts.run_ended_step} if facts.run_ended_at is not None else {}
    return _condition("no_lost_progress", reason, last_committed_step=before, first_step_after=after, **ended)


def no_rollback(facts: IncidentFacts) -> Condition:
    """Condition 3: no checkpoint was loaded between detection and the first step committed afterwards."""
    if facts.checkpoint_loaded is None:
        reason = "checkpoint_unknown"
    elif facts.checkpoint_loaded or facts.state_source == "storage":
        reason = "checkpoint_loaded"
    else:
        reason = "ok_no_checkpoint"
    return _condition("no_rollback", reason, checkpoint_loaded=facts.checkpoint_loaded, state_source=facts.state_source)


def no_recompute(facts: IncidentFacts) -> Condition:
    """Condition 4: no committed step was run again, and the samples consumed are those of an uninterrupted run."""
    before, after = facts.last_committed_step, facts.first_step_after
    first, last, each = facts.samples_before, facts.samples_after, facts.samples_per_step
    expected = None
    if run_complete(facts) and first is not None and last is not None:
        expected = first
        reason = "ok_same_samples" if last == expected else "samples_differ"
    elif run_complete(facts):
        reason = "samples_missing"
    elif before is None or after is None:
        reason = "steps_missing"
    elif after <= before:
        reason = "steps_run_again"
    elif first is None or last is None or not each or each < 0:
        reason = "samples_missing"
    else:
        expected = first + each * (after - before)
        reason = "ok_same_samples" if last == expected else "samples_differ"
    return _condition(
        "no_recompute",
        reason,
        samples_before=first,
        samples_after=last,
        samples_per_step=each,
        samples_expected=expected,
    )


def conditions(facts: IncidentFacts) -> tuple[Condition, Condition, Condition, Condition]:
    """The four conditions in their order; an incident is resolved without loss only if all are met."""
    return live_migration(facts), no_lost_progress(facts), no_rollback(facts), no_recompute(facts)


def path_healed(facts: IncidentFacts) -> bool:
    """A network path healed without a migration: the trigger was a link, no state moved, and nothing was lost, rolled
    back or run again."""
    moved = (facts.state_source, facts.state_bytes, facts.digest_algorithm, facts.digest_sent, facts.digest_received)
    if facts.resolution != "path_failover" or facts.signal != "link" or any(moved):
        return False
    return no_lost_progress(facts).met and no_rollback(facts).met and no_recompute(facts).met


def restarted(facts: IncidentFacts) -> bool:
    """The workload started again from a checkpoint, or from nothing."""
    return facts.checkpoint_loaded is True or facts.resolution == "checkpoint_restart"


def evidenced_kind(facts: IncidentFacts) -> Kind:
    """The kind that the trigger allows."""
    return kind_evidenced(facts.kind, signal=facts.signal, xid=facts.xid)


def trigger_evidenced(facts: IncidentFacts) -> bool:
    """The trigger is more than a word: the reading that belongs to its signal, or an XID that foretells a failure.

    A failure that has happened needs no reading of what foretold it: its signal or any XID evidences it. An operator's
    word evidences nothing.
    """
    if facts.signal == "operator":
        return False
    if evidenced_kind(facts) == "unplanned" and (facts.xid is not None or facts.signal in FAILURE_SIGNALS):
        return True
    return xid_foretells(facts.xid, facts.trigger_detail) or reading_evidences(facts.signal, facts.trigger_detail)


def same_cause(a: IncidentFacts, b: IncidentFacts) -> bool:
    """Same named cause at the same place: the node or the logical rank, which a migration carries to another node.

    The same XID on two different nodes is two failures, and merging them would flatter the share.
    """
    if a.cause != b.cause:
        return False
    if a.node and a.node == b.node:
        return True
    if a.rank is not None and a.rank == b.rank:
        return True
    return not (a.node or b.node) and a.rank is None and b.rank is None


def within(later: datetime, earlier: datetime, window: timedelta) -> bool:
    """`later` is at most `window` after `earlier` (and may lie before it)."""
    return later - earlier <= window

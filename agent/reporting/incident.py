"""The facts of one incident, as the agent knows them.

An `IncidentRecord` holds what happened and nothing about how it travels: `IncidentReporter` adds the
envelope (`id`, `agent_id`, `boot_id`, `seq`, `type`, `sent_at`, `workload`, `schema_version`). The agent
states facts; the service classifies. A fact that is not known (yet) is `None`, never a guess.

Times are aware datetimes and leave as RFC 3339 in UTC. Build a later report of the same incident with
`dataclasses.replace(record, phases=replace(record.phases, resumed_at=...))`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from uuid_utils import uuid7

ATTEMPTS, OUTCOME_CHARACTERS, REASON_CHARACTERS = 100, 200, 1000
NESTING = 20

Kind = Literal["unplanned", "preventive", "planned"]
Signal = Literal["process_exit", "heartbeat_lost", "hang", "xid", "ecc", "thermal", "power", "link", "operator"]
StateSource = Literal["replica", "leaving_worker", "redundant_shard", "storage"]
SpareOrigin = Literal["pool", "preempted"]
Resolution = Literal["live_migration", "path_failover", "checkpoint_restart", "abandoned"]


def new_incident_id() -> str:
    """A new UUIDv7 for an incident; use the same one in every report about it."""
    return str(uuid7())


def rfc3339(moment: datetime) -> str:
    """`moment` in UTC with microseconds, e.g. `2026-11-30T16:42:14.000001Z`.

    Raises ValueError for a naive datetime: its instant is unknown.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; use datetime.now(UTC)")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


@dataclass(frozen=True, slots=True)
class Trigger:
    """What made the agent act.

    `detail` holds the readings, thresholds and window behind it, JSON values only.
    """

    signal: Signal
    xid: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Where:
    """The place that failed or was left. `rank` is the logical rank in the job."""

    node: str
    rank: int | None = None
    gpu_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Phases:
    """When each phase was reached; `None` for a phase not reached (yet)."""

    started_at: datetime | None = None
    detected_at: datetime | None = None
    quiesced_at: datetime | None = None
    spare_ready_at: datetime | None = None
    state_moved_at: datetime | None = None
    state_verified_at: datetime | None = None
    resumed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps and samples before and after.

    Steps are optimizer steps; `step_seconds` is the usual time of one step.
    """

    last_committed_step: int | None = None
    first_step_after: int | None = None
    samples_before: int | None = None
    samples_after: int | None = None
    samples_per_step: int | None = None
    checkpoint_loaded: bool | None = None
    last_checkpoint_step: int | None = None
    last_checkpoint_at: datetime | None = None
    step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class State:
    """Where the state came from, how many bytes moved, and the digests of both ends."""

    source: StateSource
    bytes: int | None = None
    digest_algorithm: str | None = None
    digest_sent: str | None = None
    digest_received: str | None = None


@dataclass(frozen=True, slots=True)
class Preempted:
    """The lower-priority run whose place was taken, and the work it lost, in wall-clock seconds."""

    run_id: str
    gpus: int
    lost_seconds: float


@dataclass(frozen=True, slots=True)
class Spare:
    """The place that took over."""

    node: str
    origin: SpareOrigin
    preempted: Preempted | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at recovery, in order. `outcome` and `reason` are short texts for people."""

    at: datetime
    outcome: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """Everything the agent states about one incident. `resolution` stays `None` until it is over."""

    incident_id: str
    kind: Kind
    trigger: Trigger
    where: Where
    phases: Phases = field(default_factory=Phases)
    progress: Progress | None = None
    state: State | None = None
    spare: Spare | None = None
    resolution: Resolution | None = None
    attempts: tuple[Attempt, ...] = ()
    root_event_id: str | None = None

    def payload(self) -> dict[str, Any]:
        """The record as JSON-ready values, within the service's limits. Raises ValueError where a time has no zone.

        Of the attempts the last hundred are told, and long texts are cut: a report must not be refused for these.
        """
        body: dict[str, Any] = _plain(self, 0)
        body["attempts"] = [
            dict(
                attempt,
                outcome=attempt["outcome"][:OUTCOME_CHARACTERS],
                reason=attempt["reason"] and attempt["reason"][:REASON_CHARACTERS],
            )
            for attempt in body["attempts"][-ATTEMPTS:]
        ]
        return body


def json_value(value: Any) -> Any:
    """`value` in types that every JSON parser and database takes and reads back alike.

    NaN, infinities, integers beyond 64 bits and unknown types become text; lone surrogates and U+0000 become `?`;
    what lies deeper than twenty levels is left out, and a text says so.
    """
    return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, datetime):
        return rfc3339(value)
    if not isinstance(value, (Mapping, list, tuple)) and not is_dataclass(value):
        return _text(value)
    if depth == NESTING:
        return "nested too deeply"
    if isinstance(value, Mapping):
        return {_text(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return {item.name: _plain(getattr(value, item.name), depth + 1) for item in fields(value)}


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode("utf-8").replace("\0", "?")

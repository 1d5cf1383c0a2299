"""One lost or left rank, from detection to the first newly committed step, as the report will state it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from agent.reporting.incident import (
    Attempt,
    IncidentRecord,
    Kind,
    Phases,
    Preempted,
    Progress,
    Signal,
    Spare,
    State,
    StateSource,
    Trigger,
    Where,
    new_incident_id,
)
from agent.wire import Message


class Incident:
    """Collects the evidence of one incident; `record` is what is known now."""

    def __init__(
        self,
        *,
        kind: Kind,
        signal: Signal,
        node: str,
        rank: int,
        lost: str,
        started_at: datetime,
        detected_at: datetime,
        detail: dict[str, Any],
        xid: int | None = None,
        gpu_uuid: str | None = None,
        root_event_id: str | None = None,
    ) -> None:
        self.record = IncidentRecord(
            incident_id=new_incident_id(),
            kind=kind,
            trigger=Trigger(signal=signal, xid=xid, detail=detail),
            where=Where(node=node, rank=rank if rank >= 0 else None, gpu_uuid=gpu_uuid),
            phases=Phases(started_at=started_at, detected_at=detected_at),
            root_event_id=root_event_id,
        )
        self.rank = rank
        self.lost = lost
        """The worker that was lost or left."""
        self.holder: str | None = None
        """The spare that takes over in the attempt under way."""

    def ended_how(self, how: str) -> None:
        """The kernel's word on the lost process."""
        trigger = self.record.trigger
        self.record = replace(self.record, trigger=replace(trigger, detail={**trigger.detail, "how": how}))

    def note(self, **facts: Any) -> None:
        """More about the trigger."""
        trigger = self.record.trigger
        self.record = replace(self.record, trigger=replace(trigger, detail={**trigger.detail, **facts}))

    def became_unplanned(self, signal: Signal, detail: dict[str, Any], started_at: datetime) -> None:
        """The worker was lost before it could leave: what was to be prevented or done at leisure has happened."""
        record = self.record
        was = {"kind": record.kind, "signal": record.trigger.signal, "detail": record.trigger.detail}
        self.record = replace(
            record,
            kind="unplanned",
            trigger=Trigger(signal=signal, xid=record.trigger.xid, detail={**detail, "leaving_because": was}),
            phases=Phases(started_at=started_at, detected_at=datetime.now(UTC)),
        )
        self.attempt_ended("failed", f"{self.lost} was lost before it had left")

    def quiesced(self, version: int, samples: int, step_seconds: float | None) -> None:
        """All survivors stand still at `version`, the last committed step.

        In a further attempt the times of the first one hold if the spare already has the state.
        """
        if self.record.state is not None:
            return
        self._phases(quiesced_at=datetime.now(UTC))
        self.record = replace(
            self.record,
            progress=Progress(
                last_committed_step=version,
                samples_before=samples,
                checkpoint_loaded=False,
                step_seconds=step_seconds,
            ),
        )

    def holder_lost(self) -> None:
        """The spare was lost before a step was committed: what it received counts no more."""
        self.holder = None
        self._phases(state_moved_at=None, state_verified_at=None, resumed_at=None)
        self.record = replace(self.record, state=None)

    def spare_assigned(self, worker: str, node: str, preempted: Preempted | None = None) -> None:
        """A spare is there to take the rank; `preempted` is the run whose place it has, if it was taken from one."""
        self.holder = worker
        self._phases(spare_ready_at=datetime.now(UTC))
        self.record = replace(self.record, spare=Spare(node, "preempted" if preempted else "pool", preempted))

    def state_moved(self, ready: Message, source: StateSource) -> None:
        """The spare holds the state and has verified it."""
        self._phases(
            state_moved_at=datetime.fromisoformat(ready["moved_at"]),
            state_verified_at=datetime.fromisoformat(ready["verified_at"]),
        )
        self.record = replace(
            self.record,
            state=State(
                source=source,
                bytes=ready["bytes"],
                digest_algorithm=ready["algorithm"],
                digest_sent=ready["digest_sent"],
                digest_received=ready["digest_received"],
            ),
        )

    def attempt_ended(self, outcome: str, reason: str | None = None) -> None:
        """One try at recovery is over, for better or worse."""
        attempt = Attempt(at=datetime.now(UTC), outcome=outcome, reason=reason)
        self.record = replace(self.record, attempts=(*self.record.attempts, attempt))

    def resumed(self) -> None:
        """All members were told to go on; the step in flight is redone from here."""
        self._phases(resumed_at=datetime.now(UTC))

    def resolved(self, version: int | None, samples: int | None) -> None:
        """Training went on: `version` is the first step committed afterwards (None: none was left to do)."""
        progress = self.record.progress or Progress()
        per_step = None if samples is None else samples - (progress.samples_before or 0)
        self.record = replace(
            self.record,
            progress=replace(progress, first_step_after=version, samples_after=samples, samples_per_step=per_step),
            resolution="live_migration" if self.rank >= 0 else "path_failover",
        )
        self.attempt_ended("resumed")

    def shrunk(self, present: int, wanted: int) -> None:
        """Training goes on without the rank: nothing that was committed is lost, but the run is another one."""
        self.attempt_ended("continued smaller", f"no spare was free: {present} of {wanted} workers go on")
        self.record = replace(self.record, resolution="abandoned")

    def abandoned(self, reason: str) -> None:
        """Training cannot go on."""
        self.attempt_ended("abandoned", reason)
        self.record = replace(self.record, resolution="abandoned")

    def to_record(self) -> dict[str, Any]:
        """For the coordinator's log."""
        return {"rank": self.rank, "lost": self.lost, "holder": self.holder, "record": self.record.payload()}

    @classmethod
    def from_record(cls, logged: dict[str, Any]) -> Incident:
        """The inverse of `to_record`."""
        incident = cls.__new__(cls)
        incident.rank, incident.lost, incident.holder = logged["rank"], logged["lost"], logged["holder"]
        facts = logged["record"]
        times = {name: text and datetime.fromisoformat(text) for name, text in facts["phases"].items()}
        progress, state, spare = facts["progress"], facts["state"], facts["spare"]
        incident.record = IncidentRecord(
            **{name: facts[name] for name in ("incident_id", "kind", "resolution", "root_event_id")},
            trigger=Trigger(**facts["trigger"]),
            where=Where(**facts["where"]),
            phases=Phases(**times),
            progress=progress and Progress(**progress),
            state=state and State(**state),
            spare=spare and Spare(**{**spare, "preempted": spare["preempted"] and Preempted(**spare["preempted"])}),
            attempts=tuple(
                Attempt(datetime.fromisoformat(each["at"]), each["outcome"], each["reason"])
                for each in facts["attempts"]
            ),
        )
        return incident

    def _phases(self, **times: datetime | None) -> None:
        self.record = replace(self.record, phases=replace(self.record.phases, **times))

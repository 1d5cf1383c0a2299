"""What the coordinator knows of the run, and what it has promised; rebuilt from its log after a restart."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent.evidence import Evidence
from agent.incidents import Incident
from agent.job import Job
from agent.reporting.incident import Kind, Preempted, Signal
from agent.roster import Member, Roster
from agent.wal import Record, Wal

if TYPE_CHECKING:
    from agent.drain import Drains

PATH = -1
"""The key of an incident in which connections broke and nobody was lost."""


NO_RESPAWN: tuple[Signal, ...] = ("xid", "ecc", "thermal", "power", "operator")
"""Signals after which no other process should be started in the same place: its GPU is bad, or it was given away."""


class RunState:
    """Shared by the coordinator's parts; every change that matters is in the log before anybody acts on it."""

    def __init__(self, job: Job, roster: Roster, wal: Wal, evidence: Evidence) -> None:
        self.job, self.roster, self.wal, self.evidence = job, roster, wal, evidence
        self.epoch = 0
        self.running = False
        """All members of `epoch` were told to go on."""
        self.equal = False
        """All ranks began from one state."""
        self.finished = False
        self.abandoned = False
        """The log says that the run was given up."""
        self.disturbance: str | None = None
        """Why the attempt under way cannot succeed."""
        self.suspected: tuple[float, str, Member] | None = None
        self.incidents: dict[int, Incident] = {}
        """Open incidents by rank (or `PATH`)."""
        self.fencing: set[str] = set()
        self.distrusted: set[str] = set()
        self.tested = -1
        """The step that is done again because numbers of one rank were not finite; this time it counts."""
        self.suspects: list[int] = []
        """The ranks whose numbers these were."""
        self.redo: str | None = None
        """Why the members must do their step again although nobody was lost."""
        self.not_finite_said = -1
        self.initial: dict[int, str] = {}
        """Each rank's private state before the first step."""
        self.lost_workers: set[str] = set()
        self.holders: dict[str, int] = {}
        """Workers and their ranks in the last plan."""
        self.hosts: dict[str, str] = {}
        """Where workers ran, by an earlier coordinator's word."""
        self.vacant: set[int] = set()
        """Ranks that the last plan left without a worker."""
        self.leaving_nodes: set[str] = set()
        """Hosts whose launchers were told to end."""
        self.preempted_by: str | None = None
        """A run of higher priority that has taken places of this one."""
        self.origins: dict[str, Preempted] = {}
        """Spares in places that another run gave up."""
        self.committed = 0
        self.samples = 0
        self.progress_at = time.monotonic()
        self._step_times: list[float] = []
        self.drains: Drains
        """Set by the coordinator."""

    def say(self, text: str) -> None:
        print(f"agent: {text}", file=sys.stderr, flush=True)

    @property
    def members_wanted(self) -> int:
        """How many workers the running epoch has when none is missing."""
        return self.job.workers - len(self.vacant)

    # Progress --------------------------------------------------------------------------------------------

    def step_committed(self, version: int, samples: int) -> None:
        """A rank committed `version` in the running epoch."""
        if version <= self.committed:
            return
        now = time.monotonic()
        self._step_times = [*self._step_times[-63:], (now - self.progress_at) / (version - self.committed)]
        self.progress_at = now
        self.committed, self.samples = version, samples
        self.evidence.heartbeat(version)

    def usual_step(self) -> float | None:
        """Seconds of a step, the median of the last 64."""
        return round(statistics.median(self._step_times), 6) if self._step_times else None

    # Losses ----------------------------------------------------------------------------------------------

    def lose(self, member: Member, signal: Signal, detail: dict[str, Any], ago: float = 0.0) -> None:
        """A member is gone, or must be: it will never take part again. `ago`: seconds since it was seen alive."""
        if not member.alive:
            return
        member.alive, rank = False, member.rank
        member.rank = None
        self.lost_workers.add(member.worker)
        self.fence(member)
        self.wal.append({"kind": "lost", "worker": member.worker, "rank": rank, "detail": detail})
        if not self.epoch or self.finished:
            return
        sick = detail.get("device_error") or detail.get("detector") == "nan_check"
        if signal not in NO_RESPAWN and not sick:
            self.replace(member)
        what = f"spare {member.worker}" if rank is None else f"rank {rank} ({member.worker} on {member.node})"
        self.say(f"{what} was lost after step {self.committed}: {signal}, {detail.get('how') or detail}")
        leaving = self.drains.lost(member, signal, detail, datetime.fromtimestamp(time.time() - ago, UTC))
        involved = rank is not None or any(each.holder == member.worker for each in self.incidents.values())
        if involved and not self.running:
            self.disturbance = f"{what} was lost"
        if rank is None:
            return
        if leaving is not None:
            self.incidents[rank] = leaving
            self.remember(leaving)
            return
        if rank in self.incidents:
            incident = self.incidents[rank]
            incident.attempt_ended("failed", f"{member.worker} was lost before a step was committed")
            incident.holder_lost()
            self.remember(incident)
            return
        self.open_incident("unplanned", signal, member, rank, detail, ago)

    def open_incident(
        self, kind: Kind, signal: Signal, member: Member, rank: int, detail: dict[str, Any], ago: float = 0.0
    ) -> Incident:
        """State that something happened. `rank` may be `PATH`."""
        now = datetime.now(UTC)
        incident = Incident(
            kind=kind,
            signal=signal,
            node=member.node,
            rank=rank,
            lost=member.worker,
            started_at=datetime.fromtimestamp(now.timestamp() - ago, UTC),
            detected_at=now,
            detail=detail,
        )
        self.incidents[rank] = incident
        self.remember(incident)
        self.evidence.detected(incident)
        return incident

    def remember(self, incident: Incident) -> None:
        """Write an open incident to the log, so that a restarted coordinator can go on with it."""
        self.wal.append({"kind": "incident", **incident.to_record()})

    def close_incident(self, incident: Incident) -> None:
        """State how it ended."""
        del self.incidents[incident.rank]
        self.evidence.resolved(incident)
        self.wal.append({"kind": "closed", "rank": incident.rank})

    def settle_incidents(self, version: int | None, samples: int | None) -> None:
        """The first step after the recovery is committed (None: none was left to do): the evidence is complete."""
        for incident in list(self.incidents.values()):
            if incident.record.phases.resumed_at is not None:
                incident.resolved(version, samples)
                self.close_incident(incident)

    def fence(self, member: Member) -> None:
        """End the process for certain, so that it never writes again."""
        node = self.roster.nodes.get(member.node)
        if node is not None:
            self.fencing.add(member.worker)
            node.tell({"type": "fence", "worker": member.worker})
        else:
            member.tell({"type": "abandon", "reason": f"worker {member.worker} was given up and replaced"})

    def take_over_place(self, worker: str, preempted: Preempted) -> None:
        """A spare of this name is about to start in a place that another run gave up."""
        self.origins[worker] = preempted
        self.wal.append({"kind": "preempted", "worker": worker, "run": asdict(preempted)})

    def replace(self, member: Member) -> None:
        """Ask the launcher of a lost process for a spare in its place, unless the place itself is bad or left."""
        node = self.roster.nodes.get(member.node)
        if node is not None and member.node not in self.drains.nodes:
            node.tell({"type": "replace", "worker": member.worker})

    def doubt(self, step: int, suspects: list[int]) -> None:
        """A step is done again to find out whether a device was sick; what comes out then counts."""
        self.tested, self.suspects = step, suspects
        self.wal.append({"kind": "tested", "step": step, "suspects": suspects})

    def verified_holders(self) -> dict[str, int]:
        """Workers of the last plan with their ranks, but for spares that had not received the state."""
        waiting = {each.holder for each in self.incidents.values() if each.record.state is None}
        return {worker: rank for worker, rank in self.holders.items() if worker not in waiting}

    # The log ---------------------------------------------------------------------------------------------

    def replay(self, records: list[Record]) -> None:
        """Rebuild what earlier coordinators of this run knew."""
        for record in records:
            match record["kind"]:
                case "initial":
                    self.initial = {int(rank): text for rank, text in record["private"].items()}
                    self.equal = record["equal"]
                case "epoch":
                    self.epoch, self.running = record["epoch"], False
                case "plan":
                    self.committed, self.samples = record["version"], record["samples"]
                    self.holders = record["ranks"]
                    self.hosts |= record["nodes"]
                    self.vacant = set(range(self.job.workers)) - set(self.holders.values())
                case "resume":
                    self.running = self.equal = True
                case "preempted":
                    self.origins[record["worker"]] = Preempted(**record["run"])
                case "tested":
                    self.tested, self.suspects = record["step"], record["suspects"]
                case "lost":
                    self.lost_workers.add(record["worker"])
                case "incident":
                    incident = Incident.from_record(record)
                    self.incidents[incident.rank] = incident
                case "closed":
                    self.incidents.pop(record["rank"], None)
                case "finished" | "abandoned":
                    self.finished, self.abandoned = True, record["kind"] == "abandoned"

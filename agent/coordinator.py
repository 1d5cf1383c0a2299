"""The coordinator: one incident at a time, one epoch after the other, until training goes on.

It holds no training state. It decides who is a member, from which version the run goes on and who sends state
to whom, and writes each decision to its log before anybody acts on it. An epoch ends when a member is lost,
leaves, or cannot reach the others. Then, for as many attempts as it takes:

    fence the lost → stop the others → plan → move state ∥ connect → all ready → resume

Nobody resumes before all are ready, and any loss before that begins the next attempt.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.drain import Drains, Situation
from agent.evidence import Evidence
from agent.incidents import Incident
from agent.planner import NeedSpares, OutOfStep, Plan, StateLost, Survivor, first_plan, make_plan
from agent.roster import Member, Node, Roster, address_of
from agent.settings import Limits
from agent.wal import Wal
from agent.wire import Message

ATTEMPTS_WITHOUT_LOSS = 5
"""Attempts that fail although nobody was lost, after which the run is given up."""


FIRST_SPARES_SECONDS = 20.0
"""How long the first step may wait for the spares."""


@dataclass(frozen=True)
class Job:
    """What the run was started with."""

    run_id: str
    workers: int
    spares: int
    limits: Limits


class Abandoned(Exception):
    """The run cannot go on; the message says why and what to do."""


class Disturbed(Exception):
    """The attempt under way cannot succeed; the message says why."""


class Coordinator:
    """See the module's text."""

    def __init__(self, job: Job, secret: bytes, folder: Path, evidence: Evidence) -> None:
        self._job = job
        self._limits = job.limits
        self._wal = Wal(folder / "coordinator.wal")
        self._evidence = evidence
        self._roster = roster = Roster(secret)
        roster.on_message, roster.on_node = self._on_message, self._on_node
        roster.on_silence, roster.on_node_lost = self._on_silence, self._on_node_lost
        self._epoch = 0
        self._running = self._finished = self._equal = False
        self._disturbance: str | None = None
        self._suspected: tuple[float, str] | None = None
        self._open: dict[int, Incident] = {}
        self._fencing: set[str] = set()
        self._distrusted: set[str] = set()
        self._initial: dict[int, str] = {}
        self._committed = 0
        self._samples = 0
        self._step_times: list[float] = []
        self._step_at = 0.0
        self._early: Member | None = None
        self._drains = Drains(roster, evidence, self._open, self._say)
        roster.on_request = self._on_request

    async def run(self, listener: socket.socket) -> int:
        """Coordinate until the run is over; returns the launcher's exit status."""
        server = await asyncio.start_server(self._roster.accept, sock=listener)
        try:
            await self._start()
            while not await self._wait_until_over_or_trouble():
                await self._recover()
            self._finish()
        except Abandoned as error:
            self._abandon(str(error))
            return 1
        finally:
            server.close()
            await asyncio.to_thread(self._evidence.close)
            for node in self._roster.nodes.values():
                node.tell({"type": "end"})
            await asyncio.sleep(0)
        return 0

    # The life of a run -----------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Wait until every worker has registered, and begin the first epoch."""
        everyone = self._job.workers

        def registered() -> bool:
            members = self._roster.members.values()
            early = [member for member in members if not member.alive and member.first_rank is not None]
            if early:
                self._early = early[0]
                return True
            return sum(member.registered for member in self._roster.active()) == everyone

        if not await self._roster.wait(registered, self._limits.start):
            missing = [str(rank) for rank in range(everyone) if rank not in self._registered_ranks()]
            raise Abandoned(
                f"rank {', '.join(missing)} did not reach agent.steps() within {self._limits.start:.0f} s; "
                "look at its output above, or raise --start-limit"
            )
        if self._early is not None:
            early = self._early
            await self._roster.wait(lambda: "how" in early.facts, 1.0)
            how = early.facts.get("how", "lost")
            raise Abandoned(f"rank {early.first_rank} ended before training began ({how}); see its output above")
        active = self._roster.active()
        for member in active:
            self._initial[member.rank or 0] = member.facts["initial"]
        await self._wait_for_first_spares()
        self._check_layouts(active)
        await self._recover()

    async def _wait_for_first_spares(self) -> None:
        """Spares come up with the workers; training begins without one that takes much longer."""
        spares = [member for member in self._roster.members.values() if member.first_rank is None]
        seconds = min(FIRST_SPARES_SECONDS, self._limits.spare)
        if not await self._roster.wait(
            lambda: all(member.registered or not member.alive for member in spares), seconds
        ):
            self._say("training begins although not all spares are ready")

    def _registered_ranks(self) -> set[int | None]:
        return {member.rank for member in self._roster.active() if member.registered}

    def _check_layouts(self, members: list[Member]) -> None:
        layouts = {member.facts["layout"] for member in members}
        if len(layouts) > 1:
            raise Abandoned(
                "the ranks built different models or gradient buckets; build the same model in the same order "
                "on every rank"
            )

    async def _wait_until_over_or_trouble(self) -> bool:
        """True when every rank has made its last step; False when the epoch must end."""

        def settled() -> bool:
            self._drains.advance(self._situation())
            return self._over() or self._trouble() is not None

        while True:
            await self._roster.wait(settled, 0.05 if self._suspected or self._drains.pending else 1.0)
            self._check_heartbeats()
            if self._trouble() is not None:
                return False
            if self._over():
                return True

    def _over(self) -> bool:
        active = self._roster.active()
        return len(active) == self._job.workers and all(member.done for member in active)

    def _trouble(self) -> str | None:
        """Why the epoch must end, if it must."""
        active = self._roster.active()
        if len(active) < self._job.workers or any(member.leaving for member in active):
            return "a rank is vacant"
        if self._suspected and time.monotonic() - self._suspected[0] > self._limits.settle:
            return self._suspected[1]
        return None

    def _situation(self) -> Situation:
        return Situation(self._running, self._committed, self._usual_step())

    def _check_heartbeats(self) -> None:
        for member in self._roster.active():
            silent = time.monotonic() - member.heard
            if member.registered and silent > self._limits.heartbeat:
                self._lost(member, "heartbeat_lost", {"silent_seconds": round(silent, 3)}, silent)

    def _finish(self) -> None:
        self._finished = True
        self._settle_incidents(None, self._samples)
        self._drains.run_ended("the run ended before the rank could move")
        self._wal.append({"kind": "finished"})
        self._evidence.run_ended()
        self._roster.tell_all({"type": "finish"}, list(self._roster.members.values()))

    def _abandon(self, reason: str) -> None:
        self._say(f"the run stops: {reason}")
        self._wal.append({"kind": "abandoned", "reason": reason})
        for incident in self._open.values():
            incident.abandoned(reason)
            self._evidence.resolved(incident)
        self._drains.run_ended(f"the run stopped: {reason}")
        self._evidence.run_ended()
        for node in self._roster.nodes.values():
            node.tell({"type": "abandon"})

    # Recovery --------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Attempt after attempt until all members have resumed. Raises Abandoned."""
        self._running = False
        self._drains.epoch_ended()
        fruitless = 0
        while True:
            self._epoch += 1
            self._disturbance = self._suspected = None
            losses = sum(not member.alive for member in self._roster.members.values())
            try:
                await self._attempt()
            except Disturbed as error:
                self._say(f"epoch {self._epoch}: {error}; trying again")
                for incident in self._open.values():
                    incident.attempt_ended("failed", str(error))
                if losses == sum(not member.alive for member in self._roster.members.values()):
                    fruitless += 1
                if fruitless >= ATTEMPTS_WITHOUT_LOSS:
                    raise Abandoned(f"{fruitless} attempts to connect the members failed: {error}") from error
            else:
                self._running = True
                return

    async def _attempt(self) -> None:
        self._wal.append({"kind": "epoch", "epoch": self._epoch})
        await self._fence_lost()
        await self._stop_members()
        plan = await self._plan()
        members = {name: self._roster.members[name] for name in plan.ranks}
        self._wal.append({"kind": "plan", "epoch": self._epoch, "version": plan.version, "ranks": plan.ranks})
        self._send_plan(plan, members)
        all_ready = await self._during_attempt(
            lambda: all(member.ready_in == self._epoch for member in members.values()), self._limits.form
        )
        if not all_ready:
            late = [name for name, member in members.items() if member.ready_in != self._epoch]
            for name in late:
                self._lost(members[name], "hang", {"phase": "forming", "seconds": self._limits.form})
            raise Disturbed(f"{', '.join(late)} did not get ready within {self._limits.form:.0f} s")
        self._wal.append({"kind": "resume", "epoch": self._epoch})
        for incident in self._open.values():
            incident.resumed()
        for member in self._roster.members.values():
            if member.alive and member.leaving:
                self._retire(member)
        self._roster.tell_all({"type": "resume", "epoch": self._epoch}, list(members.values()))
        self._committed, self._step_at = plan.version, time.monotonic()
        self._equal = True
        if self._epoch > 1:
            self._say(f"epoch {self._epoch}: training resumes after step {plan.version}")

    async def _during_attempt(self, predicate: Callable[[], bool], seconds: float) -> bool:
        """Like `Roster.wait`, but raises Disturbed as soon as the attempt cannot succeed."""

        def decided() -> bool:
            if self._disturbance is not None:
                raise Disturbed(self._disturbance)
            return predicate()

        return await self._roster.wait(decided, seconds)

    async def _fence_lost(self) -> None:
        """No process that was declared lost may write again: wait until each is gone."""
        if not await self._roster.wait(lambda: not self._fencing, self._limits.quiesce):
            self._say(f"no word that {', '.join(sorted(self._fencing))} ended; its epoch is over in any case")
            self._fencing.clear()
        self._disturbance = None  # who was lost up to here is not part of this attempt

    async def _stop_members(self) -> None:
        active = self._roster.active()
        self._roster.tell_all({"type": "stop", "epoch": self._epoch}, active)
        if not await self._during_attempt(
            lambda: all(member.stopped_in == self._epoch for member in active), self._limits.quiesce
        ):
            late = [member for member in active if member.stopped_in != self._epoch]
            for member in late:
                self._lost(member, "hang", {"phase": "stopping", "seconds": self._limits.quiesce})
            raise Disturbed(f"{', '.join(member.worker for member in late)} did not stop")

    async def _plan(self) -> Plan:
        """The next epoch. Waits for spares as long as the limits allow. Raises Abandoned or Disturbed."""
        survivors = [
            Survivor(member.worker, member.rank or 0, member.version, member.prepared, member.node, member.leaving)
            for member in self._roster.active()
        ]
        if survivors:
            version = max(survivor.version for survivor in survivors)
            self._samples = max(member.samples for member in self._roster.active())
            for incident in self._open.values():
                incident.quiesced(version, self._samples, self._usual_step())
        while True:
            spares = self._matching_spares(survivors)
            try:
                plan = self._make_plan(survivors, [member.worker for member in spares])
            except OutOfStep as error:
                self._lost(self._roster.members[error.worker], "hang", {"reason": str(error)})
                raise Disturbed(f"{error.worker} is {error}") from error
            except StateLost as error:
                raise Abandoned(f"{error}; start again from the last checkpoint") from error
            except NeedSpares as error:
                if self._drains.give_way():
                    raise Disturbed("a leaving worker stays for now, because its spare is needed") from error
                await self._wait_for_spares(error.count, len(spares))
                continue
            for worker, rank in plan.targets.items():
                if rank in self._open:
                    self._open[rank].spare_assigned(worker, self._roster.members[worker].node)
            return plan

    def _make_plan(self, survivors: list[Survivor], spares: list[str]) -> Plan:
        if self._equal:
            return make_plan(survivors, spares, self._job.workers, distrusted=frozenset(self._distrusted))
        digests = {member.worker: member.facts["digest"] for member in self._roster.active()}
        return first_plan(survivors, spares, self._job.workers, digests)

    def _matching_spares(self, survivors: list[Survivor]) -> list[Member]:
        """Spares that built the same model as the members."""
        if not survivors:
            return []
        layout = self._roster.members[survivors[0].worker].facts["layout"]
        spares = self._drains.in_order(self._roster.spares())
        for member in spares:
            if member.facts["layout"] != layout:
                self._say(f"spare {member.worker} built a different model or gradient buckets; it is not used")
        return [member for member in spares if member.facts["layout"] == layout]

    async def _wait_for_spares(self, missing: int, present: int) -> None:
        ranks = ", ".join(str(rank) for rank in sorted(self._open)) or "?"
        self._say(f"rank {ranks} is vacant and {missing} more spare(s) are needed; waiting for one")
        for incident in self._open.values():
            incident.attempt_ended("waiting", "no spare is free")
            self._evidence.amended(incident)
        came = await self._during_attempt(lambda: len(self._roster.spares()) > present, self._limits.spare)
        if not came:
            raise Abandoned(
                f"rank {ranks} was lost after step {self._committed} and no spare came within "
                f"{self._limits.spare:.0f} s; start with more spares (--spares) or wait longer (--spare-limit)"
            )

    def _send_plan(self, plan: Plan, members: dict[str, Member]) -> None:
        holder = next(iter(name for name in members if name not in plan.targets), None)
        sources = [[name, address_of(self._roster.members[name], "state")] for name in plan.sources]
        message: Message = {
            "type": "plan",
            "epoch": self._epoch,
            "version": plan.version,
            "ranks": plan.ranks,
            "targets": list(plan.targets),
            "sources": sources,
            "store": address_of(members[holder or next(iter(members))], "store"),
        }
        if plan.version == 0:
            message["initial"] = [self._initial[rank] for rank in range(self._job.workers)]
        everyone = set(members) | set(plan.sources)
        self._roster.tell_all(message, [self._roster.members[name] for name in everyone])

    def _retire(self, member: Member) -> None:
        """A member that has given its rank away leaves the run."""
        member.alive, member.rank = False, None
        self._fence(member)

    # What members and nodes say --------------------------------------------------------------------------

    def _on_message(self, member: Member, message: Message) -> None:
        match message["type"]:
            case "committed":
                self._on_committed(message)
            case "stopped" if message["epoch"] == self._epoch:
                member.stopped_in = self._epoch
                member.version, member.prepared = message["version"], message["prepared"]
                member.samples = message["samples"]
            case "ready" if message["epoch"] == self._epoch:
                self._on_ready(member, message)
            case "failed" if message["epoch"] == self._epoch:
                if message.get("damaged"):
                    self._distrusted.add(message.get("source", ""))
                self._disturbance = f"{member.worker}: {message['reason']}"
            case "suspect" if message["epoch"] == self._epoch and self._running:
                self._suspected = self._suspected or (time.monotonic(), f"{member.worker}: {message['reason']}")
            case "done":
                member.done = True
            case "leave":
                self._request_drain({"workers": [member.worker], "kind": "planned", "signal": "operator", **message})
        self._drains.heard(member, message)

    def _on_ready(self, member: Member, message: Message) -> None:
        member.ready_in = self._epoch
        if "digest_sent" not in message:
            return
        member.facts["digest"] = message["digest_received"]
        if member.rank is not None:
            return
        rank = next(r for r, incident in self._open.items() if incident.holder == member.worker)
        # It holds the verified state: from here on it can replace the source, should that be lost now.
        source = self._roster.members[message["source"]]
        member.rank = rank
        member.version, member.prepared = source.version, False
        self._open[rank].state_moved(message, "leaving_worker" if source.leaving else "replica")

    def _on_committed(self, message: Message) -> None:
        if not self._running or message["epoch"] != self._epoch or message["version"] <= self._committed:
            return
        now = time.monotonic()
        self._step_times = [*self._step_times[-63:], now - self._step_at]
        self._step_at = now
        self._committed, self._samples = message["version"], message["samples"]
        self._settle_incidents(self._committed, self._samples)
        self._evidence.heartbeat(self._committed)

    def _settle_incidents(self, version: int | None, samples: int | None) -> None:
        """The first step after the recovery is committed: the evidence is complete."""
        done = [rank for rank, incident in self._open.items() if incident.record.phases.resumed_at is not None]
        for rank in done:
            incident = self._open.pop(rank)
            incident.resolved(version, samples)
            self._evidence.resolved(incident)

    def _usual_step(self) -> float | None:
        return round(statistics.median(self._step_times), 6) if self._step_times else None

    def _on_silence(self, member: Member, reason: str) -> None:
        if member.rank is not None and member.node not in self._roster.nodes:
            self._lost(member, "heartbeat_lost", {"reason": reason})

    def _on_node(self, node: Node, message: Message) -> None:
        if message["type"] == "started":
            self._roster.add(message["worker"], node.name, message["rank"], message["pid"])
            return
        if message["type"] == "drain":
            self._request_drain(message)
            return
        member = self._roster.members.get(message["worker"])
        if member is None:
            return
        if message["type"] == "fenced":
            self._fencing.discard(member.worker)
            return
        if message["type"] == "status":
            self._ended_how(member, message["how"])
            return
        detail = {key: message[key] for key in ("how", "detector", "status")}
        self._lost(member, message["signal"], detail, message["since_alive"])

    def _ended_how(self, member: Member, how: str) -> None:
        """The exit status of a worker, which the kernel gives later than the news of its end."""
        member.facts["how"] = how
        for incident in self._open.values():
            if incident.lost == member.worker and incident.record.kind == "unplanned":
                incident.ended_how(how)

    def _on_node_lost(self, node: Node) -> None:
        for member in list(self._roster.members.values()):
            if member.node == node.name and member.alive:
                self._lost(member, "heartbeat_lost", {"reason": f"node {node.name} was lost"})

    def _lost(self, member: Member, signal: Any, detail: dict[str, Any], ago: float = 0.0) -> None:
        """A member is gone, or must be: it will never take part again."""
        if not member.alive:
            return
        member.alive, rank = False, member.rank
        member.rank = None
        self._fence(member)
        self._wal.append({"kind": "lost", "worker": member.worker, "rank": rank, "detail": detail})
        if not self._epoch or self._finished:
            return
        what = f"spare {member.worker}" if rank is None else f"rank {rank} ({member.worker} on {member.node})"
        self._say(f"{what} was lost after step {self._committed}: {signal}, {detail}")
        leaving = self._drains.lost(member, signal, detail, datetime.fromtimestamp(time.time() - ago, UTC))
        involved = rank is not None or any(each.holder == member.worker for each in self._open.values())
        if involved and not self._running:
            self._disturbance = f"{what} was lost"
        if rank is None:
            return
        if leaving is not None:
            self._open[rank] = leaving
            return
        if rank in self._open:
            self._open[rank].attempt_ended("failed", f"{member.worker} was lost before training resumed")
            return
        now = datetime.now(UTC)
        started = datetime.fromtimestamp(now.timestamp() - ago, UTC)
        incident = Incident(
            kind="unplanned",
            signal=signal,
            node=member.node,
            rank=rank,
            lost=member.worker,
            started_at=started,
            detected_at=now,
            detail=detail,
        )
        self._open[rank] = incident
        self._evidence.detected(incident)

    def _on_request(self, message: Message) -> Message:
        """The command line asks."""
        match message["type"]:
            case "drain":
                return self._request_drain(message)
            case "drain_status":
                return self._drains.status(message["drains"])
        return {"type": "unknown"}

    def _request_drain(self, message: Message) -> Message:
        if message["kind"] == "preventive":
            for member in self._roster.spares():
                if member.worker in message.get("workers", []):
                    self._lost(member, message["signal"], message["detail"])  # no spare on a GPU that fails
        answer = self._drains.request(message, self._situation())
        if answer["type"] == "refused" and not answer["again"]:
            self._say(f"no drain: {answer['reason']}")
        self._roster.changed.set()
        return answer

    def _fence(self, member: Member) -> None:
        """End the process for certain, so that it never writes again."""
        node = self._roster.nodes.get(member.node)
        if node is not None:
            self._fencing.add(member.worker)
            node.tell({"type": "fence", "worker": member.worker})

    def _say(self, text: str) -> None:
        print(f"agent: {text}", file=sys.stderr, flush=True)

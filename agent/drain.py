"""Ranks that leave their place before it fails: on an operator's word (planned) or on a sick GPU's (preventive).

A drain goes through these stages while training goes on:

    waiting    for a spare
    shadowing  the spare copies the leaving worker and follows it (`agent.shadow`)
    ready      the copy is complete, or was given up: then the move stops and copies
    pausing    all workers were told after which step to stand still
    moving     they do; from here on the coordinator's recovery replaces the worker as if it were lost
    done, failed

If the worker dies before its state has moved, the incident becomes an unplanned one and recovers like any other.
If its spare is needed for a rank that was lost, the drain waits for another.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agent.incidents import Incident
from agent.roster import Member, address_of
from agent.run_state import RunState
from agent.wire import Message

STOP_AND_COPY_BELOW = 5.0
"""With less notice than these seconds there is no time to follow the leaving worker."""
TAKEN_OVER_SECONDS = 60.0
"""How long a drain that another coordinator began may still wait for a spare."""
PAUSE_SECONDS = 10.0
"""How long the agreed pause may take to be reached before the epoch is ended in mid-step."""
MESSAGE_SECONDS = 0.05
"""The pause lies at least this far ahead, so that everybody hears of it in time."""


@dataclass
class Drain:
    """One rank on its way out of one worker."""

    member: Member
    rank: int
    incident: Incident
    follow: bool
    """Follow the worker before the move; otherwise stop and copy."""
    due: float
    """When the move must begin, by the monotonic clock, whether or not the copy is complete."""
    gives_up: float | None
    """When to give up waiting for a spare; None: never (a preventive drain)."""
    stage: str = "waiting"
    reason: str = ""
    spare: Member | None = None

    @property
    def over(self) -> bool:
        return self.stage in ("done", "failed")


@dataclass
class Pause:
    """All workers stand still after `version`."""

    version: int
    until: float
    reached: dict[str, int] = field(default_factory=dict)


class Drains:
    """All drains of a run. The coordinator calls `advance` often, and tells what happens to members."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._roster, self._evidence, self._say = state.roster, state.evidence, state.say
        self._drains: list[Drain] = []
        self._pause: Pause | None = None
        self.nodes: set[str] = set()
        """Nodes that are being left: their spares are not used."""

    # Requests ------------------------------------------------------------------------------------------------

    def ask(self, message: Message) -> Message:
        """A person, a scheduler or GPU health asks. The answer says which incidents follow, or why not."""
        if message["kind"] == "preventive":
            for member in self._roster.spares():
                if member.worker in message.get("workers", []):
                    # There is no point in a spare on a GPU that fails.
                    self._state.lose(
                        member, message["signal"], {"how": "its GPU is about to fail", **message["detail"]}
                    )
        answer = self._request(message)
        if answer["type"] == "refused" and not answer["again"]:
            self._say(f"no drain: {answer['reason']}")
        self._roster.changed.set()
        return answer

    def answer(self, message: Message) -> Message:
        """What the command line asks."""
        match message["type"]:
            case "drain":
                return self.ask(message)
            case "drain_status":
                return self._status(message["incidents"])
        return {"type": "unknown"}

    def _request(self, message: Message) -> Message:
        """Begin to drain `ranks`, `workers` or a `node`."""
        if self._state.finished:
            return _refused("the run is over")
        if not self._state.running and not self._state.committed:
            return _refused("training has not begun yet", again=True)
        chosen = self._chosen(message)
        if not chosen:
            return _refused(f"no worker of this run is at {_place(message)}")
        node = message.get("node")
        planned = message["kind"] == "planned"
        running = {drain.member.worker: drain for drain in self._drains if not drain.over}
        fresh = [member for member in chosen if member.worker not in running]
        free = [member for member in self.free() if member.node != node]
        if planned and len(free) < len(fresh):
            there = f"{len(free)} free spare(s)" + (" on other nodes" if node else "")
            return _refused(f"{len(fresh)} rank(s) have to move and there are {there}; start with more --spares")
        if node:
            self.nodes.add(node)
        drains = [running.get(member.worker) or self._begin(member, message) for member in chosen]
        return {
            "type": "accepted",
            "incidents": [drain.incident.record.incident_id for drain in drains],
        }

    def _chosen(self, message: Message) -> list[Member]:
        active = self._roster.active()
        if "node" in message:
            return [member for member in active if member.node == message["node"]]
        if "workers" in message:
            return [member for member in active if member.worker in message["workers"]]
        return [member for member in active if member.rank in message["ranks"]]

    def _begin(self, member: Member, message: Message) -> Drain:
        now, notice = datetime.now(UTC), float(message["notice"])
        began = datetime.fromisoformat(message["at"]) if "at" in message else now
        assert member.rank is not None
        incident = Incident(
            kind=message["kind"],
            signal=message["signal"],
            xid=message.get("xid"),
            gpu_uuid=message.get("gpu_uuid"),
            node=member.node,
            rank=member.rank,
            lost=member.worker,
            started_at=min(began, now),
            detected_at=now,
            detail=dict(message["detail"]),
        )
        drain = Drain(
            member=member,
            rank=member.rank,
            incident=incident,
            follow=message.get("mode") != "stop-and-copy" and notice >= STOP_AND_COPY_BELOW,
            due=time.monotonic() + notice / 2,
            gives_up=time.monotonic() + notice if message["kind"] == "planned" else None,
        )
        self._drains.append(drain)
        self._state.remember(incident)
        self._evidence.detected(incident)
        self._say(f"rank {drain.rank} leaves {member.worker} on {member.node} ({message['kind']}: {message['signal']})")
        return drain

    def _status(self, incidents: Sequence[str]) -> Message:
        """What has become of drains; the coordinator's answer to `agent drain`."""
        found = [each for each in self._drains if each.incident.record.incident_id in incidents]
        stages = [{"rank": each.rank, "stage": each.stage, "reason": each.reason} for each in found]
        return {"type": "drains", "drains": stages, "over": all(each.over for each in found)}

    # The course of a drain -----------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether any drain needs `advance`."""
        return any(not drain.over for drain in self._drains)

    def advance(self) -> None:
        """Take every drain as far as it can go now."""
        if not self.pending:
            return
        self._settle()
        if not self._state.running:
            return
        now = time.monotonic()
        for drain in self._drains:
            if drain.spare is not None and drain.spare.rank is not None and drain.stage in ("shadowing", "ready"):
                drain.spare, drain.stage = None, "waiting"  # it took another rank
            if drain.stage == "waiting":
                self._find_spare(drain, now)
            if drain.stage == "shadowing" and now > drain.due:
                self._give_up_following(drain, "the copy was not complete in time")
        if self._pause is None:
            self._agree_on_pause(now)
        elif self._paused() or now > self._pause.until:
            self._move()

    def _find_spare(self, drain: Drain, now: float) -> None:
        free = self.free()
        if not free:
            if drain.gives_up is not None and now > drain.gives_up:
                self._fail(drain, "no spare came")
            return
        if drain.follow and self._state.committed == 0:
            return  # there is no optimizer state to follow yet
        drain.spare = free[0]
        drain.stage = "ready"
        if drain.follow:
            drain.stage = "shadowing"
            source = [drain.member.worker, address_of(drain.member, "state")]
            drain.spare.tell({"type": "shadow", "source": source})

    def _give_up_following(self, drain: Drain, reason: str) -> None:
        drain.stage, drain.follow = "ready", False
        drain.incident.attempt_ended("stop-and-copy", reason)
        self._say(f"rank {drain.rank} stops and copies: {reason}")

    def _agree_on_pause(self, now: float) -> None:
        drains = [drain for drain in self._drains if not drain.over]
        ready = [drain for drain in drains if drain.stage == "ready"]
        if not ready or any(drain.stage == "shadowing" for drain in drains):
            return
        usual = self._state.usual_step() or 0.1
        version = self._state.committed + 2 + int(MESSAGE_SECONDS / max(usual, 0.001))
        last = int(self._roster.active()[0].facts["total"]) - 1
        if self._state.committed >= last:
            return
        for drain in ready:
            drain.stage = "pausing"
        self._pause = Pause(min(version, last), now + max(PAUSE_SECONDS, 20 * usual))
        self._roster.tell_all({"type": "pause", "version": self._pause.version}, self._roster.active())

    def _paused(self) -> bool:
        pause = self._pause
        return pause is not None and all(
            pause.reached.get(member.worker, 0) >= pause.version for member in self._roster.active()
        )

    def _move(self) -> None:
        self._pause = None
        for drain in self._drains:
            if drain.stage == "pausing":
                drain.stage = "moving"
                drain.member.leaving = True
                self._state.incidents[drain.rank] = drain.incident
                self._state.remember(drain.incident)

    def _settle(self) -> None:
        for drain in self._drains:
            record = drain.incident.record
            if drain.stage == "moving" and record.resolution is not None:
                drain.stage = "done" if record.resolution == "live_migration" else "failed"
                drain.reason = record.attempts[-1].reason or "" if record.attempts else ""

    def _fail(self, drain: Drain, reason: str) -> None:
        drain.stage, drain.reason = "failed", reason
        drain.incident.abandoned(reason)
        self._state.wal.append({"kind": "closed", "rank": drain.rank})
        self._evidence.resolved(drain.incident)
        self._say(f"rank {drain.rank} stays with {drain.member.worker}: {reason}")

    # What the coordinator tells ------------------------------------------------------------------------------

    def heard(self, member: Member, message: Message) -> None:
        """A member said something."""
        match message["type"]:
            case "committed" if self._pause is not None:
                self._pause.reached[member.worker] = message["version"]
            case "shadow_ready" | "shadow_failed":
                for drain in self._drains:
                    if drain.stage == "shadowing" and member in (drain.spare, drain.member):
                        if message["type"] == "shadow_ready":
                            drain.stage = "ready"
                            drain.incident.attempt_ended("followed", f"copied and checked at step {message['version']}")
                        else:
                            self._give_up_following(drain, message["reason"])

    def lost(self, member: Member, signal: Any, detail: dict[str, Any], started_at: datetime) -> Incident | None:
        """A member was lost. Returns the incident of its drain, if it was leaving."""
        for drain in self._drains:
            if drain.spare is member:
                drain.spare = None
                if drain.stage in ("shadowing", "ready"):
                    drain.stage = "waiting"
            if drain.member is member and not drain.over:
                if drain.stage == "moving" and self._holder_is_there(drain):
                    return drain.incident  # its state had moved already
                drain.stage, drain.reason = "failed", "the worker was lost before it had left"
                drain.incident.became_unplanned(signal, detail, started_at)
                self._evidence.amended(drain.incident)
                return drain.incident
        return None

    def _holder_is_there(self, drain: Drain) -> bool:
        others = [member for member in self._roster.active() if member is not drain.member]
        return any(member.rank == drain.rank for member in others)

    def give_way(self) -> bool:
        """The spares do not suffice: keep the leaving workers for now. Whether that freed a spare."""
        freed = False
        for drain in self._drains:
            if drain.stage == "moving" and drain.member.alive and not self._holder_is_there(drain):
                drain.member.leaving = False
                del self._state.incidents[drain.rank]
                drain.stage, drain.spare, freed = "waiting", None, True
                drain.incident.attempt_ended("postponed", "its spare was needed for a rank that was lost")
                self._evidence.amended(drain.incident)
        return freed

    def take_over(self) -> bool:
        """Go on with the drains of an earlier coordinator, without following. Whether there were any."""
        now = time.monotonic()
        for rank, incident in list(self._state.incidents.items()):
            member = self._roster.members.get(incident.lost)
            if incident.record.kind != "unplanned" and member is not None and member.alive and member.rank == rank:
                del self._state.incidents[rank]
                gives_up = None if incident.record.kind == "preventive" else now + TAKEN_OVER_SECONDS
                self._drains.append(Drain(member, rank, incident, False, now, gives_up))
        return bool(self._drains)

    def epoch_ended(self) -> None:
        """The epoch ended before the agreed pause was reached."""
        self._pause = None
        for drain in self._drains:
            if drain.stage == "pausing":
                drain.stage = "ready"

    def run_ended(self, reason: str) -> None:
        """The run is over: what has not begun to move never will."""
        self._settle()
        for drain in self._drains:
            if not drain.over and drain.stage != "moving":
                self._fail(drain, reason)

    # Spares --------------------------------------------------------------------------------------------------

    def free(self) -> list[Member]:
        """Spares that no drain has chosen, on nodes that nobody leaves."""
        chosen = [drain.spare for drain in self._drains if not drain.over]
        return [member for member in self._usable() if member not in chosen]

    def in_order(self, spares: list[Member]) -> list[Member]:
        """Spares as a plan should take them: those of the moves under way by rank, free ones, chosen ones."""
        moving = {drain.spare.worker: drain.rank for drain in self._drains if drain.stage == "moving" and drain.spare}
        chosen = {drain.spare.worker for drain in self._drains if not drain.over and drain.spare}
        usable = [member for member in spares if member.node not in self.nodes]
        return sorted(
            usable, key=lambda each: (each.worker not in moving, moving.get(each.worker, 0), each.worker in chosen)
        )

    def _usable(self) -> list[Member]:
        spares = self.in_order(self._roster.spares())
        active = self._roster.active()
        return [each for each in spares if active and each.facts["layout"] == active[0].facts["layout"]]


def _refused(reason: str, *, again: bool = False) -> Message:
    """`again`: asking later may help."""
    return {"type": "refused", "reason": reason, "again": again}


def _place(message: Message) -> str:
    if "node" in message:
        return f"node {message['node']}"
    if "workers" in message:
        return ", ".join(message["workers"])
    return "rank " + ", ".join(str(rank) for rank in message["ranks"])

"""From a broken epoch to the next one that runs.

    fence the lost → stop the others → plan → move state ∥ connect → all ready → resume

Nobody resumes before all are ready, and any loss before that begins the next attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agent import faults
from agent.planner import Holder, NeedSpares, OutOfStep, Plan, Sharding, StateLost, Survivor, first_plan, make_plan
from agent.preemption import take_places
from agent.roster import Member, address_of
from agent.run_state import RunState
from agent.wire import Message

ATTEMPTS_WITHOUT_LOSS = 5
"""Attempts without a loss and without a step between them, after which the run is given up."""

ASKED_SECONDS = 2.0
"""How long a launcher may take to say that it has started a spare it was asked for."""


class Abandoned(Exception):
    """The run cannot go on; the message says why and what to do."""


class Disturbed(Exception):
    """The attempt under way cannot succeed; the message says why."""


class Recovery:
    """Makes attempts, one epoch each, until all members have resumed."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._roster, self._limits = state.roster, state.job.limits
        self._fruitless = 0
        self._last = (-1, -1)

    async def run(self) -> None:
        """Raises Abandoned if the run cannot go on."""
        state = self._state
        state.running = False
        state.drains.epoch_ended()
        while True:
            self._count_fruitless()
            state.epoch += 1
            faults.script.step = state.committed + 1
            state.disturbance = state.suspected = state.redo = None
            try:
                await self._attempt()
            except Disturbed as error:
                state.say(f"epoch {state.epoch}: {error}; trying again")
                for incident in state.incidents.values():
                    incident.attempt_ended("failed", str(error))
            else:
                state.running = True
                return

    def _count_fruitless(self) -> None:
        """Give up where attempts follow each other although nobody is lost and no step gets done."""
        now = (self._state.committed, len(self._state.lost_workers))
        self._fruitless = self._fruitless + 1 if now == self._last else 0
        self._last = now
        if self._fruitless >= ATTEMPTS_WITHOUT_LOSS:
            raise Abandoned(
                f"{self._fruitless} attempts to connect the members failed although none was lost "
                f"({self._state.disturbance}); check the network between the hosts"
            )

    async def _attempt(self) -> None:
        state = self._state
        state.wal.append({"kind": "epoch", "epoch": state.epoch})
        faults.at("fence")
        await self._fence_lost()
        faults.at("quiesce")
        await self._stop_members()
        faults.at("plan")
        plan = await self._plan()
        members = {name: self._roster.members[name] for name in plan.ranks}
        record = {"kind": "plan", "epoch": state.epoch, "version": plan.version, "samples": state.samples}
        state.wal.append({**record, "ranks": plan.ranks, "nodes": {name: each.node for name, each in members.items()}})
        state.holders = plan.ranks
        state.vacant = set(range(state.job.workers)) - set(plan.ranks.values())
        facts = next(iter(members.values())).facts
        state.evidence.describe(strategy=facts["strategy"], replicas=facts["replicas"])
        faults.at("planned")
        self._send(plan, members)
        faults.at("sent")
        if not await self._wait(lambda: all(each.ready_in == state.epoch for each in members.values()), "form"):
            self._lose_late([each for each in members.values() if each.ready_in != state.epoch], "get ready", "form")
        faults.at("all-ready")
        for name, member in members.items():
            member.rank = plan.ranks[name]
        self._close_unfilled(plan)
        for incident in state.incidents.values():
            incident.resumed()
            state.remember(incident)
        state.wal.append({"kind": "resume", "epoch": state.epoch})
        faults.at("resume")
        for member in list(self._roster.members.values()):
            if member.alive and member.leaving:
                self._retire(member)
        self._roster.tell_all({"type": "resume", "epoch": state.epoch}, list(members.values()))
        faults.at("resumed")
        state.committed, state.progress_at, state.equal = plan.version, time.monotonic(), True
        if state.epoch > 1:
            state.say(f"epoch {state.epoch}: training resumes after step {plan.version}")
        if state.vacant:
            state.say(f"{len(members)} of {state.job.workers} workers train, until a spare comes")

    def _close_unfilled(self, plan: Plan) -> None:
        """Ranks that nobody takes: their incidents end here, and not well."""
        for incident in list(self._state.incidents.values()):
            if incident.rank >= 0 and plan.ranks.get(incident.holder or "") != incident.rank:
                incident.shrunk(len(plan.ranks), self._state.job.workers)
                self._state.close_incident(incident)

    async def _wait(self, predicate: Callable[[], bool], limit: str | float) -> bool:
        """Like `Roster.wait`, for a named limit or seconds; raises Disturbed as soon as the attempt cannot succeed."""

        def decided() -> bool:
            if self._state.disturbance is not None:
                raise Disturbed(self._state.disturbance)
            return predicate()

        return await self._roster.wait(decided, getattr(self._limits, limit) if isinstance(limit, str) else limit)

    async def _fence_lost(self) -> None:
        """No process that was declared lost may write again: wait until each is gone."""
        state = self._state
        if not await self._roster.wait(lambda: not state.fencing, self._limits.quiesce):
            state.say(f"no word that {', '.join(sorted(state.fencing))} ended; its epoch is over in any case")
            state.fencing.clear()
        state.disturbance = None  # who was lost up to here is not part of this attempt

    async def _stop_members(self) -> None:
        active, epoch = self._roster.active(), self._state.epoch
        self._roster.tell_all({"type": "stop", "epoch": epoch}, active)
        if not await self._wait(lambda: all(each.stopped_in == epoch for each in active), "quiesce"):
            self._lose_late([each for each in active if each.stopped_in != epoch], "stop", "quiesce")

    def _lose_late(self, late: list[Member], what: str, limit: str) -> None:
        seconds = getattr(self._limits, limit)
        for member in late:
            self._state.lose(member, "hang", {"how": f"it did not {what} within {seconds:.0f} s"}, seconds)
        raise Disturbed(f"{', '.join(each.worker for each in late)} did not {what} within {seconds:.0f} s")

    # Planning --------------------------------------------------------------------------------------------

    async def _plan(self) -> Plan:
        """The next epoch. Waits for spares as long as the limits allow. Raises Abandoned or Disturbed."""
        state, active = self._state, self._roster.active()
        survivors = [
            Survivor(each.worker, each.rank or 0, each.version, each.prepared, each.node, each.leaving, each.has_copy)
            for each in active
        ]
        if survivors:
            state.samples = max(each.samples for each in active)
            for incident in state.incidents.values():
                incident.quiesced(max(each.version for each in survivors), state.samples, state.usual_step())
        asked = False  # other runs, for places
        while True:
            spares = self._matching_spares(active)
            try:
                plan = self._make_plan(survivors, [each.worker for each in spares])
            except OutOfStep as error:
                state.lose(self._roster.members[error.worker], "hang", {"how": str(error)})
                raise Disturbed(f"{error.worker} is {error}") from error
            except StateLost as error:
                raise Abandoned(f"{error}; start again from the last checkpoint") from error
            except NeedSpares as error:
                if state.drains.give_way():
                    raise Disturbed("a leaving worker stays for now, because its spare is needed") from error
                shrinks = self._may_shrink(active)
                if state.preempted_by is not None and not shrinks:
                    raise Abandoned(f"run {state.preempted_by} has a higher priority and took its place") from error
                if state.preempted_by is None and not asked and await take_places(state, error.count):
                    shrinks = False  # they will come
                asked = True
                if not shrinks:
                    await self._wait_for_spares(error.count, len(spares))
                    continue
                plan = self._make_plan(survivors, [each.worker for each in spares], shrink=True)
            for worker, rank in plan.targets.items():
                if rank in state.incidents:
                    node = self._roster.members[worker].node
                    state.incidents[rank].spare_assigned(worker, node, state.origins.get(worker))
                    state.remember(state.incidents[rank])
            return plan

    def _may_shrink(self, active: list[Member]) -> bool:
        """Whether the run may go on without a lost rank: each rank that goes on holds everything."""
        state = self._state
        if state.job.without_spare != "shrink":
            return False
        whole = bool(active) and active[0].facts.get("strategy") == "ddp"
        if not whole:
            state.say("the model is sharded: the run cannot go on with fewer workers")
        return whole and state.equal and any(not each.leaving for each in active)

    def _make_plan(self, survivors: list[Survivor], spares: list[str], *, shrink: bool = False) -> Plan:
        workers = self._state.job.workers
        facts = next(member.facts for member in self._roster.members.values() if member.registered)
        sharding = Sharding(tuple(facts["parts"]), facts["copied"])
        if self._state.equal:
            distrusted = frozenset(self._state.distrusted)
            return make_plan(survivors, spares, workers, distrusted=distrusted, sharding=sharding, shrink=shrink)
        digests = {member.worker: member.facts["digest"] for member in self._roster.active()}
        return first_plan(survivors, spares, workers, digests, sharding)

    def _matching_spares(self, active: list[Member]) -> list[Member]:
        """Spares that built the same model as the members."""
        if not active:
            return []
        layout = active[0].facts["layout"]
        spares = self._state.drains.in_order(self._roster.spares())
        for member in spares:
            if member.facts["layout"] != layout:
                self._state.say(f"spare {member.worker} built a different model or gradient buckets; it is not used")
        return [member for member in spares if member.facts["layout"] == layout]

    async def _wait_for_spares(self, missing: int, present: int) -> None:
        state = self._state
        ranks = ", ".join(str(rank) for rank in sorted(state.incidents)) or "?"
        state.say(f"rank {ranks} is vacant and {missing} more spare(s) are needed; waiting for one")
        for incident in state.incidents.values():
            incident.attempt_ended("waiting", "no spare is free")
            state.evidence.amended(incident)
        stops = state.job.without_spare == "stop"
        # A spare that is on its way, or was asked for this moment, is not "no spare".
        if stops and not await self._wait(lambda: bool(self._roster.coming()), ASKED_SECONDS):
            raise Abandoned(
                f"rank {ranks} was lost after step {state.committed} and no spare is free (--without-spare stop)"
            )
        if not await self._wait(lambda: len(self._roster.spares()) > present, "spare"):
            raise Abandoned(
                f"rank {ranks} was lost after step {state.committed} and no spare came within "
                f"{self._limits.spare:.0f} s; start with more spares (--spares) or wait longer (--spare-limit)"
            )

    def _send(self, plan: Plan, members: dict[str, Member]) -> None:
        state = self._state
        holder = next((name for name in members if name not in plan.targets), next(iter(members)))
        message: Message = {
            "type": "plan",
            "epoch": state.epoch,
            "version": plan.version,
            "tested": state.tested,
            "ranks": plan.ranks,
            "targets": list(plan.targets),
            "sources": [[name, address_of(self._roster.members[name], "state")] for name in plan.sources],
            "holders": self._addressed(plan.holders),
            "copies": self._addressed(plan.copies),
            "store": address_of(members[holder], "store"),
        }
        if plan.version == 0:
            message["initial"] = [state.initial[rank] for rank in range(state.job.workers)]
        everyone = set(members) | set(plan.sources) | {name for each in plan.holders.values() for name, _ in each}
        self._roster.tell_all(message, [self._roster.members[name] for name in everyone])

    def _addressed(self, holders: dict[str, tuple[Holder, ...]]) -> dict[str, list[list[Any]]]:
        """Each receiver's sources with their addresses."""
        members = self._roster.members
        return {
            worker: [[name, address_of(members[name], "state"), part] for name, part in found]
            for worker, found in holders.items()
        }

    def _retire(self, member: Member) -> None:
        """A member that has given its rank away leaves the run."""
        rank, member.alive, member.rank = member.rank, False, None
        self._state.lost_workers.add(member.worker)
        self._state.wal.append({"kind": "lost", "worker": member.worker, "rank": rank, "detail": {"how": "it left"}})
        self._state.fence(member)

"""The coordinator: it decides who is a member, and from which step the run goes on; it holds no training state.

Each decision is in its log before anybody acts on it, so another coordinator can take over at any moment:
members and nodes connect again and say where they stand, training goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

from agent import tls
from agent.drain import Drains
from agent.events import Events
from agent.evidence import Evidence
from agent.job import Job
from agent.keeping import FOLDER, keep_state
from agent.preemption import Yields
from agent.recovery import Abandoned, Recovery
from agent.roster import Member, Roster, name_taken
from agent.run_state import PATH, RunState
from agent.wal import Wal
from agent.wire import HANDSHAKE_SECONDS, Message

FIRST_SPARES_SECONDS = 20.0
"""How long the first step may wait for the spares."""

LAST_WORD_SECONDS = 5.0
"""How long the end of the run waits for launchers that are not connected at that moment."""


class Coordinator:
    """The life of one run."""

    def __init__(self, job: Job, secret: bytes, folder: Path, evidence: Evidence) -> None:
        self._job, self._limits = job, job.limits
        self._roster = Roster(secret)
        self._wal = Wal(folder / "coordinator.wal")
        self._evidence = evidence
        self._kept = folder.resolve() / FOLDER
        self._state = RunState(job, self._roster, self._wal, evidence)
        self._drains = self._state.drains = Drains(self._state)
        self._yields = Yields(self._state)
        self._events = Events(self._state)
        self._recovery = Recovery(self._state)
        self._roster.on_request = self._answer

    def _answer(self, message: Message) -> Message:
        """What a command line or the launcher of another host asks."""
        if message["type"] == "job":
            if message["node"] in self._roster.nodes:
                return {"type": "refused", "reason": name_taken(message["node"])}
            return {"type": "job", "job": self._job.told(), "begun": bool(self._state.epoch)}
        if message["type"] == "status":
            return self._status()
        if message["type"] == "yield":
            return self._yields.ask(message)
        if message["type"] == "yield_status":
            return self._yields.status()
        return self._drains.answer(message)

    def _status(self) -> Message:
        state = self._state
        return {
            "type": "status",
            "epoch": state.epoch,
            "committed": state.committed,
            "running": state.running,
            "ranks": {
                str(each.rank): {"worker": each.worker, "node": each.node, "pid": each.pid}
                for each in self._roster.active()
            },
            "spares": [each.worker for each in self._roster.spares()],
            "hosts": sorted(self._roster.nodes),
        }

    async def run(self, listener: socket.socket) -> bool:
        """Coordinate until the run is over; False if it had to be abandoned."""
        self._state.replay(self._wal.records)
        self._roster.excluded, self._roster.holders = self._state.lost_workers, self._state.verified_holders()
        secure = tls.context(server=True)
        seconds = HANDSHAKE_SECONDS if secure else None
        server = await asyncio.start_server(
            self._roster.accept, sock=listener, ssl=secure, ssl_handshake_timeout=seconds
        )
        try:
            if self._state.finished:
                return await self._repeat_last_word()
            if self._state.epoch:
                self._state.say(f"a new coordinator takes over in epoch {self._state.epoch}")
            if self._state.holders:
                await self._take_over()
            else:
                await self._start()
            while not await self._wait_until_over_or_trouble():
                await self._recovery.run()
            self._finish()
        except Abandoned as error:
            try:
                what = await keep_state(self._state, self._kept)
            except OSError as failure:
                what = f"the state could not be kept: {failure}"
            self._abandon(f"{error}; {what}" if what else str(error))
            return False
        finally:
            if self._state.finished:
                await self._roster.wait(self._all_hosts_there, LAST_WORD_SECONDS)
            server.close()
            await asyncio.to_thread(self._evidence.close)
            if self._state.finished:  # otherwise this is a failure here, and the next coordinator goes on
                for node in self._roster.nodes.values():
                    node.tell({"type": "end", "holders": self._state.holders})
                # Each closes its connection when it has heard. To close first could destroy the word on its way.
                await self._roster.wait(lambda: not self._roster.nodes, LAST_WORD_SECONDS)
        return True

    async def _repeat_last_word(self) -> bool:
        """An earlier coordinator ended the run; it may have died before everybody heard of it."""
        holders = set(self._state.holders) - self._state.lost_workers
        members = self._roster.members
        await self._roster.wait(
            lambda: all(name in members and members[name].registered for name in holders), LAST_WORD_SECONDS
        )
        if not self._state.abandoned:
            self._roster.tell_all({"type": "finish"}, list(members.values()))
        else:
            for node in self._roster.nodes.values():
                node.tell({"type": "abandon"})
        return not self._state.abandoned

    def _all_hosts_there(self) -> bool:
        """Whether each launcher can be told that the run is over: one may be connecting anew."""
        return {each.node for each in self._roster.members.values() if each.alive} <= set(self._roster.nodes)

    async def _start(self) -> None:
        """Wait until every worker has registered, and begin the first epoch."""
        everyone = self._job.workers
        early: list[Member] = []

        def settled() -> bool:
            members = self._roster.members.values()
            early[:] = [each for each in members if not each.alive and each.first_rank is not None]
            return bool(early) or sum(each.registered for each in self._roster.active()) == everyone

        in_time = await self._roster.wait(settled, self._limits.start)
        if early:
            first = early[0]
            await self._roster.wait(lambda: "how" in first.facts, 1.0)
            how = first.facts.get("how", "lost")
            raise Abandoned(f"rank {first.first_rank} ended before training began ({how}); see its output above")
        active = [each for each in self._roster.active() if each.registered]
        if not in_time:
            there = {each.rank for each in active}
            missing = [rank for rank in range(everyone) if rank not in there]
            hosts = sorted({rank // self._job.local_workers for rank in missing})
            started = {each.first_rank for each in self._roster.members.values()}
            absent = [host for host in hosts if host * self._job.local_workers not in started]
            raise Abandoned(
                f"rank {', '.join(map(str, missing))} did not reach agent.steps() within {self._limits.start:.0f} s; "
                + (
                    f"no launcher with --node-rank {', '.join(map(str, absent))} joined; start it with the same "
                    "--rdzv-endpoint and secret, or raise --start-limit"
                    if absent
                    else "look at its output above, or raise --start-limit"
                )
            )
        if len({each.facts["layout"] for each in active}) > 1:
            raise Abandoned(
                "the ranks built different models or gradient buckets; build the same model in the same order "
                "on every rank"
            )
        versions = {each.version for each in active}
        if len(versions) > 1:
            raise Abandoned(f"the ranks resumed from different steps: {', '.join(map(str, sorted(versions)))}")
        if versions == {0}:
            self._state.initial = {each.rank or 0: each.facts["initial"] for each in active}
        self._state.equal = versions != {0}  # then all come from one kept state
        self._wal.append({"kind": "initial", "private": self._state.initial, "equal": self._state.equal})
        await self._wait_for_first_spares()
        await self._recovery.run()

    async def _wait_for_first_spares(self) -> None:
        """Spares come up with the workers; training begins without one that takes much longer."""
        spares = [each for each in self._roster.members.values() if each.first_rank is None]
        seconds = min(FIRST_SPARES_SECONDS, self._limits.spare)
        if not await self._roster.wait(lambda: all(each.registered or not each.alive for each in spares), seconds):
            self._state.say("training begins although not all spares are ready")

    async def _take_over(self) -> None:
        """An earlier coordinator of this run is gone. Whoever does not connect again in time is lost."""
        state = self._state

        def waited_for() -> list[str]:
            members = self._roster.members
            expected = [name for name in state.holders if name not in state.lost_workers]
            return [name for name in expected if name not in members or not members[name].registered]

        if not await self._roster.wait(lambda: not waited_for(), self._limits.quiesce):
            for name in waited_for():
                facts = {"rank": state.holders[name], "pid": 0, "place": 0, "gpu": None}
                member = self._roster.members.get(name) or self._roster.add(name, state.hosts[name], facts)
                state.lose(member, "heartbeat_lost", {"how": "it did not connect to the new coordinator"})
        state.progress_at = time.monotonic()
        state.committed = max([state.committed, *(member.version for member in self._roster.active())])
        # A pause that was agreed on before is still in force; the next epoch ends it.
        if self._drains.take_over() or not state.running:
            await self._recovery.run()

    async def _wait_until_over_or_trouble(self) -> bool:
        """True when every rank has made its last step; False when the epoch must end."""
        while True:
            busy = self._state.suspected or self._drains.pending or self._yields.pending
            seconds = 0.02 if busy else 0.5
            await self._roster.wait(self._is_settled, seconds)
            self._events.check_clocks()
            self._let_leave()
            if self._has_trouble():
                self._report_broken_path()
                return False
            if self._over():
                return True

    def _let_leave(self) -> None:
        """Hosts that were told to end: each ends when its ranks have moved; when all were told, so does the run."""
        leaving, nodes = self._state.leaving_nodes, self._roster.nodes
        if nodes and leaving >= set(nodes):
            raise Abandoned("every host was told to end (SIGTERM)")
        busy = {each.node for each in self._roster.active()} | {self._job.node}
        for name in leaving & set(nodes) - busy:
            nodes[name].tell({"type": "leave"})

    def _is_settled(self) -> bool:
        self._drains.advance()
        self._yields.advance()
        return self._over() or self._has_trouble()

    def _over(self) -> bool:
        active = self._roster.active()
        return len(active) == self._state.members_wanted and all(member.done for member in active)

    def _has_trouble(self) -> bool:
        """Whether the epoch must end: a rank is vacant, or the members cannot reach each other."""
        active = self._roster.active()
        if len(active) < self._state.members_wanted or any(member.leaving for member in active):
            return True
        if self._state.vacant and self._drains.free():
            return True  # the run can grow back
        if self._state.redo is not None:
            return True
        suspected = self._state.suspected
        return suspected is not None and time.monotonic() - suspected[0] > self._limits.settle

    def _report_broken_path(self) -> None:
        """State that connections broke, if that is the trouble and not the loss of a member."""
        if self._state.redo is not None:
            self._state.say(f"{self._state.redo}; the step is done again")
        if self._state.suspected is None or len(self._roster.active()) < self._state.members_wanted:
            return
        _, reason, member = self._state.suspected
        self._state.say(f"{reason} ({member.worker}), and nobody was lost: the members connect anew")
        if PATH not in self._state.incidents:
            self._state.open_incident("unplanned", "link", member, PATH, {"how": reason}, self._limits.settle)

    def _finish(self) -> None:
        state = self._state
        state.finished = True
        state.settle_incidents(None, state.samples)
        self._drains.run_ended("the run ended before the rank could move")
        self._wal.append({"kind": "finished"})
        self._evidence.run_ended(state.committed)
        self._roster.tell_all({"type": "finish"}, list(self._roster.members.values()))

    def _abandon(self, reason: str) -> None:
        state = self._state
        state.say(f"the run stops: {reason}")
        state.finished = True
        self._wal.append({"kind": "abandoned", "reason": reason})
        for incident in list(state.incidents.values()):
            incident.abandoned(reason)
            state.close_incident(incident)
        self._drains.run_ended(f"the run stopped: {reason}")
        self._evidence.run_ended(state.committed)
        for node in self._roster.nodes.values():
            node.tell({"type": "abandon"})

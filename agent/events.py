"""What members and nodes tell the coordinator, and what their silence means."""

from __future__ import annotations

import time

from agent import faults
from agent.roster import Member, Node
from agent.run_state import RunState
from agent.wire import Message

OWN_PAUSE_SECONDS = 2.0
"""A gap in the coordinator's own clock after which silence proves nothing (suspended machine, stopped job)."""
RECONNECT_SECONDS = 2.0
"""How long a host may be without any connection while its peers do not miss it."""
SPARE_FAILURES = 2
"""After so many attempts that failed on a spare's side another is taken."""


class Events:
    """Turns messages into changes of the run's state."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._checked = time.monotonic()
        roster = state.roster
        roster.on_message, roster.on_node = self._on_message, self._on_node
        roster.on_silence, roster.on_node_lost = self._on_silence, self._on_node_lost
        roster.on_nonsense = lambda what: state.say(f"a connection was closed that sent nonsense: {what}")

    # Members ---------------------------------------------------------------------------------------------

    def _on_message(self, member: Member, message: Message) -> None:
        state = self._state
        current = message.get("epoch") == state.epoch
        match message["type"]:
            case "beat":
                member.issued, member.version = message["issued"], message["version"]
                member.tell({"type": "heard"})  # so that a worker notices when it cannot reach the coordinator
            case "committed" if current and state.running:
                member.version = message["version"]
                self._on_committed(message["version"], message["samples"])
            case "stopped" if current:
                member.stopped_in = state.epoch
                member.version, member.prepared = message["version"], message["prepared"]
                member.samples, member.has_copy = message["samples"], message["has_copy"]
                if message["first_commit"] is not None:
                    # The word of it may not have come before the epoch ended.
                    state.settle_incidents(*message["first_commit"])
            case "ready" if current:
                self._on_ready(member, message)
            case "failed" if current:
                if message.get("damaged"):
                    state.distrusted.add(message["source"])
                state.disturbance = f"{member.worker}: {message['reason']}"
                self._on_failure(member, message)
            case "suspect" if current and state.running and state.suspected is None:
                state.suspected = (time.monotonic(), message["reason"], member)
            case "done":
                member.done = True
            case "kept" if current:
                member.facts["kept"] = message
            case "not_finite" if current and state.running:
                self._on_not_finite(message)
            case "dying":
                self._on_dying(member, message)
            case "worker":
                self._on_introduction(member, message)
            case "leave":
                state.drains.ask({"workers": [member.worker], **message})
        state.drains.heard(member, message)

    def _on_failure(self, member: Member, message: Message) -> None:
        """A spare that fails again, not for want of a source, must not keep the others from going on."""
        member.failures += 1
        if member.rank is None and "source" not in message and member.failures >= SPARE_FAILURES:
            how = f"as a spare it failed {member.failures} times to take a rank: {message['reason']}"
            self._state.lose(member, "process_exit", {"how": how})

    def _on_introduction(self, member: Member, hello: Message) -> None:
        """A worker connects, for the first time or to a restarted coordinator."""
        state = self._state
        if hello["rank"] >= 0 and state.epoch:
            incident = state.incidents.get(hello["rank"])
            verified = incident is None or incident.holder != member.worker or incident.record.state is not None
            # A spare whose word that it holds the state never arrived is a spare still.
            member.rank = hello["rank"] if verified else None
        if state.running and hello["epoch"] == state.epoch:
            if hello["stopped"]:
                member.tell({"type": "resume", "epoch": state.epoch})
            if hello["first_commit"] is not None:
                self._on_committed(*hello["first_commit"])

    def _on_ready(self, member: Member, message: Message) -> None:
        state = self._state
        member.ready_in = state.epoch
        if "digest_sent" not in message:
            return
        member.facts["digest"] = message["digest_received"]
        if member.rank is not None:
            return
        # It holds the verified state: from here on it can replace the source, should that be lost now.
        source = state.roster.members[message["source"]]
        member.rank = state.holders[member.worker]
        member.version, member.prepared = message["version"], False
        incident = next((each for each in state.incidents.values() if each.holder == member.worker), None)
        if incident is None:
            return
        if message["part"] == "copy":
            incident.state_moved(message, "redundant_shard")
        else:
            incident.state_moved(message, "leaving_worker" if source.leaving else "replica")
        state.remember(incident)

    def _on_not_finite(self, found: Message) -> None:
        """Numbers that are not finite. A rank is suspect if only its are; the step is then done again elsewhere."""
        state, step, findings = self._state, found["step"], found["findings"]
        what = "; ".join(f"rank {rank}: {', '.join(each)}" for rank, each in findings.items())
        if found["again"] or not found["suspects"]:
            if step > state.not_finite_said:
                state.say(f"not finite in step {step}: {what}; this is the script's numerics, and nothing is moved")
            state.not_finite_said = max(state.not_finite_said, step)
            for incident in state.incidents.values():
                if found["again"] and incident.rank in state.suspects:
                    incident.note(nan_check_again="not finite on the spare either: the script's numerics")
            return
        if step == state.tested:
            return  # another rank has said so
        state.doubt(step, found["suspects"])
        suspects = [member for member in state.roster.active() if member.rank in found["suspects"]]
        if len(state.roster.spares()) < len(suspects):
            state.redo = f"not finite in step {step}: {what}, and no spare is free"
            return
        for member in suspects:
            how = f"{', '.join(findings[str(member.rank)])} of this rank alone not finite in step {step}"
            state.lose(member, "process_exit", {"how": how, "detector": "nan_check", "nan_check": how})

    def _on_dying(self, member: Member, message: Message) -> None:
        """An exception ends a worker's script; one of class torch.AcceleratorError comes from its device."""
        where = "the device failed" if message["device"] else "the script raised an exception"
        detail = {"how": f"{where}: {message['error']}", "detector": "exception", "error": message["error"]}
        self._state.lose(member, "process_exit", {**detail, "device_error": message["device"]})

    def _on_committed(self, version: int, samples: int) -> None:
        state = self._state
        if version > state.committed:
            state.step_committed(version, samples)
            faults.script.step = version
            faults.at("committed")
            state.settle_incidents(version, samples)

    # Nodes -----------------------------------------------------------------------------------------------

    def _on_node(self, node: Node, message: Message) -> None:
        state = self._state
        if message["type"] == "ping":
            node.tell({"type": "pong"})
            return
        if message["type"] == "drain":
            state.drains.ask(message)
            if message["kind"] == "planned":  # SIGTERM to the launcher: it will be killed, wherever its ranks are
                state.leaving_nodes.add(node.name)
            return
        if message["type"] == "started":
            state.roster.add(message["worker"], node.name, message)
            return
        member = state.roster.members.get(message["worker"])
        if member is None:
            return
        match message["type"]:
            case "fenced":
                state.fencing.discard(member.worker)
            case "status":
                self._ended_how(member, message["how"])
            case "exited":
                detail = {key: message[key] for key in ("how", "detector", "status")}
                state.lose(member, message["signal"], detail, message["since_alive"])

    def _ended_how(self, member: Member, how: str) -> None:
        """The exit status of a worker, which the kernel gives later than the news of its end."""
        member.facts["how"] = how
        for incident in self._state.incidents.values():
            if incident.lost == member.worker and incident.record.kind == "unplanned":
                incident.ended_how(how)

    # Silence ---------------------------------------------------------------------------------------------

    def _on_silence(self, member: Member, reason: str) -> None:
        # On a host with a launcher the launcher decides: a connection may end while the process lives.
        if member.node not in self._state.roster.nodes:
            self._sever(member, reason)

    def _on_node_lost(self, node: Node) -> None:
        """A launcher's workers die with it. Those that are still connected do not have to: only the launcher's
        connection may have broken, or it is frozen. Then they go on, and are lost when theirs ends or is silent."""
        for member in self._state.roster.members_of(node.name):
            self._state.fencing.discard(member.worker)  # nobody is there to do it
            if member.alive and member.writer is None:
                self._sever(member, "the launcher's connection ended")

    def _sever(self, member: Member, reason: str) -> None:
        """Neither it nor its launcher is connected: its host is lost, or only the path here broke for a moment.

        In a recovery nobody waits to see which. Otherwise peers tell: they lose their connections with the host.
        """
        member.severed = time.monotonic()
        if not self._state.running:
            self._lose_severed(member, reason)

    def _lose_severed(self, member: Member, reason: str = "nobody there connected again") -> None:
        how = f"connections to {member.worker} and to the launcher on {member.node} ended; {reason}"
        self._state.lose(member, "heartbeat_lost", {"how": how})

    def check_clocks(self) -> None:
        """Find members that are silent, and the rank for which all others wait in vain."""
        state, now = self._state, time.monotonic()
        paused, self._checked = now - self._checked > OWN_PAUSE_SECONDS, now
        active = [member for member in state.roster.active() if member.registered]
        registered = [member for member in state.roster.members.values() if member.alive and member.registered]
        if paused:
            state.progress_at = now
            for member in registered:
                member.heard = now
            for node in state.roster.nodes.values():
                node.heard = now
            for member in state.roster.members.values():
                member.severed = member.severed and now
            return
        for node in list(state.roster.nodes.values()):
            if now - node.heard > state.job.limits.heartbeat:
                state.say(f"the launcher on {node.name} is silent; its workers go on as long as they answer themselves")
                state.roster.drop(node)
                self._on_node_lost(node)
        for member in list(state.roster.members.values()):
            late = member.severed is not None and now - member.severed > RECONNECT_SECONDS
            if member.alive and member.severed is not None and (late or state.suspected is not None):
                self._lose_severed(member)
        for member in registered:
            silent = now - member.heard
            if silent > state.job.limits.heartbeat:
                how = f"no heartbeat for {silent:.1f} s"
                state.lose(member, "heartbeat_lost", {"how": how}, silent)
        stalled = now - state.progress_at
        if state.running and stalled > state.job.limits.hang and not all(member.done for member in active):
            self._on_stall(active, stalled)

    def _on_stall(self, active: list[Member], seconds: float) -> None:
        """Nobody commits. Who has begun the fewest collectives of the step is the one that the others wait for;
        if all have begun the same, the group itself is stuck and the members connect anew."""
        state = self._state
        state.progress_at = time.monotonic()
        fewest = min((member.version, member.issued) for member in active)
        late = [member for member in active if (member.version, member.issued) == fewest and not member.done]
        how = f"no step was committed for {seconds:.1f} s"
        if len(late) == len(active):
            state.suspected = (0.0, f"{how}, all ranks wait in a collective", active[0])
            return
        for member in late:
            state.lose(member, "hang", {"how": f"{how} while the other ranks wait for this one"}, seconds)

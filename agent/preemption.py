"""Places taken from a run of lower priority when no spare is free.

Runs find each other in a directory that is given to all of them (`--pool`): each pre-emptible run has a file there
with its priority and its state directory. The run that lacks a spare asks the coordinator of the one with the lowest
priority for places on hosts where it has a launcher itself. That run stands still at a step boundary, so that nothing
in flight is lost, gives up idle spares or its highest ranks, and goes on with fewer workers if it was started with
`--without-spare shrink`; otherwise it ends with its state kept.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent import control
from agent.job import Job
from agent.reporting.incident import Preempted
from agent.roster import Member
from agent.run_state import RunState
from agent.wire import Message

PAUSE_SECONDS = 10.0
"""How long the agreed pause may take to be reached before the step in flight is given up."""
POLL_SECONDS = 0.2


# Registration ----------------------------------------------------------------------------------------------


def register(job: Job, folder: Path) -> Path | None:
    """Offer this run's places, if it is pre-emptible; the file to remove at its end. Raises OSError."""
    if job.pool is None or not job.preemptible:
        return None
    pool = Path(job.pool)
    pool.mkdir(parents=True, exist_ok=True)
    path = pool / f"{job.run_id}.json"
    unfinished = path.with_suffix(".new")
    entry = {"run_id": job.run_id, "priority": job.priority, "state_dir": str(folder.resolve())}
    unfinished.write_text(json.dumps(entry))
    unfinished.rename(path)
    return path


def _offers(job: Job) -> list[dict[str, Any]]:
    """Other runs of lower priority, the lowest first."""
    found = []
    for path in Path(job.pool).glob("*.json") if job.pool else []:
        try:
            entry = json.loads(path.read_text())
            if entry["run_id"] != job.run_id and int(entry["priority"]) < job.priority:
                found.append({"priority": int(entry["priority"]), "folder": Path(entry["state_dir"])})
        except (OSError, ValueError, KeyError, TypeError):
            continue  # removed meanwhile, or no file of ours
    return sorted(found, key=lambda each: each["priority"])


# The run that needs places ---------------------------------------------------------------------------------


async def take_places(state: RunState, count: int) -> int:
    """Ask other runs for `count` places and have spares started there. How many will come."""
    job, taken = state.job, 0
    for offer in await asyncio.to_thread(_offers, job):
        request: Message = {
            "type": "yield",
            "count": count - taken,
            "nodes": sorted(state.roster.nodes),
            "by": job.run_id,
            "priority": job.priority,
        }
        answer = await asyncio.to_thread(_yielded, offer["folder"], request, job.limits.spare)
        if answer is None:
            continue
        preempted = Preempted(answer["run_id"], answer["gpus"], answer["lost_seconds"])
        state.say(f"run {preempted.run_id} gives up {len(answer['places'])} place(s)")
        for place in answer["places"]:
            node = state.roster.nodes.get(place["node"])
            if node is not None:
                worker = f"{node.name}-{preempted.run_id}-{place['worker']}"
                state.take_over_place(worker, preempted)
                node.tell({"type": "start", "worker": worker, "place": place["place"], "gpu": place["gpu"]})
                taken += 1
        if taken >= count:
            break
    return taken


def _yielded(folder: Path, request: Message, seconds: float) -> Message | None:
    """The other run's answer once its places are free; None if it gives none up. Takes at most `seconds`."""
    deadline = time.monotonic() + seconds
    try:
        answer = control.ask(folder, request)
        while answer.get("again") and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            answer = control.ask(folder, request)
    except (control.NoSuchRun, OSError):
        return None
    if answer["type"] != "yielding":
        return None
    promised, began = answer, time.monotonic()
    while time.monotonic() < deadline:
        try:
            answer = control.ask(folder, {"type": "yield_status"})
        except (control.NoSuchRun, OSError):
            # It has ended: all its places are free, and its workers have stood still since it was asked.
            return {**promised, "lost_seconds": round(time.monotonic() - began, 3)}
        if answer["over"]:
            return {**promised, "lost_seconds": answer["lost_seconds"]}
        time.sleep(POLL_SECONDS)
    return None


# The run that gives places up ------------------------------------------------------------------------------


@dataclass
class _Yield:
    by: str
    members: list[Member]
    epoch: int = -1
    version: int = 0
    until: float = 0.0
    still_since: float | None = None
    lost_seconds: float | None = None


class Yields:
    """Places asked for by a run of higher priority. The coordinator calls `advance` often."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._yield: _Yield | None = None

    @property
    def pending(self) -> bool:
        """Whether `advance` has something to do."""
        return self._yield is not None and self._yield.lost_seconds is None

    def ask(self, message: Message) -> Message:
        """Another run wants places. The answer says which it gets, when they are free, or why it gets none."""
        state, job = self._state, self._state.job
        if not job.preemptible or message["priority"] <= job.priority:
            return {"type": "refused", "reason": "this run yields to runs of higher priority only, if at all"}
        last = min((int(each.facts["total"]) for each in state.roster.active() if each.facts), default=0) - 1
        if not state.running or state.drains.pending or self.pending or state.incidents or state.committed >= last:
            return {"type": "refused", "reason": "it is busy with a move itself", "again": True}
        wanted = [each for each in state.drains.free() if each.node in message["nodes"]]
        workers = [each for each in state.roster.active() if each.node in message["nodes"]]
        chosen = [*wanted, *reversed(workers)][: message["count"]]
        if not chosen:
            return {"type": "refused", "reason": "it has no process on these hosts"}
        places = [{"node": each.node, "worker": each.worker, **each.place} for each in chosen]
        self._yield = _Yield(message["by"], chosen)
        for member in chosen:
            if member.rank is None:
                state.lose(member, "operator", {"how": f"run {message['by']} took the place of this spare"})
        state.roster.changed.set()
        gpus = max(job.gpus // job.workers, 1) * len(state.roster.active())
        return {"type": "yielding", "places": places, "run_id": job.run_id, "gpus": gpus}

    def status(self) -> Message:
        """Whether the places are free, and how long training stood still for it."""
        found = self._yield
        lost = found.lost_seconds if found is not None else None
        return {"type": "yield_status", "over": lost is not None, "lost_seconds": lost}

    def advance(self) -> None:
        """Take the request as far as it can go now."""
        found, state = self._yield, self._state
        if found is None or not self.pending or not state.running:
            return
        workers = [each for each in found.members if each.alive and each.rank is not None]
        if not workers:
            if not any(each.worker in state.fencing for each in found.members):
                since = found.still_since
                found.lost_seconds = 0.0 if since is None else round(time.monotonic() - since, 3)
                state.preempted_by = None
            return
        if found.still_since is not None:
            return  # the coordinator's recovery is about to replace them
        if found.epoch != state.epoch:
            usual = state.usual_step() or 0.1
            found.epoch, found.version = state.epoch, state.committed + 2 + int(0.05 / max(usual, 0.001))
            found.until = time.monotonic() + max(PAUSE_SECONDS, 20 * usual)
            state.roster.tell_all({"type": "pause", "version": found.version}, state.roster.active())
        active = state.roster.active()
        if all(each.version >= found.version for each in active) or time.monotonic() > found.until:
            found.still_since = time.monotonic()
            for member in workers:
                self._begin_leaving(member, found.by)

    def _begin_leaving(self, member: Member, by: str) -> None:
        state = self._state
        assert member.rank is not None
        member.leaving, state.preempted_by = True, by
        state.open_incident("planned", "operator", member, member.rank, {"how": "pre-empted", "by": by})
        state.say(f"rank {member.rank} gives its place to run {by}")

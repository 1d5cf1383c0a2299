"""Before a run is given up, its survivors write the last consistent state to the state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent import kept
from agent.planner import Part, Sharding, Survivor, holders_of
from agent.roster import Member, address_of
from agent.run_state import RunState
from agent.wire import Message

FOLDER = "kept"


async def keep_state(state: RunState, folder: Path) -> str:
    """A few words on where the state is kept, or why it is not. Bounded by `--quiesce-limit` and `--form-limit`."""
    limits, roster = state.job.limits, state.roster
    members = [each for each in roster.active() if each.registered and each.writer is not None]
    if not state.equal:
        return ""  # training had not begun
    if not members:
        return "no worker holds any state to keep"
    state.epoch += 1
    state.wal.append({"kind": "epoch", "epoch": state.epoch})
    roster.tell_all({"type": "stop", "epoch": state.epoch}, members)
    await roster.wait(lambda: all(each.stopped_in == state.epoch for each in members), limits.quiesce)
    stopped = [each for each in members if each.stopped_in == state.epoch and each.alive]
    if not stopped:
        return "no worker answers any more, so no state is kept"
    version = max(each.version for each in stopped)
    if not version:
        return "no step was committed, so there is nothing to keep"
    usable = [each for each in stopped if each.version == version or (each.version + 1 == version and each.prepared)]
    facts = usable[0].facts
    sharding = Sharding(tuple(facts["parts"]), facts["copied"])
    writers = _writers(usable, sharding, version, state.job.node)
    if writers is None:
        return "a part of the state died with its workers, so none is kept"
    here = [each for each in usable if each.version == version]
    message: Message = {
        "type": "keep",
        "epoch": state.epoch,
        "version": version,
        "sources": [[each.worker, address_of(each, "state")] for each in here],
    }
    for member in usable:
        asked = [[str(folder / f"part-{part}"), which] for name, which, part in writers if name == member.worker]
        member.tell({**message, "files": asked})
    busy = {name for name, _, _ in writers}
    if not await roster.wait(lambda: busy <= {each.worker for each in usable if "kept" in each.facts}, limits.form):
        return f"{', '.join(sorted(busy))} did not write the state within {limits.form:.0f} s"
    errors = [each.facts["kept"]["error"] for each in usable if each.facts.get("kept", {}).get("error")]
    if errors:
        return f"the state could not be kept: {errors[0]}"
    digests = {path: digest for each in usable for path, digest in each.facts.get("kept", {}).get("digests", [])}
    files: dict[str, Any] = {}
    for name, _, part in writers:
        path = str(folder / f"part-{part}")
        files[str(part)] = {"path": path, "digest": digests[path], "node": roster.members[name].node}
    meta = {"run_id": state.job.run_id, "version": version, "samples": max(each.samples for each in here)}
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_meta(folder, {**meta, "workers": state.job.workers, "parts": facts["parts"], "files": files})
    state.say(f"the state after step {version} is kept in {folder}")
    return f"the state after step {version} is kept in {folder}; go on from there with --resume {folder}"


def _writers(
    usable: list[Member], sharding: Sharding, version: int, first_node: str
) -> list[tuple[str, Part, int]] | None:
    """Who writes which part from where: (worker, `own` or `copy`, part). None if a part is gone."""
    ordered = sorted(usable, key=lambda each: (each.node != first_node, each.version != version, each.rank or 0))
    survivors = [
        Survivor(each.worker, each.rank or 0, each.version, each.prepared, has_copy=each.has_copy) for each in ordered
    ]
    found: list[tuple[str, Part, int]] = []
    for rank, part in enumerate(sharding.parts):
        if part in sharding.parts[:rank]:
            continue
        holders = holders_of(rank, survivors, sharding)
        if not holders:
            return None
        found.append((*holders[0], part))
    return found

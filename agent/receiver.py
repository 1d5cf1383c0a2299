"""State that comes to this worker: all of a rank's, a copy of a shard, or only the journal of a step in doubt."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from agent.held import Held
from agent.journal import Entry, Journal
from agent.settings import WorkerSettings
from agent.shadow import ShadowCopy, Source
from agent.state import Registry
from agent.transport import Moved, SourceFailed, Transfer
from agent.wire import Link, Message, dial, receive_exactly

RECEIVE_SECONDS = 20.0
"""How long an earlier transfer may take to end, and a peer to send its journal."""
Received = TypeVar("Received")


class Receiver:
    """Carries out what a plan says about this worker's state."""

    def __init__(self, held: Held, settings: WorkerSettings, secret: bytes, tell: Callable[[Message], None]) -> None:
        self._held, self._settings, self._secret, self._tell = held, settings, secret, tell
        self._transfer: Transfer | None = None
        self._receiving = threading.Lock()
        self._shadow: ShadowCopy | None = None

    def rule(self, plan: Message) -> None:
        """Settle a step in doubt as the plan says."""
        standing = self._held.commit.standing()
        if standing.prepared and standing.version + 1 == plan["version"]:
            self._held.journal.receive(self._fetch_journal(plan), committed=True)
            self._held.commit.rule(commit=True)
        elif standing.version == plan["version"]:
            self._held.commit.rule(commit=False)
            if plan["version"] == 0:
                self._held.journal.entries = initial_entries(plan)
        else:
            raise RuntimeError(f"this worker is at step {standing.version}, the plan at {plan['version']}")

    def _alone(self, receive: Callable[[], Received]) -> Received:
        if self._transfer is not None:
            self._transfer.cancel()
        # Two transfers must never write into the same tensors: the older one may bring another version.
        if not self._receiving.acquire(timeout=RECEIVE_SECONDS):
            raise RuntimeError("an earlier transfer does not end")
        try:
            return receive()
        finally:
            self._receiving.release()

    def take_rank(self, plan: Message) -> Moved:
        """Become the rank that the plan assigns, as far as state goes."""
        return self._alone(lambda: self._take_rank(plan))

    def refill_copy(self, plan: Message) -> None:
        """Take a copy of the shard of the rank before this one."""
        self._alone(lambda: self._receive_copy(plan))

    def _take_rank(self, plan: Message) -> Moved:
        self._held.on_rank(plan["ranks"][self._settings.worker])
        moved = self._from_shadow(plan) or self._pull(plan, self._held.registry, "holders")
        if self._held.copy is not None:
            self._receive_copy(plan)
        entries = initial_entries(plan) if plan["version"] == 0 else self._fetch_journal(plan)
        self._held.journal.receive(entries, committed=False)
        self._held.commit.adopt(plan["version"])
        self._held.promoted = True
        return moved

    def follow(self, source: Source) -> None:
        """Begin to copy a leaving worker that goes on training."""
        with self._receiving:
            self._end_shadow(self._shadow)
            self._shadow = ShadowCopy(self._held.registry, source, self._tell)

    def _end_shadow(self, shadow: ShadowCopy | None) -> None:
        if shadow is not None and not shadow.close():
            print("agent: a copy cannot be ended; this spare stops", file=sys.stderr, flush=True)
            os._exit(1)

    def _from_shadow(self, plan: Message) -> Moved | None:
        """Complete a copy that has followed one of the sources; None without one that can be completed."""
        shadow, self._shadow = self._shadow, None
        if shadow is None:
            return None
        moved = None
        if shadow.source.name in [name for name, *_ in plan["holders"][self._settings.worker]]:
            moved = shadow.finish(plan["epoch"], plan["version"], RECEIVE_SECONDS / 2)
        self._end_shadow(shadow)
        return moved

    def _receive_copy(self, plan: Message) -> None:
        assert self._held.copy is not None
        self._pull(plan, self._held.copy, "copies")

    def _pull(self, plan: Message, registry: Registry, sources: str) -> Moved:
        self._transfer = transfer = Transfer(
            registry,
            [(name, (host, port), part) for name, (host, port), part in plan[sources][self._settings.worker]],
            secret=self._secret,
            epoch=plan["epoch"],
            version=plan["version"],
            streams=self._settings.streams,
        )
        return transfer.run()

    def _fetch_journal(self, plan: Message) -> list[Entry]:
        failure: OSError = SourceFailed("no worker holds the journal")
        for name, (host, port) in plan["sources"]:
            try:
                link = Link(dial((host, port), self._secret))
                link.sock.settimeout(RECEIVE_SECONDS)
                link.send({"type": "journal", "epoch": plan["epoch"], "version": plan["version"]})
                answer = link.receive()
                if answer["type"] != "journal":
                    raise SourceFailed(f"{name} cannot serve the journal: {answer.get('reason')}")
                data = receive_exactly(link.sock, answer["size"])
                link.close()
                return Journal.parse(data)
            except OSError as error:
                failure = error
        raise SourceFailed(f"no worker could send the journal: {failure}")


def initial_entries(plan: Message) -> list[Entry]:
    """All ranks' private state before the first step."""
    return [Entry.from_bytes(bytes.fromhex(text)) for text in plan["initial"]]

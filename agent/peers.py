"""A worker's state for those that need it: another rank's spare, or one that follows it before it leaves."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable

from agent.held import Held
from agent.transport import Offer
from agent.wire import Link, Message, admit

PLAN_SECONDS = 20.0
"""How long a peer may know a plan before this worker does."""


class PeerServer:
    """Answers peers, each on a thread of its own."""

    def __init__(self, held: Held, listener: socket.socket, secret: bytes, tell: Callable[[Message], None]) -> None:
        self._held, self._listener, self._secret, self._tell = held, listener, secret, tell
        self._offers: tuple[tuple[int, int], dict[str, Offer]] | None = None
        self._offer_lock = threading.Lock()

    def serve(self) -> None:
        """Accept peers for as long as the process lives."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:  # e.g. strangers have used up the descriptors
                print(f"agent: no connection can be accepted: {error}", file=sys.stderr, flush=True)
                time.sleep(1.0)
                continue
            threading.Thread(target=self._serve_peer, args=(sock,), daemon=True).start()

    def _serve_peer(self, accepted: socket.socket) -> None:
        with (
            contextlib.suppress(OSError, KeyError, ValueError),
            contextlib.closing(Link(admit(accepted, self._secret))) as link,
        ):
            sock = link.sock
            request = link.receive()
            if request["type"] == "shadow":
                reason = self._held.tap.serve(link, self._servable)
                if reason is not None:
                    self._tell({"type": "shadow_failed", "reason": reason})
                return
            epoch, version = request["epoch"], request["version"]

            def is_current() -> bool:
                return self._held.is_current(epoch, version)

            held = request.get("part") != "copy" or (self._held.copy is not None and self._held.copy.filled)
            if not self._servable(epoch, version) or not held:
                reason = f"it is at version {self._held.commit.version} in epoch {self._held.epoch}"
                link.send({"type": "refused", "reason": reason})
            elif request["type"] == "journal":
                data = self._held.journal.to_bytes()
                link.send({"type": "journal", "size": len(data)})
                sock.sendall(data)
            else:
                offer = self._current_offer(epoch, version, request["part"])
                link.send({"type": "offer", "manifest": offer.manifest, "small": len(offer.small)})
                offer.serve(link, is_current)

    def _servable(self, epoch: int, version: int) -> bool:
        """Wait until the state of `version` can be given away in `epoch`."""
        # The plan may reach the receiver before it reaches this worker.
        deadline = time.monotonic() + PLAN_SECONDS
        while self._held.epoch < epoch and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._held.commit.wait_servable(version, PLAN_SECONDS) and self._held.is_current(epoch, version)

    def _current_offer(self, epoch: int, version: int, part: str) -> Offer:
        with self._offer_lock:
            if self._offers is None or self._offers[0] != (epoch, version):
                self._offers = ((epoch, version), {})
            offers = self._offers[1]
            if part not in offers:
                offers[part] = Offer(
                    self._held.copy if part == "copy" and self._held.copy is not None else self._held.registry
                )
            return offers[part]

    def drop_offer(self) -> None:
        """Training goes on: what was offered is about to change."""
        with self._offer_lock:
            self._offers = None

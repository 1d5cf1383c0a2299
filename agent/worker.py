"""A worker's side of the control plane: it stops, moves state, regroups and resumes as the coordinator plans.

Three kinds of threads stand beside the training thread: one listens to the coordinator, one serves state to
peers, and each plan is carried out on a thread of its own, so that a newer plan never waits for an older one.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from agent import faults, kept, kept_parts
from agent.commit import CommitPoint, WaitTooLong
from agent.group import LiveGroup
from agent.held import Held
from agent.journal import Journal
from agent.members import FORM_SECONDS, Forming, Members
from agent.network import listen
from agent.peers import PeerServer
from agent.planned import on_sigterm, sigterm_request
from agent.receiver import Receiver
from agent.reporting.incident import rfc3339
from agent.settings import WorkerSettings, job_secret
from agent.shadow import Source
from agent.state import Registry
from agent.tap import Tap
from agent.transport import SourceFailed
from agent.wire import Link, Message, dial, parse_address

HEARTBEAT_SECONDS = 0.5
OUTGOING_MESSAGES = 1000


class Worker:
    """This process as a member (or spare) of the run."""

    def __init__(self, settings: WorkerSettings, group: LiveGroup, registry: Registry) -> None:
        self.settings = settings
        self.rank = settings.rank
        self.group = group
        self.registry, self.journal, self.tap = registry, Journal(), Tap(registry)
        self.commit = CommitPoint(on_commit=self._on_commit)
        self.held = Held(registry, self.journal, self.commit, self.tap)
        self.finished = False
        """The coordinator has said that all ranks have made their last step."""
        self.abandoned = False
        """The coordinator has ended this worker's part."""
        self.first_commit: tuple[int, int] | None = None
        """Version and samples of the first step committed in the current epoch."""
        self.tested = -1
        """A step that was refused because of one rank's numbers, and is done again: this time it counts."""
        self._standing: dict[str, Message] = {}
        """What another coordinator must be told too, for as long as this epoch lasts."""
        self._secret = job_secret()
        self._formed: dict[int, tuple[Members, list[int]]] = {}
        self._link: Link | None = None
        self._outgoing: queue.Queue[Message] = queue.Queue(OUTGOING_MESSAGES)
        self._hello: Callable[[], Message] = dict
        self._store = self._serve_store()
        self._listener = listen(settings.host, settings.ports)
        self._receiver = Receiver(self.held, settings, self._secret, self.tell)
        self.peers = PeerServer(self.held, self._listener, self._secret, self.tell)
        group.on_break = self._suspect

    # Towards the coordinator -----------------------------------------------------------------------------

    def _serve_store(self) -> c10d.TCPStore:
        # Given a socket it listens there only; by itself it would listen on every address of the host.
        sock = listen(self.settings.host, self.settings.ports)
        port, seconds = sock.getsockname()[1], timedelta(seconds=FORM_SECONDS)
        return c10d.TCPStore(self.settings.host, port, None, True, seconds, False, master_listen_fd=sock.detach())

    def register(self, hello: Callable[[], Message]) -> None:
        """Join the run; `hello` gives what only the training side knows. Raises WaitTooLong."""
        self._hello = hello
        self._connect()
        _report_exceptions(self)
        if self.settings.sigterm_notice is not None:
            on_sigterm(lambda: self._leave(self.settings.sigterm_notice or 0.0))
        for target, name in (
            (self._listen, "listen"),
            (self.peers.serve, "serve"),
            (self._beat, "beat"),
            (self._send, "send"),
        ):
            threading.Thread(target=target, name=f"agent-{name}", daemon=True).start()

    def _connect(self) -> None:
        deadline = time.monotonic() + self.settings.limits.coordinator
        address = parse_address(self.settings.coordinator)
        while True:
            try:
                link = Link(dial(address, self._secret))
                link.sock.settimeout(self.settings.limits.heartbeat)  # every heartbeat is answered
                link.send(self._introduction())
                for message in list(self._standing.values()):
                    link.send(message)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise WaitTooLong(
                        f"worker {self.settings.worker} cannot reach the coordinator at "
                        f"{self.settings.coordinator}: {error}"
                    ) from error
                time.sleep(0.1)
            else:
                self._link = link
                return

    def _introduction(self) -> Message:
        standing = self.commit.standing()
        return {
            "type": "worker",
            "worker": self.settings.worker,
            "pid": os.getpid(),
            "node": self.settings.node,
            "rank": self.rank,
            "epoch": self.held.epoch,
            "version": standing.version,
            "prepared": standing.prepared,
            "samples": self.journal.samples,
            "stopped": self.commit.stopped,
            "first_commit": self.first_commit,
            "state": [self.settings.host, self._listener.getsockname()[1]],
            "store": [self.settings.host, self._store.port],
            **self._hello(),
        }

    def tell(self, message: Message) -> None:
        """Queue for the coordinator; never blocks, because the training thread calls it.

        What cannot be sent is dropped: the next coordinator learns it from the introduction, or is told it anew.
        """
        with contextlib.suppress(queue.Full):
            self._outgoing.put_nowait(message)

    def _send(self) -> None:
        while True:
            message = self._outgoing.get()
            link = self._link
            if link is not None:
                with contextlib.suppress(OSError):
                    link.send(message)

    def _leave(self, notice: float) -> None:
        """A scheduler wants this place."""
        if self.abandoned:
            os.kill(os.getpid(), signal.SIGTERM)
        # A thread, because the signal may have come while this one holds the queue's lock.
        message = {"type": "leave", **sigterm_request(notice)}
        threading.Thread(target=self.tell, args=(message,), daemon=True).start()

    def _suspect(self, reason: str) -> None:
        self._state_standing({"type": "suspect", "epoch": self.held.epoch, "reason": reason})

    def _state_standing(self, message: Message) -> None:
        self._standing[message["type"]] = message
        self.tell(message)

    def not_finite(self, step: int, findings: dict[int, list[str]], suspects: list[int]) -> None:
        """Tell what the ranks found that is not finite in `step`, which does not commit if that makes one suspect."""
        found: Message = {"step": step, "findings": findings, "suspects": suspects, "again": step == self.tested}
        self._state_standing({"type": "not_finite", "epoch": self.held.epoch, **found})

    def dying(self, error: BaseException) -> None:
        """Say why this process ends, at once."""
        # The class that torch raises for errors of CUDA and other accelerators.
        device = isinstance(error, torch.AcceleratorError)
        text = f"{type(error).__name__}: {error}"[:500]
        link = self._link
        if link is not None and not self.finished:
            with contextlib.suppress(OSError):
                link.send({"type": "dying", "error": text, "device": device})

    def _beat(self) -> None:
        while not self.finished:
            standing = self.commit.standing()
            self.tell({"type": "beat", "version": standing.version, "issued": self.group.issued})
            time.sleep(HEARTBEAT_SECONDS)

    # From the coordinator --------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            link = self._link
            assert link is not None
            try:
                self._obey(link.receive())
            except OSError:
                link.close()
                if self.finished:
                    return
                try:
                    self._connect()
                except WaitTooLong as error:
                    print(f"agent: {error}; this worker stops", file=sys.stderr, flush=True)
                    os._exit(1)

    def _obey(self, message: Message) -> None:
        match message["type"]:
            case "stop":
                standing = self.commit.stop(message["epoch"])
                self.group.cut()
                self.tell(
                    {
                        "type": "stopped",
                        "epoch": message["epoch"],
                        "version": standing.version,
                        "prepared": standing.prepared,
                        "samples": self.journal.samples,
                        "has_copy": self.held.copy is not None and self.held.copy.filled,
                        "first_commit": self.first_commit,
                    }
                )
            case "plan":
                self.held.epoch, self.tested = message["epoch"], message["tested"]
                if self.settings.worker not in message["ranks"]:
                    return  # this worker leaves; it only serves its state
                threading.Thread(target=self._carry_out, args=(message,), daemon=True).start()
            case "keep":
                self.held.epoch = message["epoch"]
                threading.Thread(target=self._keep, args=(message,), daemon=True).start()
            case "resume":
                if message["epoch"] == self.held.epoch:
                    self.commit.resume(message["epoch"])
            case "pause":
                self.commit.pause_at(message["version"])
            case "shadow":
                name, (host, port) = message["source"]
                source = Source(name, (host, port), self._secret)
                threading.Thread(target=self._receiver.follow, args=(source,), daemon=True).start()
            case "finish":
                self.finished = True
                self.commit.resume(sys.maxsize)
            case "abandon":
                self.abandoned = True
                print(f"agent: {message['reason']}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGTERM)

    def _carry_out(self, plan: Message) -> None:
        """Do this worker's part of a plan and say so, or say why not."""
        epoch = plan["epoch"]
        report: Message = {"type": "ready", "epoch": epoch}
        try:
            ranks: dict[str, int] = plan["ranks"]
            rank = ranks[self.settings.worker]
            forming = Forming(plan, rank, self.group.partitions, self.settings.limits.hang)
            if self.settings.worker in plan["targets"]:
                moved = self._receiver.take_rank(plan)
                report |= {
                    "source": moved.source,
                    "part": moved.part,
                    "version": plan["version"],
                    "bytes": moved.bytes,
                    "digest_sent": moved.digest_sent,
                    "digest_received": moved.digest_received,
                    "algorithm": moved.algorithm,
                    "moved_at": rfc3339(moved.moved_at),
                    "verified_at": rfc3339(moved.verified_at),
                }
            else:
                self._receiver.rule(plan)
                if rank != self.rank:  # a smaller world, in which this worker becomes rank 0
                    self.held.on_rank(rank)
                    self.held.promoted = True
                if self.held.copy is not None and not self.held.copy.filled:
                    self._receiver.refill_copy(plan)
            members = forming.result()
            if epoch == self.held.epoch:
                self.rank, self._formed = rank, {epoch: (members, sorted(ranks.values()))}
                faults.at("ready")
        except SourceFailed as error:
            report = {"type": "failed", "epoch": epoch, "reason": str(error)}
            report |= {"damaged": error.damaged, "source": error.source}
        except Exception as error:  # whatever it was, the coordinator must know and choose another way
            report = {"type": "failed", "epoch": epoch, "reason": f"{type(error).__name__}: {error}"}
        if epoch == self.held.epoch:
            self.tell(report)

    def _keep(self, plan: Message) -> None:
        """The run ends: write the asked-for parts of the state to disk."""
        report: Message = {"type": "kept", "epoch": plan["epoch"], "digests": [], "error": None}
        try:
            self._receiver.rule(plan)
            if not self.commit.wait_servable(plan["version"], FORM_SECONDS):
                raise RuntimeError(f"this worker does not reach step {plan['version']}")
            for path, which in plan["files"]:
                part = self.held.copy if which == "copy" and self.held.copy is not None else self.registry
                report["digests"].append([path, kept_parts.write_part(Path(path), part, self.journal, plan["version"])])
        except Exception as error:  # whatever it was, the coordinator must tell it
            report["error"] = f"{self.settings.worker}: {error}"
        self.tell(report)

    def resume_from(self, folder: Path) -> None:
        """Begin with a kept state instead of the script's initial one. Raises CannotResume or StateMismatch."""
        meta = kept.read_meta(folder)
        files, parts, version = meta["files"], meta["parts"], meta["version"]
        self.held.on_rank(self.rank)
        mine = files[str(parts[self.rank])]
        entries = kept_parts.read_part(folder / Path(mine["path"]).name, self.registry, mine["digest"], version)
        if self.held.copy is not None:
            before = files[str(parts[self.rank - 1])]
            kept_parts.read_part(folder / Path(before["path"]).name, self.held.copy, before["digest"], version)
        self.journal.receive(entries, committed=False)
        self.commit.adopt(version)
        self.held.promoted = True

    # For the training thread -----------------------------------------------------------------------------

    def join_epoch(self, epoch: int) -> bool:
        """Install the members that were connected for `epoch`. Training thread, between steps.

        False if a newer plan has already replaced them.
        """
        formed = self._formed.pop(epoch, None)
        if formed is None:
            return False
        self.group.wait_idle(0.2)
        members, self.journal.ranks = formed
        self.group.install(members)
        self.first_commit = None
        self._standing.clear()
        return True

    def committed(self, epoch: int) -> None:
        """Tell the coordinator that a step is committed and complete. Training thread."""
        message = {"type": "committed", "epoch": epoch}
        self.tell({**message, "version": self.commit.version, "samples": self.journal.samples})

    def _on_commit(self) -> None:
        self.journal.advance()
        self.first_commit = self.first_commit or (self.commit.version, self.journal.samples)


def _report_exceptions(worker: Worker) -> None:
    """An exception that ends the script is known to the coordinator before the process has ended."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, Exception):
            worker.dying(error)
        before(kind, error, trace)

    sys.excepthook = report

"""A worker's side of the control plane: it stops, moves state, regroups and resumes as the coordinator plans.

Three kinds of threads stand beside the training thread: one listens to the coordinator, one serves state to
peers, and each plan is carried out on a thread of its own, so that a newer plan never waits for an older one.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._C import _distributed_c10d as c10d

from agent import faults, kept, kept_parts
from agent.commit import CommitPoint, WaitTooLong
from agent.group import LiveGroup, Members
from agent.journal import Entry, Journal
from agent.network import listen
from agent.planned import on_sigterm, sigterm_request
from agent.redundancy import ShardCopy
from agent.reporting.incident import rfc3339
from agent.settings import WorkerSettings, job_secret
from agent.shadow import ShadowCopy, Source
from agent.state import Registry
from agent.tap import Tap
from agent.transport import Moved, Offer, SourceFailed, Transfer
from agent.wire import Link, Message, admit, dial, parse_address, receive_exactly

HEARTBEAT_SECONDS = 0.5
OUTGOING_MESSAGES = 1000
FORM_SECONDS = 20.0
"""How long gloo may take to connect the members; a dead one is noticed earlier by the coordinator."""


Received = TypeVar("Received")


class Worker:
    """This process as a member (or spare) of the run."""

    def __init__(self, settings: WorkerSettings, group: LiveGroup, registry: Registry) -> None:
        self.settings = settings
        self.rank = settings.rank
        self.group = group
        self.registry = registry
        self.journal = Journal()
        self.commit = CommitPoint(on_commit=self._on_commit)
        self.finished = False
        """The coordinator has said that all ranks have made their last step."""
        self.abandoned = False
        """The coordinator has ended this worker's part."""
        self.promoted = False
        """State was received since the training thread last looked."""
        self.first_commit: tuple[int, int] | None = None
        """Version and samples of the first step committed in the current epoch."""
        self._secret = job_secret()
        self._formed: dict[int, tuple[Members, list[int]]] = {}
        self._plan_epoch = 0
        self._link: Link | None = None
        self._outgoing: queue.Queue[Message] = queue.Queue(OUTGOING_MESSAGES)
        self._offers: tuple[tuple[int, int], dict[str, Offer]] | None = None
        self._offer_lock = threading.Lock()
        self._transfer: Transfer | None = None
        self._receiving = threading.Lock()
        self.tap = Tap(registry)
        self._shadow: ShadowCopy | None = None
        self._hello: Callable[[], Message] = dict
        self.copy: ShardCopy | None = None
        """Of the rank before this one, where the strategy needs it."""
        self.tested = -1
        """A step that was refused because of one rank's numbers, and is done again: this time it counts."""
        self._suspicion: Message | None = None
        self.on_rank: Callable[[int], None] = lambda rank: None
        """Called before state for a rank is received, on the thread that receives it."""
        self._store = self._serve_store()
        self._listener = listen(settings.host, settings.ports)
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
            (self._serve, "serve"),
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
            "epoch": self._plan_epoch,
            "version": standing.version,
            "prepared": standing.prepared,
            "samples": self.journal.samples,
            "stopped": self.commit.stopped,
            "first_commit": self.first_commit,
            "suspicion": self._suspicion,
            "state": [self.settings.host, self._listener.getsockname()[1]],
            "store": [self.settings.host, self._store.port],
            **self._hello(),
        }

    def tell(self, message: Message) -> None:
        """Queue for the coordinator; never blocks, because the training thread calls it.

        What cannot be sent is dropped: the introduction to the next coordinator covers it.
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
        self.tell({"type": "suspect", "epoch": self._plan_epoch, "reason": reason})

    def not_finite(self, step: int, findings: dict[int, list[str]], suspects: list[int]) -> None:
        """Tell what the ranks found that is not finite in `step`, which does not commit if that makes one suspect."""
        message = {"epoch": self._plan_epoch, "step": step, "findings": findings, "suspects": suspects}
        message["again"] = step == self.tested
        self._suspicion = message
        self.tell({"type": "not_finite", **message})

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
                        "first_commit": self.first_commit,
                    }
                )
            case "plan":
                self._plan_epoch, self.tested = message["epoch"], message["tested"]
                if self.settings.worker not in message["ranks"]:
                    return  # this worker leaves; it only serves its state
                threading.Thread(target=self._carry_out, args=(message,), daemon=True).start()
            case "keep":
                self._plan_epoch = message["epoch"]
                threading.Thread(target=self._keep, args=(message,), daemon=True).start()
            case "resume":
                if message["epoch"] == self._plan_epoch:
                    self.commit.resume(message["epoch"])
            case "pause":
                self.commit.pause_at(message["version"])
            case "shadow":
                name, (host, port) = message["source"]
                source = Source(name, (host, port), self._secret)
                threading.Thread(target=self._follow, args=(source,), daemon=True).start()
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
            forming = _Forming(self, plan, rank)
            if self.settings.worker in plan["targets"]:
                moved = self._alone(lambda: self._receive(plan))
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
                self._rule(plan)
                if rank != self.rank:  # a smaller world, in which this worker becomes rank 0
                    self.on_rank(rank)
                    self.promoted = True
                if self.copy is not None and not self.copy.filled:
                    self._alone(lambda: self._receive_copy(plan))
            members = forming.result()
            if epoch == self._plan_epoch:
                self.rank, self._formed = rank, {epoch: (members, sorted(ranks.values()))}
                faults.at("ready")
        except SourceFailed as error:
            report = {"type": "failed", "epoch": epoch, "reason": str(error)}
            report |= {"damaged": error.damaged, "source": error.source}
        except Exception as error:  # whatever it was, the coordinator must know and choose another way
            report = {"type": "failed", "epoch": epoch, "reason": f"{type(error).__name__}: {error}"}
        if epoch == self._plan_epoch:
            self.tell(report)

    def _keep(self, plan: Message) -> None:
        """The run ends: write the asked-for parts of the state to disk."""
        report: Message = {"type": "kept", "epoch": plan["epoch"], "digests": [], "error": None}
        try:
            self._rule(plan)
            if not self.commit.wait_servable(plan["version"], FORM_SECONDS):
                raise RuntimeError(f"this worker does not reach step {plan['version']}")
            for path, which in plan["files"]:
                part = self.copy if which == "copy" and self.copy is not None else self.registry
                report["digests"].append([path, kept_parts.write_part(Path(path), part, self.journal, plan["version"])])
        except Exception as error:  # whatever it was, the coordinator must tell it
            report["error"] = f"{self.settings.worker}: {error}"
        self.tell(report)

    def resume_from(self, folder: Path) -> None:
        """Begin with a kept state instead of the script's initial one. Raises CannotResume or StateMismatch."""
        meta = kept.read_meta(folder)
        files, parts, version = meta["files"], meta["parts"], meta["version"]
        self.on_rank(self.rank)
        mine = files[str(parts[self.rank])]
        entries = kept_parts.read_part(folder / Path(mine["path"]).name, self.registry, mine["digest"], version)
        if self.copy is not None:
            before = files[str(parts[self.rank - 1])]
            kept_parts.read_part(folder / Path(before["path"]).name, self.copy, before["digest"], version)
        self.journal.receive(entries, committed=False)
        self.commit.adopt(version)
        self.promoted = True

    def _rule(self, plan: Message) -> None:
        """Settle a step in doubt as the plan says."""
        standing = self.commit.standing()
        if standing.prepared and standing.version + 1 == plan["version"]:
            self.journal.receive(self._fetch_journal(plan), committed=True)
            self.commit.rule(commit=True)
        elif standing.version == plan["version"]:
            self.commit.rule(commit=False)
            if plan["version"] == 0:
                self.journal.entries = _initial(plan)
        else:
            raise RuntimeError(f"this worker is at step {standing.version}, the plan at {plan['version']}")

    def _alone(self, receive: Callable[[], Received]) -> Received:
        if self._transfer is not None:
            self._transfer.cancel()
        # Two transfers must never write into the same tensors: the older one may bring another version.
        if not self._receiving.acquire(timeout=FORM_SECONDS):
            raise RuntimeError("an earlier transfer does not end")
        try:
            return receive()
        finally:
            self._receiving.release()

    def _receive(self, plan: Message) -> Moved:
        """Become the rank that the plan assigns, as far as state goes."""
        self.on_rank(plan["ranks"][self.settings.worker])
        moved = self._from_shadow(plan) or self._pull(plan, self.registry, "holders")
        if self.copy is not None:
            self._receive_copy(plan)
        entries = _initial(plan) if plan["version"] == 0 else self._fetch_journal(plan)
        self.journal.receive(entries, committed=False)
        self.commit.adopt(plan["version"])
        self.promoted = True
        return moved

    def _follow(self, source: Source) -> None:
        """Begin to copy a leaving worker that goes on training."""
        with self._receiving:
            self._end_shadow(self._shadow)
            self._shadow = ShadowCopy(self.registry, source, self.tell)

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
        if shadow.source.name in [name for name, *_ in plan["holders"][self.settings.worker]]:
            moved = shadow.finish(plan["epoch"], plan["version"], FORM_SECONDS / 2)
        self._end_shadow(shadow)
        return moved

    def _receive_copy(self, plan: Message) -> None:
        """Take a copy of the shard of the rank before this one."""
        assert self.copy is not None
        self._pull(plan, self.copy, "copies")

    def _pull(self, plan: Message, registry: Registry, sources: str) -> Moved:
        self._transfer = transfer = Transfer(
            registry,
            [(name, (host, port), part) for name, (host, port), part in plan[sources][self.settings.worker]],
            secret=self._secret,
            epoch=plan["epoch"],
            version=plan["version"],
            streams=self.settings.streams,
        )
        return transfer.run()

    def _fetch_journal(self, plan: Message) -> list[Entry]:
        failure: OSError = SourceFailed("no worker holds the journal")
        for name, (host, port) in plan["sources"]:
            try:
                link = Link(dial((host, port), self._secret))
                link.sock.settimeout(FORM_SECONDS)
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
        self.first_commit = self._suspicion = None
        return True

    def committed(self, epoch: int) -> None:
        """Tell the coordinator that a step is committed and complete. Training thread."""
        message = {"type": "committed", "epoch": epoch}
        self.tell({**message, "version": self.commit.version, "samples": self.journal.samples})

    def _on_commit(self) -> None:
        self.journal.advance()
        self.first_commit = self.first_commit or (self.commit.version, self.journal.samples)

    # Towards peers ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
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
                reason = self.tap.serve(link, self._servable)
                if reason is not None:
                    self.tell({"type": "shadow_failed", "reason": reason})
                return
            epoch, version = request["epoch"], request["version"]

            def is_current() -> bool:
                return self._is_current(epoch, version)

            held = request.get("part") != "copy" or (self.copy is not None and self.copy.filled)
            if not self._servable(epoch, version) or not held:
                reason = f"it is at version {self.commit.version} in epoch {self._plan_epoch}"
                link.send({"type": "refused", "reason": reason})
            elif request["type"] == "journal":
                data = self.journal.to_bytes()
                link.send({"type": "journal", "size": len(data)})
                sock.sendall(data)
            else:
                offer = self._current_offer(epoch, version, request["part"])
                link.send({"type": "offer", "manifest": offer.manifest, "small": len(offer.small)})
                offer.serve(link, is_current)

    def _is_current(self, epoch: int, version: int) -> bool:
        return epoch == self._plan_epoch and self.commit.stopped and self.commit.version == version

    def _servable(self, epoch: int, version: int) -> bool:
        """Wait until the state of `version` can be given away in `epoch`."""
        # The plan may reach the receiver before it reaches this worker.
        deadline = time.monotonic() + FORM_SECONDS
        while self._plan_epoch < epoch and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.commit.wait_servable(version, FORM_SECONDS) and self._is_current(epoch, version)

    def _current_offer(self, epoch: int, version: int, part: str) -> Offer:
        with self._offer_lock:
            if self._offers is None or self._offers[0] != (epoch, version):
                self._offers = ((epoch, version), {})
            offers = self._offers[1]
            if part not in offers:
                offers[part] = Offer(self.copy if part == "copy" and self.copy is not None else self.registry)
            return offers[part]

    def drop_offer(self) -> None:
        """Training goes on: what was offered is about to change."""
        with self._offer_lock:
            self._offers = None


class _Forming:
    """Connecting to the other members of a plan on a thread of its own, beside the transfer of state."""

    def __init__(self, worker: Worker, plan: Message, rank: int) -> None:
        self._members: Members | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(worker, plan, rank), daemon=True)
        self._thread.start()

    def _run(self, worker: Worker, plan: Message, rank: int) -> None:
        try:
            faults.at("form")
            host, port = plan["store"]
            # One client for each epoch: a client blocked on a dead member's key must not delay the next.
            client = c10d.TCPStore(host, port, None, False, timedelta(seconds=FORM_SECONDS))
            store = c10d.PrefixStore(f"epoch-{plan['epoch']}", client)
            partitions = worker.group.partitions
            present = sorted(plan["ranks"].values())  # without those that nobody takes
            self._members = Members(store, present.index(rank), len(present), FORM_SECONDS, partitions)
            # Later than the coordinator's own watch for a hang, which knows whom the others wait for.
            self._members.set_timeout(2 * worker.settings.limits.hang)
        except Exception as error:  # torch raises several kinds here
            self._error = error

    def result(self) -> Members:
        self._thread.join(2 * FORM_SECONDS)
        if self._members is None:
            raise RuntimeError(f"the members could not connect: {self._error or 'time ran out'}")
        return self._members


def _report_exceptions(worker: Worker) -> None:
    """An exception that ends the script is known to the coordinator before the process has ended."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, Exception):
            worker.dying(error)
        before(kind, error, trace)

    sys.excepthook = report


def _initial(plan: Message) -> list[Entry]:
    return [Entry.from_bytes(bytes.fromhex(text)) for text in plan["initial"]]

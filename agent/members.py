"""The gloo group of one epoch: its connections, how they are made, and how they are cut."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from agent import faults, nccl
from agent.wire import Message, own_sockets

Tensor = torch.Tensor
FORM_SECONDS = 20.0
"""How long gloo may take to connect the members; a dead one is noticed earlier by the coordinator."""
CPU = torch.device("cpu")
Partitions = Mapping[str, Sequence[Sequence[int]]]
WHOLE = ""
"""The partition of all ranks in one row."""


class OwnedWork(c10d.Work):
    """A collective's completion, fulfilled by gloo or by the agent, whichever comes first."""

    def __init__(self, result: Any, device: torch.device = CPU) -> None:
        super().__init__()
        # A future that knows its device lets streams wait for it instead of threads.
        self.future: torch.futures.Future[Any] = torch.futures.Future(devices=None if device == CPU else [device])
        self._result = result
        self._done = threading.Lock()

    def complete(self) -> None:
        if self._done.acquire(blocking=False):
            self.future.set_result(self._result)

    def is_completed(self) -> bool:
        return bool(self.future.done())

    def wait(self, timeout: Any = None) -> bool:
        self.future.wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self.future


class Members:
    """The gloo group of one epoch, and the sockets that it opened."""

    def __init__(
        self,
        store: c10d.Store,
        rank: int,
        size: int,
        timeout: float,
        partitions: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> None:
        """Connects to every other member. Raises RuntimeError after `timeout` seconds.

        `partitions` name ways to divide the ranks into rows; each gets one more group, of this rank's row.
        """
        self.rank, self.size = rank, size
        self._inodes: set[int] = set()
        self.works: list[Any] = []
        self.stuck = False
        """A collective has not ended long after the connections were shut."""
        self._on_gpus: dict[str, Any] = {}
        self.parts = {WHOLE: self._connect(WHOLE, store, rank, size, timeout)}
        for name, rows in (partitions or {}).items():
            number, row = next(item for item in enumerate(rows) if rank in item[1])
            part = c10d.PrefixStore(f"{name}-{number}", store)
            self.parts[name] = self._connect(name, part, row.index(rank), len(row), timeout)

    def _connect(self, name: str, store: c10d.Store, rank: int, size: int, timeout: float) -> Any:
        if nccl.available():
            self._on_gpus[name] = nccl.connect(store, rank, size, timeout)
        before = set(_socket_inodes())
        gloo = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout))
        if size > 1:
            self._inodes |= self._opened_since(before, connected=size - 1)
        return gloo

    @staticmethod
    def _opened_since(before: set[int], connected: int) -> set[int]:
        """Inodes of the new sockets; accepts may lag behind the constructor, so wait for them a little."""
        deadline = time.monotonic() + 0.5
        while True:
            fresh = set(_socket_inodes()) - before - _own_inodes()
            if len(fresh) > connected or time.monotonic() > deadline:
                return fresh
            time.sleep(0.0005)

    def part(self, name: str, device: torch.device) -> Any:
        """The group of a partition that works on tensors of `device`."""
        return self._on_gpus.get(name, self.parts[name]) if device.type == "cuda" else self.parts[name]

    def set_timeout(self, seconds: float) -> None:
        """Bounds every later collective: the last line of defence behind `cut`."""
        for gloo in self.parts.values():
            gloo._set_default_timeout(timedelta(seconds=seconds))

    def shut_sockets(self) -> None:
        """Unblock every member: gloo on both ends sees its connections end.

        Works by inode because descriptor numbers are reused, and spares listening sockets: gloo terminates
        the process when its listener fails.
        """
        for group in self._on_gpus.values():
            nccl.abort(group)
        for inode, descriptor in _socket_inodes().items():
            if inode not in self._inodes:
                continue
            try:
                sock = socket.socket(fileno=os.dup(descriptor))
            except OSError:
                continue
            with sock:
                try:
                    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0:
                        sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # not connected (any more)

    def is_idle(self) -> bool:
        """Whether no thread of gloo can still write into a tensor of this epoch."""
        self.works = [work for work in self.works if not work.is_completed()]
        return not self.works


class Forming:
    """Connecting to the other members of a plan on a thread of its own, beside the transfer of state."""

    def __init__(self, plan: Message, rank: int, partitions: Partitions, hang: float) -> None:
        self._members: Members | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(plan, rank, partitions, hang), daemon=True)
        self._thread.start()

    def _run(self, plan: Message, rank: int, partitions: Partitions, hang: float) -> None:
        try:
            faults.at("form")
            host, port = plan["store"]
            # One client for each epoch: a client blocked on a dead member's key must not delay the next.
            client = c10d.TCPStore(host, port, None, False, timedelta(seconds=FORM_SECONDS))
            store = c10d.PrefixStore(f"epoch-{plan['epoch']}", client)
            present = sorted(plan["ranks"].values())  # without those that nobody takes
            self._members = Members(store, present.index(rank), len(present), FORM_SECONDS, partitions)
            # Later than the coordinator's own watch for a hang, which knows whom the others wait for.
            self._members.set_timeout(2 * hang)
        except Exception as error:  # torch raises several kinds here
            self._error = error

    def result(self) -> Members:
        self._thread.join(2 * FORM_SECONDS)
        if self._members is None:
            raise RuntimeError(f"the members could not connect: {self._error or 'time ran out'}")
        return self._members


def _socket_inodes() -> dict[int, int]:
    """Inode to descriptor of every open socket of this process."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found[int(target[8:-1])] = int(name)
    return found


def _own_inodes() -> set[int]:
    found: set[int] = set()
    for sock in list(own_sockets):
        try:
            found.add(os.fstat(sock.fileno()).st_ino)
        except OSError:
            continue  # closed meanwhile
    return found

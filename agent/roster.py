"""The members of a run as the coordinator knows them, and the connections to them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agent.wire import Message, PeerRefused, admit_stream, receive_message, write_message

PREDECESSORS_SECONDS = 5.0


@dataclass
class Member:
    """One worker process: active where it holds a rank, otherwise a spare."""

    worker: str
    node: str
    rank: int | None
    first_rank: int | None = None
    """The rank it was started with."""
    pid: int = 0
    alive: bool = True
    registered: bool = False
    """It has rehearsed and can take part."""
    writer: asyncio.StreamWriter | None = None
    facts: Message = field(default_factory=dict)
    """What it introduced itself with: addresses, layout, initial state."""
    version: int = 0
    prepared: bool = False
    has_copy: bool = False
    samples: int = 0
    issued: int = 0
    """Collectives begun in its epoch, as of its last heartbeat."""
    stopped_in: int = 0
    """The latest epoch for which it reported that it stands still."""
    ready_in: int = 0
    done: bool = False
    leaving: bool = False
    failures: int = 0
    """Attempts that failed on its side."""
    heard: float = field(default_factory=time.monotonic)
    place: Message = field(default_factory=dict)
    """Its local rank, and its GPU as `CUDA_VISIBLE_DEVICES` would name it (None without one)."""
    severed: float | None = None
    """Since when neither it nor its launcher is connected."""

    def tell(self, message: Message) -> None:
        if self.writer is not None:
            write_message(self.writer, message)


@dataclass
class Node:
    """A launcher on a host: it starts, watches and ends the workers there."""

    name: str
    writer: asyncio.StreamWriter
    instance: str = ""
    """Tells one launcher from a later one of the same name."""
    heard: float = field(default_factory=time.monotonic)

    def tell(self, message: Message) -> None:
        write_message(self.writer, message)


Handler = Callable[["Member", Message], None]


class Roster:
    """Accepts connections, keeps members up to date, and says what changed."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.members: dict[str, Member] = {}
        self.nodes: dict[str, Node] = {}
        self.excluded: set[str] = set()
        """Workers that were declared lost, also by an earlier coordinator."""
        self.holders: dict[str, int] = {}
        """The ranks of workers under an earlier coordinator: one may be lost before it tells of its rank."""
        self.changed = asyncio.Event()
        self.on_message: Handler = lambda member, message: None
        """A message of a registered worker."""
        self.on_node: Callable[[Node, Message], None] = lambda node, message: None
        self.on_silence: Callable[[Member, str], None] = lambda member, reason: None
        """The connection of a live worker ended."""
        self.on_node_lost: Callable[[Node], None] = lambda node: None
        self.on_nonsense: Callable[[str], None] = lambda what: None
        """A peer that knows the secret sent what no message of ours looks like; its connection was closed."""
        self.on_request: Callable[[Message], Message] = lambda message: {"type": "unknown"}
        """A request from the command line; returns the answer."""

    def active(self) -> list[Member]:
        """Live members that hold a rank, by rank."""
        holders = [member for member in self.members.values() if member.alive and member.rank is not None]
        return sorted(holders, key=lambda member: member.rank or 0)

    def spares(self) -> list[Member]:
        """Live members that could take a rank now."""
        return [
            member
            for member in self.members.values()
            if member.alive and member.rank is None and member.registered and member.writer is not None
        ]

    def members_of(self, node: str) -> list[Member]:
        """All that were started on a host."""
        return [member for member in self.members.values() if member.node == node]

    def drop(self, node: Node) -> None:
        """Go on without a launcher; it may introduce itself again."""
        self.nodes.pop(node.name, None)
        node.writer.close()

    def coming(self) -> list[Member]:
        """Live processes without a rank that have not said yet that they are ready."""
        return [each for each in self.members.values() if each.alive and each.rank is None and not each.registered]

    async def wait(self, predicate: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until `predicate` holds; False after `seconds`. One waiter at a time."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            self.changed.clear()
            if predicate():
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.changed.wait()

    # Connections -----------------------------------------------------------------------------------------

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        try:
            await admit_stream(reader, writer, self._secret)
            first = await receive_message(reader)
            if first["type"] == "node":
                await self._serve_node(first, reader, writer)
            elif first["type"] == "worker":
                await self._serve_worker(first, reader, writer)
            else:
                write_message(writer, self.on_request(first))
                await writer.drain()
        except (OSError, TimeoutError, EOFError, PeerRefused, asyncio.CancelledError):
            pass  # a stranger, a peer that went away (noted where it matters), or the end of the run
        except (KeyError, ValueError, TypeError) as error:
            self.on_nonsense(f"{type(error).__name__}: {error}")
        finally:
            writer.close()

    async def _serve_node(self, hello: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = Node(hello["node"], writer, hello["instance"])
        await self._predecessors_lost(node, hello["workers"])
        if reader.at_eof():
            return  # it has given up waiting, and introduces itself anew
        if (reason := self._stranger(node, hello["workers"])) is not None:
            node.tell({"type": "refused", "reason": reason})
            await writer.drain()
            return
        self.nodes[node.name] = node
        for worker, facts in hello["workers"].items():
            if not self.add(worker, node.name, facts).alive:
                node.tell({"type": "fence", "worker": worker})  # it was given up while the launcher was away
        self.changed.set()
        try:
            while True:
                message = await receive_message(reader)
                node.heard = time.monotonic()
                self.on_node(node, message)
                self.changed.set()
        finally:
            if self.nodes.get(node.name) is node:
                del self.nodes[node.name]
                self.on_node_lost(node)
                self.changed.set()

    async def _predecessors_lost(self, node: Node, workers: Message) -> None:
        """Wait a little until the workers of an earlier launcher of this name count as lost.

        A host that is back within a second or two would else be refused for the sake of what died with it.
        """
        deadline = time.monotonic() + PREDECESSORS_SECONDS
        while node.name not in self.nodes and time.monotonic() < deadline:
            others = [each for each in self.members.values() if each.node == node.name and each.alive]
            if all(each.worker in workers for each in others):
                return
            await asyncio.sleep(0.05)

    def _stranger(self, node: Node, workers: Message) -> str | None:
        """Why a launcher cannot take part under its name; None if it can."""
        present = self.nodes.get(node.name)
        others = [each for each in self.members.values() if each.node == node.name and each.alive]
        if present is not None and present.instance != node.instance:
            return name_taken(node.name)
        ranks = {facts["rank"]: worker for worker, facts in workers.items() if facts["rank"] is not None}
        taken = [each for each in self.members.values() if each.first_rank in ranks]
        if any(each.worker != ranks[each.first_rank] for each in taken if each.first_rank is not None):
            return f"rank {taken[0].first_rank} was started on {taken[0].node}; give each host its own --node-rank"
        if any(each.worker not in workers for each in others):
            return f"workers of an earlier launcher of the name {node.name} still run; end them or use another --node"
        return None

    def add(self, worker: str, node: str, facts: Message) -> Member:
        """A worker was started; `facts` are its launcher's."""
        rank = facts["rank"]
        member = self.members.setdefault(worker, Member(worker, node, self.holders.get(worker, rank), rank))
        member.pid, member.severed = facts["pid"], None
        member.place = {"place": facts["place"], "gpu": facts["gpu"]}
        member.alive = member.alive and worker not in self.excluded
        return member

    async def _serve_worker(self, hello: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = hello["worker"]
        await self.wait_known(name)
        member = self.members.get(name)
        if member is None or not member.alive:
            write_message(writer, {"type": "abandon", "reason": f"worker {name} is no member any more"})
            await writer.drain()
            return
        member.writer, member.facts, member.registered, member.severed = writer, hello, True, None
        member.version, member.prepared = hello["version"], hello["prepared"]
        member.samples, member.done = hello["samples"], hello["done"]
        self.on_message(member, hello)
        self.changed.set()
        try:
            while True:
                message = await receive_message(reader)
                member.heard = time.monotonic()
                self.on_message(member, message)
                self.changed.set()
        except (OSError, EOFError) as error:
            ended = str(error) or "the connection ended"
        except (KeyError, ValueError, TypeError) as error:
            ended = f"it sent nonsense ({type(error).__name__}: {error})"
        if member.writer is writer:
            member.writer = None
            if member.alive:
                self.on_silence(member, ended)
            self.changed.set()

    async def wait_known(self, worker: str) -> None:
        """A worker may introduce itself before its node has told of it."""
        for _ in range(500):
            if worker in self.members:
                return
            await asyncio.sleep(0.01)

    def tell_all(self, message: Message, members: Iterator[Member] | list[Member]) -> None:
        for member in members:
            member.tell(message)


def name_taken(node: str) -> str:
    """Why a second launcher may not take part under a name."""
    return f"there is a launcher of the name {node} already; give this one another with --node"


def address_of(member: Member, kind: str) -> list[Any]:
    """`kind` is `state` or `store`; where peers reach that service of the member."""
    address: list[Any] = member.facts[kind]
    return address

"""What the run measures: requests by kind, faults and the time they took, memory of the processes."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tools.services import Server

MIB = 1024 * 1024
RECOVERY_S = 10.0
"""After a killed server answers again, so long its clients may still meet an error of it."""
WARM_UP = 1 / 3
"""Of the run: caches fill, imports happen on first use. Memory is judged after it."""
GROWTH_MIB, GROWTH_SHARE = 12.0, 0.10
"""How much more a process may hold, as the median of the last third, than in the middle third: the greater of both."""
JUDGED_FROM_S = 300.0
"""A shorter run is over before its processes are warm; its memory is printed and not judged."""


class Asked(NamedTuple):
    """One request: when it began, of which kind, how long it took, what went wrong (empty: nothing)."""

    at: float
    kind: str
    seconds: float
    error: str


class Log:
    """Requests of this process. Appending is safe from every thread."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    @contextmanager
    def asking(self, kind: str) -> Iterator[list[str]]:
        """Times the block; what it appends to the yielded list is what went wrong."""
        at, began, errors = time.time(), time.perf_counter(), list[str]()
        try:
            yield errors
        finally:
            self.asked.append(Asked(at, kind, time.perf_counter() - began, " ".join(errors)))


class Fault(NamedTuple):
    """A server was killed, was ready again, and was forgiven its errors until `ended_at`."""

    server: str
    killed_at: float
    ready_at: float

    @property
    def ended_at(self) -> float:
        return self.ready_at + RECOVERY_S

    def touches(self, asked: Asked) -> bool:
        return asked.at < self.ended_at and asked.at + asked.seconds > self.killed_at


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def kinds_table(asked: Iterable[Asked], faults: list[Fault]) -> dict[str, dict[str, Any]]:
    """Of each kind, and of `all`: requests and errors outside and inside the faults; milliseconds of those outside."""
    by_kind: dict[str, list[Asked]] = defaultdict(list)
    for one in asked:
        by_kind[one.kind].append(one)
        by_kind["all"].append(one)
    table = {}
    for kind, rows in sorted(by_kind.items()):
        inside = [row for row in rows if any(fault.touches(row) for fault in faults)]
        outside = [row for row in rows if not any(fault.touches(row) for fault in faults)]
        took = [row.seconds * 1000 for row in outside if not row.error]
        table[kind] = {
            "requests": len(outside),
            "errors": sum(bool(row.error) for row in outside),
            "requests_in_faults": len(inside),
            "errors_in_faults": sum(bool(row.error) for row in inside),
            **{f"p{n}_ms": round(percentile(took, n / 100), 1) if took else None for n in (50, 95, 99)},
            "longest_ms": round(max((row.seconds * 1000 for row in rows), default=0), 1),
        }
    return table


class Memory:
    """Resident memory of each process of the servers over time, in MiB.

    PostgreSQL's processes come and go with connections and share most of their memory, so it counts as one, by its
    proportional set size.
    """

    def __init__(self, servers: Iterable[Server]) -> None:
        self._servers = list(servers)
        self.samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.pids: dict[str, set[int]] = defaultdict(set)

    def sample(self) -> None:
        for server in self._servers:
            if server.process is None or not server.running():
                continue
            pid = server.process.pid
            try:
                family = [pid, *children(pid)]
                if server.name == "postgres":
                    self._note(server.name, pid, sum(map(_proportional, family)))
                    continue
                for number, member in enumerate(family):
                    name = f"{server.name}.{number}" if number else server.name
                    self._note(name, member, _resident(member))
            except OSError:
                continue  # it was just killed

    def _note(self, name: str, pid: int, size: int) -> None:
        self.samples[name].append((time.time(), size / MIB))
        self.pids[name].add(pid)

    def table(self, *, began: float, ended: float) -> dict[str, dict[str, Any]]:
        """Of each process: MiB in the middle and in the last third, the slope between them, whether it is bounded."""
        warm = began + (ended - began) * WARM_UP
        last = ended - (ended - began) / 3
        table = {}
        for name, samples in sorted(self.samples.items()):
            middle = [size for at, size in samples if warm <= at < last]
            final = [size for at, size in samples if last <= at <= ended]
            if len(middle) < 2 or len(final) < 2:
                continue
            growth = statistics.median(final) - statistics.median(middle)
            after = [(at, size) for at, size in samples if warm <= at <= ended]
            slope = statistics.linear_regression(*zip(*after, strict=True)).slope
            table[name] = {
                "first_mib": round(samples[0][1], 1),
                "middle_mib": round(statistics.median(middle), 1),
                "last_mib": round(statistics.median(final), 1),
                "highest_mib": round(max(size for _, size in samples), 1),
                "slope_mib_per_hour": round(slope * 3600, 1),
                "processes": len(self.pids[name]),
                "bounded": growth <= max(GROWTH_MIB, GROWTH_SHARE * statistics.median(middle)),
            }
        return table


def children(pid: int) -> list[int]:
    return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _proportional(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def asked_read(path: Path) -> list[Asked]:
    return [Asked(*row) for row in json.loads(path.read_text())["asked"]]

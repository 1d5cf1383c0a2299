"""Training jobs that the benchmarks start, watch through their logs, disturb and end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from tools.bench.registry import CannotRun

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "agent_scripts" / "train.py"
PATIENCE = 240.0
"""Seconds after which a job that does not come to the awaited point has failed."""


@dataclass(frozen=True)
class Model:
    """`depth` layers of `width` x `width` in float32, trained by AdamW."""

    width: int = 2048
    depth: int = 1
    batch: int = 8

    @property
    def state_bytes(self) -> int:
        """Parameters and two moments of each."""
        return 3 * 4 * self.depth * self.width * (self.width + 1)

    @property
    def resident_bytes(self) -> int:
        """About what one process holds: state, gradients, DDP's buckets, torch."""
        return self.state_bytes * 5 // 3 + 300 * 2**20

    @property
    def size(self) -> str:
        return f"{self.state_bytes / 1e9:.2g} GB"

    def arguments(self) -> list[str]:
        return [f"--width={self.width}", f"--depth={self.depth}", f"--batch={self.batch}"]


SMALL, MIDDLE, LARGE = Model(depth=1), Model(depth=12), Model(depth=40)
"""0.05, 0.6 and 2 GB of state."""


@dataclass(frozen=True)
class Event:
    """One line that a process of the job logged."""

    at: float
    what: str
    step: int
    rank: int
    pid: int
    more: dict[str, Any] = field(default_factory=dict)


class StepLog:
    """All lines of all processes of a job, read as they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                found = json.loads(line)
                at, what, step, rank = (found.pop(name) for name in ("at", "what", "step", "rank"))
                self._events.append(Event(at, what, step, rank, int(path.stem), found))
        return self._events


class Job:
    """Some processes that run `agent_scripts/train.py` and log to one folder. They end with the block."""

    def __init__(self, folder: Path, model: Model) -> None:
        folder.mkdir(parents=True)
        self.folder, self.model = folder, model
        self.steps = folder / "steps"
        self.steps.mkdir()
        self.log = StepLog(self.steps)
        self.output = (folder / "output").open("w")
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.output.close()

    def script(self, way: str, *more: str) -> list[str]:
        return [str(SCRIPT), f"--way={way}", f"--log={self.steps}", *self.model.arguments(), *more]

    def start(self, command: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("YOCO_")}
        environment |= {"OMP_NUM_THREADS": "1", **variables}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=self.output, stderr=self.output)
        self.processes.append(process)
        return process

    def end(self) -> None:
        """SIGKILL to all processes of the job and to their children; returns when their memory is free."""
        children = [pid for process in self.processes for pid in children_of(process.pid)]
        for process in self.processes:
            process.kill()
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        deadline = time.monotonic() + 20
        while any(is_running(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(0.02)

    # What happened -----------------------------------------------------------------------------------------

    def events(self, what: str, *, rank: int | None = None, step: int | None = None) -> list[Event]:
        return [
            event
            for event in self.log.events()
            if event.what == what and (rank is None or event.rank == rank) and (step is None or event.step == step)
        ]

    def wait(self, until: Callable[[], bool], what: str, *, pause: float = 0.02, seconds: float = PATIENCE) -> None:
        """Raises RuntimeError with the job's output where `until` does not become true or a process ends."""
        deadline = time.monotonic() + seconds
        while not until():
            ended = [process for process in self.processes if process.poll() is not None]
            if time.monotonic() > deadline or ended:
                state = "a process ended" if ended else f"it took more than {seconds:.0f} s"
                raise RuntimeError(f"{what} did not come, {state}: {(self.folder / 'output').read_text()[-3000:]}")
            time.sleep(pause)

    def wait_for_step(self, step: int, rank: int = 0) -> None:
        """Until the rank has begun `step`."""
        self.wait(lambda: bool(self.events("begin", rank=rank, step=step)), f"step {step}", pause=0.002)

    def last_step(self, rank: int = 0) -> int:
        return max((event.step for event in self.events("commit", rank=rank)), default=-1)

    def step_seconds(self) -> float:
        """The median time from commit to commit on rank 0."""
        times = [event.at for event in self.events("commit", rank=0)]
        return statistics.median(later - earlier for earlier, later in pairwise(times[1:]))

    def kill(self, rank: int) -> float:
        """SIGKILL the process that holds the rank. Returns when, by the wall clock."""
        pid = max((event for event in self.log.events() if event.rank == rank), key=lambda event: event.at).pid
        now = time.time()
        os.kill(pid, signal.SIGKILL)
        return now

    def digests(self, ranks: int) -> dict[int, set[str]]:
        """Ask for digests, wait until every rank has logged one of the same step, and return all of them by step."""
        (self.steps / "digest").touch()
        found: dict[int, dict[int, str]] = defaultdict(dict)

        def complete() -> bool:
            for event in self.events("digest"):
                found[event.step][event.rank] = event.more["digest"]
            return any(len(by_rank) == ranks for by_rank in found.values())

        self.wait(complete, "a digest of all ranks")
        return {step: set(by_rank.values()) for step, by_rank in found.items()}


class AgentJob(Job):
    """A run of the agent's launcher, as a user starts it."""

    def __init__(
        self,
        folder: Path,
        model: Model,
        *,
        workers: int = 2,
        spares: int = 1,
        script: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, model)
        self.workers, self.spares = workers, spares
        self.state = folder / "state"
        command = [sys.executable, "-m", "agent", "run", f"--workers={workers}", f"--spares={spares}"]
        command += [f"--state-dir={self.state}", f"--run-id={folder.name}", *options]
        self.launcher = self.start([*command, *self.script("agent", *script)])

    def reports(self, event: str) -> list[dict[str, Any]]:
        """The agent's statements of one kind, in order."""
        path = self.state / "incidents.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        stated = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in stated if each["event"] == event]

    def wait_for_reports(self, event: str, count: int) -> dict[str, Any]:
        """The `count`th statement of a kind."""
        self.wait(lambda: len(self.reports(event)) >= count, f"report {count} of an incident {event}", pause=0.05)
        return self.reports(event)[count - 1]

    def drain(self, rank: int, mode: str) -> dict[str, Any]:
        """`agent drain`, as an operator calls it; the report of the finished move."""
        before = len(self.reports("resolved"))
        command = [sys.executable, "-m", "agent", "drain", self.folder.name, f"--state-dir={self.state}"]
        command += [f"--rank={rank}", f"--mode={mode}", "--notice=240"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode:
            raise RuntimeError(f"agent drain failed: {done.stdout}{done.stderr}")
        return self.wait_for_reports("resolved", before + 1)


class BareJob(Job):
    """DDP without the agent: one process a rank, joined by torch's TCPStore."""

    def __init__(self, folder: Path, model: Model, *, workers: int = 2, script: Sequence[str] = ()) -> None:
        super().__init__(folder, model)
        self.workers = workers
        self.launch(*script)

    def launch(self, *script: str) -> None:
        """Start all ranks."""
        port = str(free_port())
        for rank in range(self.workers):
            place = {"RANK": str(rank), "WORLD_SIZE": str(self.workers), "LOCAL_RANK": str(rank)}
            command = [sys.executable, *self.script("bare", *script)]
            self.start(command, **place, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

    def relaunch(self, *script: str) -> None:
        """As soon as one process has ended: end the others and start all again, with no pause between."""
        while all(process.poll() is None for process in self.processes):
            time.sleep(0.001)
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.processes.clear()
        self.launch(*script)


# Times ------------------------------------------------------------------------------------------------------


def phase(report: dict[str, Any], name: str) -> float:
    """When the agent says that a phase was reached, by the wall clock."""
    return datetime.fromisoformat(report["phases"][name]).timestamp()


def redone_step(report: dict[str, Any]) -> int:
    """The first step after the incident, counted from 0 as the script does."""
    return int(report["progress"]["last_committed_step"])


def begun_again(job: Job, step: int, ranks: int) -> float:
    """When the last rank began `step` for the last time, by the clocks of the script's processes."""
    return max(job.events("begin", rank=rank, step=step)[-1].at for rank in range(ranks))


def longest_gap(job: Job, rank: int, since: float) -> float:
    """The longest time between two commits of a rank, the second of which lies after `since`."""
    times = [event.at for event in job.events("commit", rank=rank)]
    return max(later - earlier for earlier, later in pairwise(times) if later > since)


# Proof -------------------------------------------------------------------------------------------------------


class Proof:
    """Digests that disturbed runs of one model showed, by step; compared with an undisturbed run in the end."""

    def __init__(self, model: Model, workers: int = 2) -> None:
        self._model, self._workers = model, workers
        self._seen: dict[int, set[str]] = defaultdict(set)
        self.runs = 0

    def add(self, job: Job) -> None:
        """End what a run had to show: all ranks, at one step at least."""
        for step, digests in job.digests(self._workers).items():
            self._seen[step] |= digests
        self.runs += 1

    def check(self, folder: Path) -> str:
        """Run undisturbed to the same steps: bare DDP for two ranks, the agent for more, because a sum of more than
        two numbers depends on DDP's buckets. Raises AssertionError where a digest differs.
        """
        last = max(self._seen)
        script = [f"--steps={last + 1}", "--digest-steps=" + ",".join(map(str, self._seen))]
        job: Job
        if self._workers == 2:
            job = BareJob(folder, self._model, script=script)
        else:
            job = AgentJob(folder, self._model, workers=self._workers, spares=0, script=script)
        expected: dict[int, set[str]] = defaultdict(set)
        with job:
            deadline = time.monotonic() + PATIENCE
            while len(job.events("digest", step=last)) < self._workers and time.monotonic() < deadline:
                time.sleep(0.1)
            for event in job.events("digest"):
                expected[event.step].add(event.more["digest"])
        wrong = [step for step, digests in self._seen.items() if digests != expected[step]]
        assert not wrong, f"after step {wrong} the state is not that of an undisturbed run"
        kind = "bare DDP" if self._workers == 2 else "an undisturbed run"
        return f"{self.runs} runs bit-identical to {kind} in parameters and optimizer state ({len(self._seen)} steps)"


# The machine -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder on disk for the state of runs, removed afterwards."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-agent-", dir=build, ignore_cleanup_errors=True) as name:
        yield Path(name)


def need_memory(size: int) -> None:
    """Raises CannotRun where that much memory is not free."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    if free < size:
        raise CannotRun(f"it needs {size / 2**30:.1f} GiB of free memory and {free / 2**30:.1f} are free")


def children_of(pid: int) -> list[int]:
    """Children of a process in the order of their start; of the launcher: coordinator, workers, spares."""
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def is_running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def load_note() -> str:
    return "load average " + " ".join(f"{value:.1f}" for value in os.getloadavg())

"""The longest time between two committed steps around a SIGKILL: torchft's over ours, on the same model."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from tools.bench.agent_jobs import ROOT, SMALL, Job, Model, Proof, free_port, load_note, longest_gap, workplace
from tools.bench.agent_recovery import lose_some, milliseconds
from tools.bench.registry import Bench, CannotRun, Goal, Reading

GAP = "agent.torchft_gap_vs_ours"
VERSION = "0.2.0"
ROUNDS = 5
TIMEOUT = 5
"""Seconds; what torchft's own example gives its process group."""
STEPS_BEFORE = 5
"""Commits of each replica group before the kill."""
PIP_SECONDS = 900


def environment() -> Path:
    """The interpreter of a virtual environment with torchft and the same torch, made once under build/.

    Raises CannotRun where pip cannot install it.
    """
    folder = ROOT / "build" / "torchft"
    python = folder / "bin" / "python"
    wanted = (f"torchft=={VERSION}", f"torch=={version('torch').partition('+')[0]}", "numpy", "xxhash")
    check = "import torchft, xxhash, numpy"
    if python.exists() and not subprocess.run([python, "-c", check], capture_output=True, check=False).returncode:
        return python
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True)
        line = (python, "-m", "pip", "install", "--quiet", "--no-input", *wanted)
        subprocess.run(line, check=True, capture_output=True, text=True, timeout=PIP_SECONDS)
        subprocess.run([python, "-c", check], check=True, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"pip did not install torchft {VERSION} within {PIP_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().splitlines() or ["no reason given"]
        raise CannotRun(f"torchft {VERSION} cannot be installed: {reason[-1]}") from error
    return python


class TorchftJob(Job):
    """A lighthouse, and one replica group of one process for each worker."""

    def __init__(self, folder: Path, model: Model, python: Path, *, workers: int = 2) -> None:
        super().__init__(folder, model)
        port = free_port()
        # The values of torchft's README.
        options = ["--min_replicas=1", "--quorum_tick_ms=100", "--join_timeout_ms=10000"]
        self.start([str(python.parent / "torchft_lighthouse"), *options, f"--bind=127.0.0.1:{port}"])
        self.replicas = [
            self.start(
                [str(python), *self.script("torchft", f"--timeout={TIMEOUT}")],
                TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{port}",
                REPLICA_GROUP_ID=str(replica),
            )
            for replica in range(workers)
        ]

    def lost_batches(self, rank: int) -> int:
        """Batches that the rank drew and whose step did not commit; the last one may still be under way."""
        events = [event for event in self.log.events() if event.rank == rank and event.what in ("draw", "commit")]
        return sum(first.what == "draw" and second.what == "draw" for first, second in pairwise(events))


@dataclass(frozen=True)
class Dropped:
    """What torchft did after a SIGKILL."""

    gap: float
    batches: int


def drop_one(folder: Path, model: Model, python: Path, fraction: float) -> Dropped:
    """Kill one replica group in mid-step; the other goes on alone."""
    with TorchftJob(folder, model, python) as job:
        # The first group to arrive trains alone until the other has joined it.
        job.wait(lambda: min(len(job.events("commit", rank=rank)) for rank in (0, 1)) >= STEPS_BEFORE, "both groups")
        job.wait_for_step(job.last_step(1) + 2, 1)
        before = job.lost_batches(0)
        time.sleep(fraction * job.step_seconds())
        killed = job.kill(1)
        last = job.last_step()
        victim = job.replicas[1]
        victim.wait()
        job.processes.remove(victim)  # its end is expected
        job.wait(lambda: job.last_step() > last + 3, "torchft's steps after the kill", pause=0.05)
        return Dropped(longest_gap(job, 0, killed), job.lost_batches(0) - before)


def measure(_wanted: Set[str], rounds: int = ROUNDS, model: Model = SMALL) -> Iterator[Reading]:
    """In every round: one killed worker under the agent, one under torchft, at the same point of a step."""
    python = environment()
    ours, theirs, loads = [], [], []
    proof = Proof(model)
    with workplace() as folder:
        for count in range(rounds):
            loads.append(load_note())
            fraction = (count + 0.5) / rounds
            ours += lose_some(folder / f"ours-{count}", model, 1, proof, first=fraction)
            theirs.append(drop_one(folder / f"torchft-{count}", model, python, fraction))
        proved = proof.check(folder / "reference")
    yield Reading(
        GAP,
        [other.gap / own.gap for own, other in zip(ours, theirs, strict=True)],
        checks=((f"ours loses no batch: {proved}", True),),
        notes=(
            f"{model.size} of state, 2 workers, torchft {VERSION} with time-outs of {TIMEOUT} s; {' | '.join(loads)}",
            f"ours: {milliseconds([own.gap for own in ours])} with the redone step, 0 batches lost",
            f"torchft: {milliseconds([other.gap for other in theirs])}; batches that the survivor drew and lost: "
            + " ".join(str(other.batches) for other in theirs)
            + "; it goes on with one replica group less",
        ),
    )


BENCH = Bench(
    (Goal(GAP, "longest time between commits around a SIGKILL, torchft's over ours", "ratio", ">= 10"),),
    measure,
)

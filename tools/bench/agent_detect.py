"""A worker with much resident memory is killed: how soon the coordinator knows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from tools.bench.agent_jobs import AgentJob, Model, Proof, load_note, need_memory, phase, workplace
from tools.bench.registry import Bench, Goal, Reading

DETECT = "agent.detect_ms_p95"
ROUNDS = 5
KILLS = 8
"""In each round; the 95th percentile of so few is their worst."""
GIB = 4.0
MODEL = Model(width=256, depth=2)
LEAST_STEPS = 20


def percentile_95(values: Sequence[float]) -> float:
    """The smallest value that at least 95 % do not exceed."""
    ordered = sorted(values)
    return ordered[-(-95 * len(ordered) // 100) - 1]


def detected(folder: Path, kills: int, gib: float, proof: Proof) -> tuple[list[float], list[float]]:
    """Milliseconds from SIGKILL to the coordinator's detected_at, and to its statement being on disk."""
    times, stated = [], []
    ballast = (f"--ballast={gib}", "--ballast-rank=1")
    with AgentJob(folder, MODEL, spares=kills, script=ballast) as job:
        incidents = job.state / "incidents.jsonl"
        for count in range(kills):
            job.wait(lambda: len(job.events("filled")) > count, "the resident memory")  # noqa: B023
            since = job.last_step()
            job.wait(lambda: job.last_step() > since + LEAST_STEPS, "steps between two kills")  # noqa: B023
            size = incidents.stat().st_size if incidents.exists() else 0
            killed = job.kill(1)
            while not incidents.exists() or incidents.stat().st_size == size:
                time.sleep(0.0005)
            stated.append((time.time() - killed) * 1000)
            times.append((phase(job.wait_for_reports("detected", count + 1), "detected_at") - killed) * 1000)
            job.wait_for_reports("resolved", count + 1)
        proof.add(job)
    return times, stated


def measure(_wanted: Set[str], rounds: int = ROUNDS, kills: int = KILLS, gib: float = GIB) -> Iterator[Reading]:
    """In every round: one run whose rank 1 is killed again and again."""
    need_memory(int((gib + 1) * 2**30) + (2 + kills) * MODEL.resident_bytes // 2)
    worst, everything, on_disk, loads = [], [], [], []
    proof = Proof(MODEL)
    with workplace() as folder:
        for count in range(rounds):
            loads.append(load_note())
            times, stated = detected(folder / f"run-{count}", kills, gib, proof)
            worst.append(percentile_95(times))
            everything += times
            on_disk += [late - early for early, late in zip(times, stated, strict=True)]
        proved = proof.check(folder / "reference")
    yield Reading(
        DETECT,
        worst,
        checks=((proved, True), ("no detection is dated before its SIGKILL", min(everything) >= 0)),
        notes=(
            f"{gib:g} GiB resident, {kills} kills in each run; of all {len(everything)}: median "
            f"{statistics.median(everything):.1f} ms, 95 % within {percentile_95(everything):.1f} ms, "
            f"worst {max(everything):.1f} ms; {' | '.join(loads)}",
            f"the statement is on disk {statistics.median(on_disk):.1f} ms later (median; worst {max(on_disk):.1f}), "
            "by the benchmark's own clock",
        ),
    )


BENCH = Bench(
    (Goal(DETECT, "SIGKILL to detection of a worker with 4 GiB resident, 95th percentile of a run", "ms", "<= 25"),),
    measure,
)

"""Planned moves by `agent drain`: how long training pauses, and how fast state moves while it does."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.agent_jobs import (
    LARGE,
    MIDDLE,
    SMALL,
    AgentJob,
    Model,
    Proof,
    begun_again,
    children_of,
    load_note,
    need_memory,
    phase,
    redone_step,
    workplace,
)
from tools.bench.agent_recovery import milliseconds
from tools.bench.agent_tcp import raw_bytes_a_second
from tools.bench.registry import Bench, Goal, Reading

PAUSE = "agent.planned_pause_vs_stop_and_copy"
GROWTH = "agent.pause_growth"
TRANSFER = "agent.transfer_vs_tcp"
ROUNDS = 5
FOLLOW, STOP = "follow", "stop-and-copy"
STREAMS = 2
MOST_EXTRA_MEMORY = 0.10
MOST_PAUSE, MOST_GROWTH = 0.25, 8
"""The goals, which the script's clocks must confirm."""


@dataclass(frozen=True)
class Move:
    """One finished drain, in seconds."""

    pause: float
    """From quiesced_at to resumed_at, as the agent reports."""
    seen: float
    """From the last commit of any rank before the pause to the last rank's next step, by the script's clocks."""
    transfer: float
    """From the plan to the verified state, as the agent reports."""
    moved: int
    """Bytes."""


def move(job: AgentJob, rank: int, mode: str) -> tuple[Move, dict[str, Any]]:
    """Drain a rank of a running job."""
    report = job.drain(rank, mode)
    assert report["resolution"] == "live_migration", report
    followed = report["state"]["digest_algorithm"] == "xxh3-128-replayed"
    assert followed == (mode == FOLLOW), f"asked to {mode}, the agent did otherwise: {report['attempts']}"
    step = redone_step(report)
    job.wait(lambda: job.last_step() > step, "the step after the move", pause=0.05)
    before = max(event.at for event in job.events("commit", step=step - 1))
    found = Move(
        pause=phase(report, "resumed_at") - phase(report, "quiesced_at"),
        seen=begun_again(job, step, job.workers) - before,
        transfer=phase(report, "state_verified_at") - phase(report, "spare_ready_at"),
        moved=report["state"]["bytes"],
    )
    return found, report


def moves(folder: Path, model: Model, modes: Sequence[str], proof: Proof) -> list[Move]:
    """Drain ranks in turn in one run, once in each of `modes`."""
    need_memory((2 + len(modes)) * model.resident_bytes)
    with AgentJob(folder, model, spares=len(modes), options=(f"--streams={STREAMS}",)) as job:
        job.wait_for_step(3)
        found = [move(job, number % 2, mode)[0] for number, mode in enumerate(modes)]
        proof.add(job)
    return found


def measure_pauses(
    wanted: Set[str], rounds: int = ROUNDS, small: Model = SMALL, large: Model = LARGE
) -> Iterator[Reading]:
    """In every round: a large job that is drained in both ways, and a small one."""
    follow: list[Move] = []
    stop: list[Move] = []
    little, loads = [], []
    proofs = Proof(large), Proof(small)
    with workplace() as folder:
        for count in range(rounds):
            loads.append(load_note())
            modes = [FOLLOW, STOP][:: 1 if count % 2 else -1]
            for mode, found in zip(modes, moves(folder / f"large-{count}", large, modes, proofs[0]), strict=True):
                (follow if mode == FOLLOW else stop).append(found)
            little += moves(folder / f"small-{count}", small, [FOLLOW], proofs[1])
        proved = [
            f"{proof.check(folder / f'reference-{number}')}, {model.size}"
            for number, (proof, model) in enumerate(zip(proofs, (large, small), strict=True))
        ]
    seen_ratio = statistics.median(each.seen / other.seen for each, other in zip(follow, stop, strict=True))
    seen_growth = statistics.median(each.seen / other.seen for each, other in zip(follow, little, strict=True))
    loaded = " | ".join(loads)
    times = (
        f"pause at {large.size}: followed {milliseconds([each.pause for each in follow])}, stop-and-copy "
        f"{milliseconds([each.pause for each in stop])}; at {small.size} followed "
        f"{milliseconds([each.pause for each in little])}"
    )
    seen = (
        f"by the script's clocks, last commit to next step: {milliseconds([each.seen for each in follow])}, "
        f"{milliseconds([each.seen for each in stop])}; {milliseconds([each.seen for each in little])}"
    )
    if PAUSE in wanted:
        yield Reading(
            PAUSE,
            [each.pause / other.pause for each, other in zip(follow, stop, strict=True)],
            checks=(
                (proved[0], True),
                (f"by the script's clocks {seen_ratio:.2f} (<= {MOST_PAUSE})", seen_ratio <= MOST_PAUSE),
            ),
            notes=(times, seen, loaded),
        )
    if GROWTH in wanted:
        yield Reading(
            GROWTH,
            [each.pause / other.pause for each, other in zip(follow, little, strict=True)],
            checks=(
                (proved[1], True),
                (f"by the script's clocks {seen_growth:.1f} (<= {MOST_GROWTH})", seen_growth <= MOST_GROWTH),
            ),
            notes=(times, seen),
        )


# Transfer ----------------------------------------------------------------------------------------------------


class Resident:
    """Resident memory of processes over time, read every few milliseconds on a thread."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._over = threading.Event()
        self.samples: list[tuple[float, int, int]] = []
        """Wall clock, pid, bytes."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.003):
            for pid in self._pids:
                try:
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                except (OSError, IndexError):
                    continue  # it has ended
                self.samples.append((time.time(), pid, pages * 4096))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def growth(self, pid: int, since: float, until: float) -> int:
        """How far a process rose above what it had at `since`, in bytes."""
        sizes = [size for at, each, size in self.samples if each == pid and since <= at <= until]
        return max(sizes) - sizes[0] if sizes else 0


def _copied(folder: Path, model: Model, count: int, proof: Proof) -> list[tuple[float, float]]:
    """Stop and copy some times in one run; bytes/s, and the extra memory at both ends over the state's size."""
    found = []
    with AgentJob(folder, model, spares=count, options=(f"--streams={STREAMS}",)) as job:
        job.wait_for_step(3)
        for number in range(count):
            rank = number % 2
            leaving = max(job.events("commit", rank=rank), key=lambda event: event.at).pid
            memory = Resident(children_of(job.launcher.pid))
            made, report = move(job, rank, STOP)
            memory.stop()
            spare = max(job.events("commit", rank=rank), key=lambda event: event.at).pid
            since, until = phase(report, "quiesced_at"), phase(report, "state_verified_at")
            extra = max(memory.growth(pid, since, until) for pid in (leaving, spare))
            found.append((made.moved / made.transfer, extra / model.state_bytes))
        proof.add(job)
    return found


def measure_transfer(
    _wanted: Set[str], rounds: int = ROUNDS, model: Model = MIDDLE, count: int = 2
) -> Iterator[Reading]:
    """In every round: raw TCP, and transfers of a leaving worker's state to a spare while training stands still."""
    need_memory((2 + count) * model.resident_bytes)
    ratios, rates, raws, extra, loads = [], [], [], [], []
    proof = Proof(model)
    with workplace() as folder:
        for number in range(rounds):
            loads.append(load_note())
            raw = raw_bytes_a_second(model.state_bytes, STREAMS)
            copied = _copied(folder / f"run-{number}", model, count, proof)
            raws.append(raw)
            rates.append(statistics.median(rate for rate, _ in copied))
            ratios.append(rates[-1] / raw)
            extra += [memory for _, memory in copied]
        proved = proof.check(folder / "reference")
    yield Reading(
        TRANSFER,
        ratios,
        checks=(
            (
                f"extra memory at either end {max(extra) * 100:.1f} % of the state (<= {MOST_EXTRA_MEMORY:.0%})",
                max(extra) <= MOST_EXTRA_MEMORY,
            ),
            (proved, True),
        ),
        notes=(
            f"{model.size} of state, {STREAMS} streams, checksums on, from the plan to the verified state; "
            + " | ".join(loads),
            f"GB/s: {' '.join(f'{rate / 1e9:.2f}' for rate in rates)}; raw TCP: "
            + " ".join(f"{rate / 1e9:.2f}" for rate in raws),
        ),
    )


PAUSES = Bench(
    (
        Goal(PAUSE, "pause of a followed move over that of stop-and-copy, 2 GB of state", "ratio", "<= 0.25"),
        Goal(GROWTH, "pause of a followed move with 2 GB of state over that with 0.05 GB", "ratio", "<= 8"),
    ),
    measure_pauses,
)
TRANSFERS = Bench(
    (Goal(TRANSFER, "state's bytes/s to a spare over raw TCP, as many streams", "ratio", ">= 0.60", ">= 0.80"),),
    measure_transfer,
)

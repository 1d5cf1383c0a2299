"""A worker is killed: how long until all ranks train again, with the agent and by a relaunch from a checkpoint."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from tools.bench.agent_jobs import (
    LARGE,
    MIDDLE,
    SMALL,
    AgentJob,
    BareJob,
    Model,
    Proof,
    begun_again,
    load_note,
    longest_gap,
    need_memory,
    phase,
    redone_step,
    workplace,
)
from tools.bench.registry import Bench, CannotRun, Goal, Reading

RECOVERY = "agent.recovery_vs_restart"
ROUNDS = 5
FIRST_KILL, STEPS_BETWEEN = 4, 4
"""The steps in which a worker is killed."""


@dataclass(frozen=True)
class Loss:
    """One killed worker, in seconds from the SIGKILL."""

    resumed: float
    """The last rank begins the redone step, by the script's clocks."""
    phases: dict[str, float]
    """What the agent's report says."""
    gap: float
    """The longest time between two commits around it, on rank 0."""
    step: float
    """What a step takes otherwise."""


PHASES = ("detected_at", "quiesced_at", "spare_ready_at", "state_moved_at", "state_verified_at", "resumed_at")


def lose(job: AgentJob, count: int, fraction: float) -> Loss:
    """Kill the highest rank, `fraction` of a step after it began one; `count` is how many were lost before."""
    victim = job.workers - 1
    job.wait_for_step(max(FIRST_KILL, job.last_step() + STEPS_BETWEEN), victim)
    usual = job.step_seconds()
    time.sleep(fraction * usual)
    killed = job.kill(victim)
    report = job.wait_for_reports("resolved", count + 1)
    step = redone_step(report)
    job.wait(lambda: job.last_step() > step, "the step after the recovery", pause=0.05)
    return Loss(
        resumed=begun_again(job, step, job.workers) - killed,
        phases={name: phase(report, name) - killed for name in PHASES},
        gap=longest_gap(job, 0, killed),
        step=usual,
    )


def lose_some(
    folder: Path, model: Model, kills: int, proof: Proof, *, workers: int = 2, first: float = 0.5
) -> list[Loss]:
    """Kill one worker after the other in one run, at points spread over a step, and prove that nothing was lost."""
    with AgentJob(folder, model, workers=workers, spares=kills) as job:
        losses = [lose(job, count, (first + count / kills) % 1.0) for count in range(kills)]
        proof.add(job)
    return losses


def restart(folder: Path, model: Model, fraction: float, proof: Proof) -> float:
    """Kill a rank of a bare DDP job in the step after a checkpoint; seconds until all ranks of a new one begin it."""
    checkpoint = folder.with_suffix(".pt")
    step = FIRST_KILL
    script = (f"--checkpoint={checkpoint}", f"--save-after={step - 1}")
    try:
        with BareJob(folder, model, script=script) as job:
            job.wait_for_step(step, 1)
            time.sleep(fraction * job.step_seconds())
            killed = job.kill(1)
            job.relaunch(f"--checkpoint={checkpoint}", "--load")
            job.wait(lambda: job.last_step(0) > step and job.last_step(1) > step, "the relaunched job's second step")
            proof.add(job)
            return begun_again(job, step, job.workers) - killed
    finally:
        checkpoint.unlink(missing_ok=True)


def measure(_wanted: Set[str], rounds: int = ROUNDS, model: Model = MIDDLE, curves: bool = True) -> Iterator[Reading]:
    """In every round: a killed worker under the agent, and the same under bare DDP with a relaunch."""
    need_memory(4 * model.resident_bytes)
    losses, restarts, loads = [], [], []
    proof = Proof(model)
    with workplace() as folder:
        for count in range(rounds):
            loads.append(load_note())
            fraction = (count + 0.5) / rounds
            losses += lose_some(folder / f"ours-{count}", model, 1, proof, first=fraction)
            restarts.append(restart(folder / f"restart-{count}", model, fraction, proof))
        proved = proof.check(folder / "reference")
        lines = list(_curves(folder)) if curves else []
    late = [loss.resumed - loss.phases["resumed_at"] for loss in losses]
    yield Reading(
        RECOVERY,
        [loss.resumed / seconds for loss, seconds in zip(losses, restarts, strict=True)],
        checks=((proved, True),),
        notes=(
            f"{model.size} of state, 2 workers, a step of {losses[0].step * 1000:.0f} ms; {' | '.join(loads)}",
            f"SIGKILL to all ranks training again: {milliseconds([loss.resumed for loss in losses])}",
            f"relaunch from a checkpoint one step old: {milliseconds(restarts)}",
            f"SIGKILL to the next commit, with the redone step: {milliseconds([loss.gap for loss in losses])}",
            f"the agent's phases from SIGKILL, median: {phases_line(losses)}; the last rank begins "
            f"{milliseconds(late)} after the agent's own resumed_at",
            *lines,
        ),
    )


def _curves(folder: Path) -> Iterator[str]:
    """Recovery for other sizes and numbers of workers, for information."""
    for workers, model, kills in ((2, SMALL, 3), (4, SMALL, 3), (8, SMALL, 3), (2, LARGE, 2)):
        try:
            need_memory((workers + kills) * model.resident_bytes)
        except CannotRun as reason:
            yield f"{workers} workers, {model.size}: not measured, {reason}"
            continue
        proof = Proof(model, workers)
        name = f"curve-{workers}-{model.depth}"
        losses = lose_some(folder / name, model, kills, proof, workers=workers)
        proved = proof.check(folder / f"{name}-reference")
        yield (
            f"{workers} workers, {model.size}, a step of {losses[0].step * 1000:.0f} ms: resumed after "
            f"{milliseconds([loss.resumed for loss in losses])} ({phases_line(losses)}); {proved}"
        )


def phases_line(losses: Sequence[Loss]) -> str:
    """Median of each phase, in milliseconds from the SIGKILL."""
    parts = [(name, statistics.median(loss.phases[name] for loss in losses)) for name in PHASES]
    return ", ".join(f"{name.removesuffix('_at')} {seconds * 1000:.0f}" for name, seconds in parts)


def milliseconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values) * 1000:.0f} ms ({' '.join(f'{value * 1000:.0f}' for value in values)})"


BENCH = Bench(
    (
        Goal(
            RECOVERY,
            "SIGKILL to all ranks training again, over a relaunch from a checkpoint one step old, 0.6 GB of state",
            "ratio",
            "<= 0.10",
            "<= 0.05",
        ),
    ),
    measure,
)

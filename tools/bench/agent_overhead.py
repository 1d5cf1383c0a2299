"""What the agent costs while nothing fails: the same script with and without it, a few steps of each in turn."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator, Set
from itertools import pairwise
from pathlib import Path

from tools.bench.agent_jobs import AgentJob, BareJob, Job, Model, Proof, children_of, load_note, need_memory, workplace
from tools.bench.registry import Bench, Goal, Reading

OVERHEAD = "agent.step_overhead_percent"
ROUNDS = 11
LEAST_STEP = 0.3
"""Seconds; the goal is for steps at least this long."""
MODEL = Model(depth=4, batch=384)
TINY = Model(width=64, depth=4)
BLOCK, TINY_BLOCK = 5, 200
"""Steps in a turn; the first is not counted, because it begins cold."""


PATIENT = "--heartbeat-limit=600"
"""Being stopped is no silence."""


class Turns:
    """Two jobs of the same script that never run at the same time; one is stopped while the other has its turn."""

    def __init__(self, agent: AgentJob, bare: BareJob) -> None:
        self.jobs: tuple[Job, Job] = (agent, bare)
        self._done = dict.fromkeys(self.jobs, 0)

    def begin(self) -> None:
        """Until both have come to the gate before their first step."""
        for job in self.jobs:
            job.wait(lambda job=job: len(job.events("gate", step=0)) == 2, "the gate")  # type: ignore[misc]
            _pause(job)

    def take(self, job: Job, steps: int) -> float:
        """Let a job do so many steps; the median seconds from commit to commit on rank 0."""
        _go_on(job)
        begun = self._done[job]
        self._done[job] += steps
        (job.steps / "gate").write_text(str(self._done[job]))
        job.wait(lambda: len(job.events("gate", step=self._done[job])) == 2, "the end of a turn", pause=0.05)
        _pause(job)
        commits = [event.at for event in job.events("commit", rank=0) if event.step >= begun]
        return statistics.median(later - earlier for earlier, later in pairwise(commits))


def _all_processes(job: Job) -> list[int]:
    """The launcher first, then the coordinator, then workers and spare."""
    return [pid for process in job.processes for pid in (process.pid, *children_of(process.pid))]


def _pause(job: Job) -> None:
    """SIGSTOP to all; the launcher before its workers, or it would see them frozen and replace them."""
    for pid in _all_processes(job):
        os.kill(pid, signal.SIGSTOP)


def _go_on(job: Job) -> None:
    for pid in reversed(_all_processes(job)):
        os.kill(pid, signal.SIGCONT)
    time.sleep(0.1)  # heartbeats that are due


def compare(
    folder: Path, model: Model, block: int, rounds: int, proof: Proof | None = None
) -> tuple[list[float], list[float]]:
    """Seconds of a step with the agent and without it, one figure of each in every round."""
    gates = [folder / "agent" / "steps" / "gate", folder / "bare" / "steps" / "gate"]
    with (
        AgentJob(folder / "agent", model, script=(f"--gate={gates[0]}",), options=(PATIENT,)) as agent,
        BareJob(folder / "bare", model, script=(f"--gate={gates[1]}",)) as bare,
    ):
        turns = Turns(agent, bare)
        turns.begin()
        for job in turns.jobs:
            turns.take(job, block)  # warm
        measured: dict[Job, list[float]] = {agent: [], bare: []}
        for count in range(rounds):
            for job in turns.jobs[:: 1 if count % 2 else -1]:
                measured[job].append(turns.take(job, block))
        assert not agent.reports("detected"), "a worker was replaced in the middle of the measurement"
        if proof is not None:
            # The same steps with and without the agent must give the same bits.
            for job in turns.jobs:
                _go_on(job)
                (job.steps / "gate").write_text(str(1_000_000))
                proof.add(job)
    return measured[agent], measured[bare]


def measure(
    _wanted: Set[str], rounds: int = ROUNDS, model: Model = MODEL, tiny: Model = TINY, tiny_block: int = TINY_BLOCK
) -> Iterator[Reading]:
    """A few steps with the agent, as many without, in turns."""
    need_memory(5 * model.resident_bytes)
    proof = Proof(model)
    load = load_note()
    with workplace() as folder:
        ours, bare = compare(folder / "long", model, BLOCK, rounds, proof)
        proved = proof.check(folder / "reference")
        small, small_bare = compare(folder / "tiny", tiny, tiny_block, rounds)
    step, tiny_step, tiny_bare = (statistics.median(values) for values in (bare, small, small_bare))
    yield Reading(
        OVERHEAD,
        [(own / other - 1) * 100 for own, other in zip(ours, bare, strict=True)],
        checks=(
            (f"a step takes {step * 1000:.0f} ms without the agent (>= 300)", step >= LEAST_STEP),
            (proved, True),
        ),
        notes=(
            f"{model.size} of state, 2 workers, 1 spare, median of {BLOCK - 1} steps in each turn; {load}",
            f"tiny steps, for information: {tiny_step * 1000:.2f} ms with the agent, {tiny_bare * 1000:.2f} without",
        ),
    )


BENCH = Bench(
    (Goal(OVERHEAD, "longer steps with the agent than without, steps of 300 ms and more", "%", "<= 2", "<= 1"),),
    measure,
)

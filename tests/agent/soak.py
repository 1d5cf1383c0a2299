"""Random faults over real runs: `python -m tests.agent.soak --faults 500 --seed 1`.

Each run trains by one strategy (DDP, HSDP or FSDP in turn) and suffers a few faults, drawn from a seed: kills and
SIGSTOPs of any rank at any point with a random delay, broken connections, kills of the coordinator; 40 % are followed
by a second fault during the recovery (the spare or the source dies in transfer, another rank dies, the coordinator
dies). A run must end exactly as an undisturbed one does, on every rank. Only where the last holder of a part of the
state dies too, it may stop instead, and must then say which part is gone.
"""

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.agent.launch import EXAMPLE, Outcome, last_step_reported, train

STEPS = 30
FAULTS_PER_RUN = 5
GAP = 4
"""Least number of steps between two faults, so that by chance no more holders of one part die at once than may."""
DOUBLE = 0.4
POINTS = ["draw", "step", "forward", "gate", "exchange", "doubt", "apply", "applied", "boundary"]
COORDINATOR_POINTS = ["fence", "quiesce", "plan", "planned", "sent", "all-ready", "resume", "resumed"]
PART_GONE = "part of the state is gone"


@dataclass(frozen=True)
class Strategy:
    """How a run trains."""

    name: str
    workers: int
    distance: int
    """From a rank to one that can die with it, since both parts of the state have other holders."""
    points: tuple[str, ...]
    script: Path = EXAMPLE
    arguments: tuple[str, ...] = ()

    @property
    def replicated(self) -> bool:
        """Every part of the state survives the loss of two ranks."""
        return self.name == "ddp"

    def train(self, folder: Path, *, faults: str = "", spares: int = 0) -> Outcome:
        return train(
            folder,
            faults=faults,
            workers=self.workers,
            spares=spares,
            steps=STEPS,
            script=self.script,
            arguments=self.arguments,
            options=("--quiesce-limit", "20", "--spare-limit", "30"),
            timeout=240,
        )


_SHARDED = ("allgather", "in_allgather", "reduce_scatter", "in_reduce_scatter")
_FSDP = EXAMPLE.with_name("text_fsdp.py")
STRATEGIES = (
    Strategy("ddp", 3, 1, (*POINTS, "backward", "reduce")),
    Strategy("hsdp", 4, 1, (*POINTS, *_SHARDED, "allreduce", "in_allreduce"), _FSDP, ("--replicas", "2")),
    Strategy("fsdp", 4, 2, (*POINTS, *_SHARDED, "copy"), _FSDP, ("--replicas", "1")),
)


@dataclass(frozen=True)
class Trial:
    """One run's script; the same seed gives the same one."""

    seed: int
    strategy: Strategy
    faults: tuple[str, ...] = field(default=())
    spares: int = 0
    may_stop: bool = False
    """The only holder of a part may die."""

    @classmethod
    def draw(cls, seed: int) -> "Trial":
        chance = random.Random(seed)
        strategy = STRATEGIES[seed % len(STRATEGIES)]
        faults: list[str] = []
        spares, may_stop = 0, False
        places = sorted(chance.sample(range(1, STEPS - (FAULTS_PER_RUN - 1) * (GAP - 1) + 1), FAULTS_PER_RUN))
        for step in (place + index * (GAP - 1) for index, place in enumerate(places)):
            rank = chance.randrange(strategy.workers)
            action = chance.choices(["kill", "stop", "break"], [6, 3, 1])[0]
            faults.append(_fault(chance, strategy, action, rank, step))
            spares += action != "break"
            if chance.random() < DOUBLE:
                second, cost = _second(chance, strategy, rank, step)
                faults.append(second)
                spares += cost
                if "serve" in second and not strategy.replicated:
                    may_stop = True
                    break
        return cls(seed, strategy, tuple(faults), spares, may_stop)

    def run(self, folder: Path) -> Outcome:
        return self.strategy.train(folder, faults=";".join(self.faults), spares=self.spares)


def _fault(chance: random.Random, strategy: Strategy, action: str, rank: int, step: int) -> str:
    fault = f"{action}:who=any,rank={rank},step={step},point={chance.choice(strategy.points)}"
    if chance.random() >= 0.5:
        return fault
    delay = chance.uniform(0.1, 30)
    # In the last steps a delay could reach beyond the end of training, where nothing is left to recover.
    return f"{fault},delay_ms={delay:.2f}" if step <= STEPS - GAP else fault


def _second(chance: random.Random, strategy: Strategy, rank: int, step: int) -> tuple[str, int]:
    """A fault during the recovery from the first one, and how many spares it may cost."""
    kind = chance.choice(["receive", "serve", "form", "ready", "rank", "coordinator"])
    if kind == "serve":
        # In this step only: elsewhere it could take the last replica, after which nothing can go on.
        return f"kill:who=any,step={step},point=serve", 1
    if kind in ("receive", "form", "ready"):
        return f"kill:who=spare,point={kind}", 1
    if kind == "rank":
        return _fault(chance, strategy, "kill", (rank + strategy.distance) % strategy.workers, step), 1
    return f"kill:who=coordinator,point={chance.choice(COORDINATOR_POINTS)},step={step}", 0


def verdict(trial: Trial, folder: Path, outcome: Outcome, reference: Outcome) -> str | None:
    """What is wrong with a run, if anything."""
    open_incidents = {report["incident_id"] for report in outcome.reports}
    open_incidents -= {report["incident_id"] for report in outcome.resolved()}
    if open_incidents:
        return f"incidents without an end: {open_incidents}"
    if trial.may_stop and outcome.status == 1 and PART_GONE in outcome.output:
        ends = [report["resolution"] for report in outcome.resolved()]
        return None if ends[-1] == "abandoned" else f"a run that stopped reports {ends}"
    if outcome.status != 0:
        return f"ended with status {outcome.status}"
    if outcome.parts != reference.parts:
        return "WRONG RESULT"
    if last_step_reported(folder)[-1:] != [STEPS]:
        return f"the end was reported at step {last_step_reported(folder)}"
    for report in outcome.resolved():
        progress = report["progress"]
        if report["resolution"] not in ("live_migration", "path_failover"):
            return f"an incident ended as {report['resolution']}"
        if progress["first_step_after"] not in (None, progress["last_committed_step"] + 1):
            return f"an incident reports progress {progress}"
    return None


class References:
    """What each strategy gives without faults; trained when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, Outcome] = {}

    def of(self, strategy: Strategy) -> Outcome:
        if strategy.name not in self._found:
            outcome = self._found[strategy.name] = strategy.train(self._folder / strategy.name)
            assert outcome.status == 0, outcome.output
        return self._found[strategy.name]


def soak(*, faults: int, seed: int, seconds: float = float("inf")) -> list[Trial]:
    """Run until `faults` faults were injected or the time is up. Returns the trials that failed."""
    started, injected, runs, failed = time.monotonic(), 0, 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        references = References(folder)
        while injected < faults and time.monotonic() - started < seconds:
            trial = Trial.draw(seed + runs)
            runs += 1
            reference = references.of(trial.strategy)
            try:
                outcome = trial.run(folder / str(trial.seed))
                wrong = verdict(trial, folder / str(trial.seed), outcome, reference)
                said = wrong or ("exact" if outcome.status == 0 else "stopped, as it must")
                output = outcome.output
            except AssertionError as error:
                wrong = said = "HANG"
                output = str(error)
            fired = len(list((folder / str(trial.seed) / "state").glob("fault-*")))
            injected += fired
            print(f"seed {trial.seed} ({trial.strategy.name}): {fired} faults, {said}", flush=True)
            if wrong:
                failed.append(trial)
                print(f"  script: {';'.join(trial.faults)}\n{output}", flush=True)
    print(f"{runs} runs, {injected} faults, {len(failed)} failed: {[trial.seed for trial in failed]}")
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    sys.exit(1 if soak(faults=options.faults, seed=options.seed, seconds=options.seconds) else 0)

"""Random faults over real runs: `python -m tests.agent.soak --faults 500 --seed 1`.

Each run suffers a few faults, drawn from a seed: kills and SIGSTOPs of any rank at any point with a random delay,
broken connections, kills of the coordinator; 40 % are followed by a second fault during the recovery (the spare or the
source dies in transfer, another rank dies, the coordinator dies). A run must end exactly as an undisturbed one does.
"""

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.agent.launch import Outcome, train

WORKERS = 3
STEPS = 30
FAULTS_PER_RUN = 5
DOUBLE = 0.4
POINTS = ["draw", "step", "forward", "backward", "reduce", "gate", "exchange", "doubt", "apply", "applied", "boundary"]
COORDINATOR_POINTS = ["fence", "quiesce", "plan", "planned", "sent", "all-ready", "resume", "resumed"]


@dataclass(frozen=True)
class Trial:
    """One run's script; the same seed gives the same one."""

    seed: int
    faults: tuple[str, ...]
    spares: int

    @classmethod
    def draw(cls, seed: int) -> "Trial":
        chance = random.Random(seed)
        faults: list[str] = []
        spares = 0
        steps = sorted(chance.sample(range(1, STEPS + 1), FAULTS_PER_RUN))
        for step in steps:
            rank = chance.randrange(WORKERS)
            action = chance.choices(["kill", "stop", "break"], [6, 3, 1])[0]
            faults.append(cls._fault(chance, action, rank, step))
            spares += action != "break"
            if chance.random() < DOUBLE:
                second, cost = cls._second(chance, rank, step)
                faults.append(second)
                spares += cost
        return cls(seed, tuple(faults), spares)

    @staticmethod
    def _fault(chance: random.Random, action: str, rank: int, step: int) -> str:
        fault = f"{action}:who=any,rank={rank},step={step},point={chance.choice(POINTS)}"
        return f"{fault},delay_ms={chance.uniform(0.1, 30):.2f}" if chance.random() < 0.5 else fault

    @classmethod
    def _second(cls, chance: random.Random, rank: int, step: int) -> tuple[str, int]:
        """A fault during the recovery from the first one, and how many spares it may cost."""
        kind = chance.choice(["receive", "serve", "form", "ready", "rank", "coordinator"])
        if kind == "receive":
            return "kill:who=spare,point=receive", 1
        if kind == "serve":
            return "kill:who=any,point=serve", 1
        if kind in ("form", "ready"):
            # The first epoch has these points too; only a later one is meant.
            return f"kill:who=spare,point={kind}", 1
        if kind == "rank":
            return cls._fault(chance, "kill", (rank + 1) % WORKERS, step), 1
        return f"kill:who=coordinator,point={chance.choice(COORDINATOR_POINTS)},step={step}", 0

    def run(self, folder: Path) -> Outcome:
        return train(
            folder,
            faults=";".join(self.faults),
            workers=WORKERS,
            spares=self.spares,
            steps=STEPS,
            options=("--quiesce-limit", "20", "--spare-limit", "30"),
            timeout=240,
        )


def verdict(outcome: Outcome, reference: Outcome) -> str | None:
    """What is wrong with a run, if anything."""
    if outcome.status != 0:
        return f"ended with status {outcome.status}"
    if outcome.result != reference.result:
        return "WRONG RESULT"
    for report in outcome.resolved():
        progress = report["progress"]
        if report["resolution"] not in ("live_migration", "path_failover"):
            return f"an incident ended as {report['resolution']}"
        if progress["first_step_after"] not in (None, progress["last_committed_step"] + 1):
            return f"an incident reports progress {progress}"
    open_incidents = {report["incident_id"] for report in outcome.reports}
    open_incidents -= {report["incident_id"] for report in outcome.resolved()}
    return f"incidents without an end: {open_incidents}" if open_incidents else None


def soak(*, faults: int, seed: int, seconds: float = float("inf")) -> list[Trial]:
    """Run until `faults` faults were injected or the time is up. Returns the trials that failed."""
    started, injected, runs, failed = time.monotonic(), 0, 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = train(folder / "undisturbed", workers=WORKERS, spares=0, steps=STEPS, timeout=240)
        assert reference.status == 0, reference.output
        while injected < faults and time.monotonic() - started < seconds:
            trial = Trial.draw(seed + runs)
            runs += 1
            try:
                outcome = trial.run(folder / str(trial.seed))
                wrong = verdict(outcome, reference)
                output = outcome.output
            except AssertionError as error:
                wrong, output = "HANG", str(error)
            fired = len(list((folder / str(trial.seed) / "state").glob("fault-*")))
            injected += fired
            print(f"seed {trial.seed}: {fired} faults, {wrong or 'exact'}", flush=True)
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

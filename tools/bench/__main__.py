"""Run benchmarks, print a table and write build/bench.json.

    .venv/bin/python -m tools.bench [--only agent|service|KEY,...] [--list]

The exit status is 0 even where a goal is missed; it is 1 where a benchmark failed, 2 for an unknown key.
Without --only the file is made anew, with it the other keys are kept. A benchmark that cannot run says why and leaves
no figure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools.bench.registry import Bench, CannotRun, Goal, Reading
from tools.services import end_on_signals

RESULTS = Path("build") / "bench.json"
SUITES = {"agent": "tools.bench.agent", "service": "tools.bench.service"}  # each module lists its BENCHES


@dataclass
class Outcome:
    """What one run of the benchmarks gave, by key."""

    readings: dict[str, Reading] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    failed: bool = False


def benches(suite: str) -> tuple[Bench, ...]:
    if find_spec(SUITES[suite]) is None:
        return ()
    registered: tuple[Bench, ...] = import_module(SUITES[suite]).BENCHES
    return registered


def selected(only: str, everything: dict[str, Goal]) -> set[str]:
    """The keys that `--only` names; ValueError with the first that is unknown."""
    wanted = set()
    for word in filter(None, only.replace(" ", "").split(",")):
        keys = {key for key in everything if key == word or key.partition(".")[0] == word}
        if not keys:
            raise ValueError(word)
        wanted |= keys
    return wanted or set(everything)


def run(suite: Iterable[Bench], wanted: set[str], outcome: Outcome) -> Iterator[Reading]:
    """Measures what is wanted; one benchmark that fails does not stop the others."""
    for bench in suite:
        keys = wanted & {goal.key for goal in bench.goals}
        if not keys:
            continue
        print(f"── {', '.join(sorted(keys))} (load average {load()})", flush=True)
        began = time.monotonic()
        try:
            for reading in bench.measure(keys):
                outcome.readings[reading.key] = reading
                yield reading
        except CannotRun as reason:
            outcome.reasons |= dict.fromkeys(keys - outcome.readings.keys(), str(reason))
        except Exception as error:
            traceback.print_exc()
            outcome.failed = True
            outcome.reasons |= dict.fromkeys(keys - outcome.readings.keys(), f"failed: {error}")
        print(f"   took {time.monotonic() - began:.0f} s", flush=True)


def load() -> str:
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def entry(reading: Reading, goal: Goal) -> dict[str, Any]:
    """A key's object in build/bench.json."""
    return {
        "value": rounded(reading.value),
        "unit": goal.unit,
        "goal": goal.goal,
        "runs": len(reading.values),
        "spread": [rounded(min(reading.values)), rounded(max(reading.values))],
    }


def rounded(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")


def table(goals: Iterable[Goal], outcome: Outcome) -> Iterator[str]:
    """One line per key, then the conditions and notes of those that were measured."""
    yield f"{'key':42} {'median':>10} {'unit':12} {'goal':>12} {'stretch':>10}  {'':8} runs: lowest to highest"
    for goal in goals:
        reading = outcome.readings.get(goal.key)
        if reading is None:
            reason = outcome.reasons[goal.key]
            yield f"{goal.key:42} {'':10} {'':12} {goal.goal:>12} {goal.stretch:>10}  not run: {reason}"
            continue
        low, high = min(reading.values), max(reading.values)
        yield (
            f"{goal.key:42} {rounded(reading.value):10g} {goal.unit:12} {goal.goal:>12} {goal.stretch:>10}  "
            f"{reading.verdict(goal):8} {len(reading.values)}: {rounded(low):g} to {rounded(high):g}"
        )
        for text, held in reading.checks:
            yield f"    {'holds' if held else 'FAILS'}: {text}"
        for note in reading.notes:
            yield f"    {note}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="agent|service|KEY,...", help="suites or keys; all by default")
    parser.add_argument("--list", action="store_true", help="print the keys with their goals and measure nothing")
    options = parser.parse_args(arguments)
    end_on_signals()
    suites = [benches(suite) for suite in SUITES]
    everything = {goal.key: goal for suite in suites for bench in suite for goal in bench.goals}
    if options.list:
        for goal in everything.values():
            print(f"{goal.key:42} {goal.goal:>12} {goal.unit:12} {goal.counts}")
        return 0
    try:
        wanted = selected(options.only, everything)
    except ValueError as unknown:
        parser.error(f"there is no key or suite {unknown}; known: {', '.join([*SUITES, *everything])}")

    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, load average {load()} at the start\n", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    kept = json.loads(RESULTS.read_text()) if options.only and RESULTS.exists() else {}
    results = {key: value for key, value in kept.items() if key not in wanted}
    outcome = Outcome()
    for suite in suites:
        for reading in run(suite, wanted, outcome):
            results[reading.key] = entry(reading, everything[reading.key])
            RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")

    print()
    for line in table((goal for key, goal in everything.items() if key in wanted), outcome):
        print(line)
    print(f"\nload average {load()} at the end; figures in {RESULTS}")
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a benchmark is: the keys that it measures with their goals, and the function that measures them."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

COMPARE: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


class CannotRun(Exception):
    """A benchmark cannot run here. The message says what is missing; its keys are then absent, never invented."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One key of build/bench.json. `goal` and `stretch` are texts such as `<= 0.10`; `counts` says of what."""

    key: str
    counts: str
    unit: str
    goal: str
    stretch: str = ""


def reached(value: float, goal: str) -> bool:
    """Whether a figure satisfies a goal such as `>= 50000`."""
    relation, number = goal.split()
    return COMPARE[relation](value, float(number))


@dataclass(frozen=True, slots=True)
class Reading:
    """The figure of each run for one key. `checks` are further conditions on the goal, `notes` are for information."""

    key: str
    values: list[float]
    checks: tuple[tuple[str, bool], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    def verdict(self, goal: Goal) -> str:
        """`missed`, `met` or, if there is a stretch goal and it is reached, `stretch`."""
        if not reached(self.value, goal.goal) or not all(held for _, held in self.checks):
            return "missed"
        return "stretch" if goal.stretch and reached(self.value, goal.stretch) else "met"


@dataclass(frozen=True, slots=True)
class Bench:
    """Keys that share one set-up. `measure` gets those that are wanted and yields a reading for each."""

    goals: tuple[Goal, ...]
    measure: Callable[[Set[str]], Iterator[Reading]]

"""Where the GPU-time of a run went: classes that always add up to its total. Pure; GPU-milliseconds.

The classes are those of Google's goodput library, with `migration_pause` and `step_redo` of our own. That library sees
a disruption only when a step number repeats, so it cannot see a live migration.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# A term of an incident's waste and the class in which it is badput.
CLASS_OF_TERM = {
    "recompute": "wasted_progress",
    "detection": "infrastructure_recovery",
    "queue": "infrastructure_recovery",
    "restart": "start_up",
    "migration": "migration_pause",
    "step_redo": "step_redo",
    "fail_slow": "fail_slow",
}
CLASSES = (
    "infrastructure_recovery",
    "start_up",
    "wasted_progress",
    "migration_pause",
    "step_redo",
    "fail_slow",
    "checkpoint_save",  # no term tells of it yet; a breakdown without it would claim that it takes no time
)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """`productive` is what remains of the total; `excess` is waste beyond the total, which clock skew can make.

    total + excess = productive + the sum of the classes.
    """

    total: int
    productive: int
    badput: dict[str, int]
    excess: int

    @property
    def goodput(self) -> float | None:
        """The productive share; None for a run without any time."""
        return self.productive / self.total if self.total > 0 else None


def breakdowns_sum(parts: Iterable[Breakdown]) -> Breakdown:
    """The breakdown of several runs together; nothing at all of none."""
    every = list(parts)
    return Breakdown(
        total=sum(one.total for one in every),
        productive=sum(one.productive for one in every),
        badput={name: sum(one.badput[name] for one in every) for name in CLASSES},
        excess=sum(one.excess for one in every),
    )


def breakdown(*, total: int, terms: Mapping[str, int]) -> Breakdown:
    """Splits a run's GPU-time by the summed terms of its incidents. Time of pre-empted jobs is not this run's.

    Raises ValueError for a negative total or term.
    """
    if total < 0 or any(value < 0 for value in terms.values()):
        raise ValueError("GPU-time is not negative.")
    badput = dict.fromkeys(CLASSES, 0)
    for term, value in terms.items():
        if term != "preempted":
            badput[CLASS_OF_TERM[term]] += value
    lost = sum(badput.values())
    return Breakdown(total, max(0, total - lost), badput, max(0, lost - total))

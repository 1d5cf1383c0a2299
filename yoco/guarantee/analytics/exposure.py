"""How long each run was watched: from an agent's first sign of life to its last, the boots of one run merged.

A run that never ended is watched up to its last heartbeat, so that silence adds no exposure.
"""

import uuid
from bisect import bisect_left
from dataclasses import dataclass

from django.db.models import Exists, OuterRef

from yoco.guarantee.analytics.scope import Scope, Span, epoch_ms
from yoco.incidents.models import AgentBoot, Run
from yoco.waste.rates import GPUS_PER_NODE, nodes_of


@dataclass(frozen=True, slots=True)
class Watched:
    """A run and when it was watched within the year, in milliseconds since 1970. `gpus` may be unknown or zero."""

    id: uuid.UUID
    contract_id: uuid.UUID
    name: str
    gpus: int | None
    gpus_per_node: int | None
    spans: list[Span]

    @property
    def watched_ms(self) -> int:
        return sum(end - start for start, end in self.spans)

    @property
    def nodes(self) -> int | None:
        """Nodes of the run; None where its GPUs are not known."""
        return nodes_of(self.gpus, self.gpus_per_node or GPUS_PER_NODE) if self.gpus else None

    @property
    def gpu_ms(self) -> int:
        return self.watched_ms * (self.gpus or 0)

    def within(self, start_ms: int, end_ms: int) -> int:
        """Watched milliseconds between two instants."""
        first = bisect_left(self.spans, start_ms, key=lambda span: span[1])
        found = 0
        for start, end in self.spans[first:]:
            if start >= end_ms:
                break
            found += max(0, min(end, end_ms) - max(start, start_ms))
        return found


def runs_watched(scope: Scope) -> list[Watched]:
    """The runs that an agent watched in these years, the largest GPU-time first. Two queries; no incident is read."""
    windows = scope.windows_ms()
    first_start = min(year.starts_at for year in scope.years)
    boots = AgentBoot.objects.filter(
        contract__in=list(windows), last_seen_at__gt=first_start, first_seen_at__lt=scope.until
    ).exclude(run_id="")
    spans: dict[tuple[uuid.UUID, str], list[Span]] = {}
    rows = boots.values_list("contract_id", "run_id", "first_seen_at", "last_seen_at", "run_ended_at")
    for contract_id, run_id, first, last, ended in rows:
        low, high = windows[contract_id]
        end = min(epoch_ms(min(last, ended) if ended else last), high)
        start = max(epoch_ms(first), low)
        # A clock that ran backwards gives no time.
        if end > start:
            spans.setdefault((contract_id, run_id), []).append((start, end))
    told = boots.filter(contract=OuterRef("contract"), run_id=OuterRef("run_id"))
    runs = Run.objects.filter(Exists(told), contract__in=list(windows)).only(
        "contract_id", "run_id", "name", "gpus", "gpus_per_node"
    )
    watched = [
        Watched(
            run.pk, run.contract_id, str(run), run.gpus, run.gpus_per_node, merged(spans[run.contract_id, run.run_id])
        )
        for run in runs
        if (run.contract_id, run.run_id) in spans
    ]
    return sorted(watched, key=lambda run: (-run.gpu_ms, run.name, run.id))


def merged(spans: list[Span]) -> list[Span]:
    """The union of these spans, in order."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def node_weeks(runs: list[Watched], scope: Scope) -> list[int]:
    """Node-milliseconds of each week; runs whose GPUs are not known add none."""
    return [
        sum(run.within(week.start_ms, week.end_ms) * run.nodes for run in runs if run.nodes) for week in scope.weeks
    ]

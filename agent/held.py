"""What a worker holds of the run's state, as its threads share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agent.commit import CommitPoint
from agent.journal import Journal
from agent.redundancy import ShardCopy
from agent.state import Registry
from agent.tap import Tap


@dataclass
class Held:
    """The state, and of which step and epoch it is."""

    registry: Registry
    journal: Journal
    commit: CommitPoint
    tap: Tap
    epoch: int = 0
    """Of the latest plan."""
    copy: ShardCopy | None = None
    """Of the rank before this one, where the strategy needs it."""
    promoted: bool = False
    """State was received since the training thread last looked."""
    on_rank: Callable[[int], None] = field(default=lambda rank: None)
    """Called before state for a rank is received, on the thread that receives it."""

    def is_current(self, epoch: int, version: int) -> bool:
        """Whether this is the state of `version`, at rest in `epoch`."""
        return epoch == self.epoch and self.commit.stopped and self.commit.version == version

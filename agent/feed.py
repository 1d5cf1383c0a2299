"""Batches for one logical rank: drawn once, kept until their step commits, findable by another process.

The data position belongs to the logical rank. Where the data has `state_dict` (torchdata's
`StatefulDataLoader`), that is the position; otherwise it is how many batches were drawn since the RNG state
in which the iterator was made, and a spare draws and drops as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from agent import journal

DataSource = Callable[[int, int], Iterable[Any]] | Iterable[Any]
"""An iterable of batches, or a function of (logical rank, world size) that makes one."""


class Feed:
    """The batches of the current step and the way to the next ones."""

    def __init__(self, source: DataSource, generators: list[journal.Generator]) -> None:
        self._source = source
        self._generators = generators
        self.data: Any = None
        """Of the logical rank; None while closed."""
        self._batches: Iterator[Any] | None = None
        self._pass = 0
        self._drawn = 0
        self._pass_rng: dict[str, Any] = {}
        self._kept: list[tuple[Any, dict[str, Any]]] = []
        self._cursor = 0
        self.step_rng: dict[str, Any] = {}
        """RNG state in which the current step begins, before its first batch is drawn."""

    def open(self, rank: int, world_size: int) -> None:
        """Make the data of a logical rank, at its beginning."""
        self.data = self._source(rank, world_size) if callable(self._source) else self._source
        self._batches, self._pass, self._drawn = None, 0, 0
        self._kept, self._cursor = [], 0

    def close(self) -> None:
        """Forget the open data (worker processes of a loader end with it)."""
        self.data = self._batches = None
        self._kept, self._cursor = [], 0

    def next(self) -> Any:
        """The next batch of the step. Restores the RNG that belongs before or after it."""
        if self._cursor < len(self._kept):
            batch, rng = self._kept[self._cursor]
            journal.restore_rng(rng, self._generators)
        else:
            if not self._kept:
                journal.restore_rng(self.step_rng, self._generators)
            batch = self._draw()
            self._kept.append((batch, journal.capture_rng(self._generators)))
        self._cursor += 1
        return batch

    def _draw(self) -> Any:
        for _ in range(2):
            if self._batches is None:
                self._begin_pass()
            assert self._batches is not None
            try:
                batch = next(self._batches)
            except StopIteration:
                self._batches, self._pass, self._drawn = None, self._pass + 1, 0
                continue
            self._drawn += 1
            return batch
        raise ValueError("the data given to Agent.steps() yields no batch")

    def _begin_pass(self) -> None:
        sampler = getattr(self.data, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self._pass)
        self._pass_rng = journal.capture_rng(self._generators)
        self._batches = iter(self.data)

    @property
    def handed_out(self) -> int:
        """Batches that the step has been given."""
        return self._cursor

    def rewind(self) -> None:
        """The step will run again: hand out its batches again."""
        self._cursor = 0

    def commit(self, rng: dict[str, Any]) -> None:
        """The step committed; the next one begins in `rng`."""
        self._kept, self._cursor = [], 0
        self.step_rng = rng

    def samples(self) -> int:
        """Samples in the batches of the current step."""
        return sum(count_samples(batch) for batch, _ in self._kept)

    def position(self) -> dict[str, Any]:
        """Where the data stands after the batches drawn so far."""
        found: dict[str, Any] = {"pass": self._pass, "drawn": self._drawn, "rng": self._pass_rng}
        if hasattr(self.data, "state_dict"):
            found["state"] = self.data.state_dict()
        return found

    def seek(self, position: dict[str, Any]) -> None:
        """Go to a position of the same logical rank, reached in another process."""
        self._kept, self._cursor = [], 0
        self._batches, self._pass, self._drawn = None, position["pass"], 0
        loads = "state" in position and hasattr(self.data, "load_state_dict")
        if loads:
            self.data.load_state_dict(position["state"])
        if position["drawn"]:
            journal.restore_rng(position["rng"], self._generators)
            self._begin_pass()
            assert self._batches is not None
            for _ in range(0 if loads else position["drawn"]):
                next(self._batches)
        self._drawn, self._pass_rng = position["drawn"], position["rng"]


def count_samples(batch: Any) -> int:
    """The batch dimension of the first tensor in a batch; its length if it has no tensor."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    if isinstance(batch, dict):
        return count_samples(next(iter(batch.values()))) if batch else 0
    if isinstance(batch, (list, tuple)):
        return count_samples(batch[0]) if batch and isinstance(batch[0], torch.Tensor) else len(batch)
    return 1

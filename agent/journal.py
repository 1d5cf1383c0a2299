"""The rank-private state of all ranks, which every worker holds for the start of the next step.

RNG states, data position, samples consumed and logged values belong to the logical rank, and die with its
process. So they travel in the last collective of each step: if any survivor committed the step, every
survivor knows how each rank begins the next one. About 10 KiB per rank and step.
"""

from __future__ import annotations

import array
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from agent import codec
from agent.group import LiveGroup

LOGGED_VALUES = 8
"""How many scalars `Agent.log` carries per step and rank."""

_HEADER = struct.Struct(f"<Iqi{LOGGED_VALUES}d")


def capture_rng(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """The state of every random number generator that a step can draw from."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, array.array("I", words).tobytes(), gauss],
        "numpy": np.random.get_state(legacy=False),
        "generators": [generator.get_state() for generator in generators],
    }
    if torch.cuda.is_available():  # untested: no GPU at hand
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_rng(state: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    """The inverse of `capture_rng`."""
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(array.array("I", words)), gauss))
    np.random.set_state(state["numpy"])
    for generator, saved in zip(generators, state["generators"], strict=True):
        generator.set_state(saved)
    if "cuda" in state:  # untested: no GPU at hand
        torch.cuda.set_rng_state(state["cuda"])


@dataclass(frozen=True)
class Entry:
    """One rank's private state at the start of a step."""

    samples: int
    """Samples that the rank consumed in committed steps."""
    logged: tuple[float, ...]
    """What the rank logged in the step just committed."""
    private: bytes
    """RNG, data position and user state, encoded by `codec`."""

    def to_bytes(self) -> bytes:
        values = [*self.logged, *([0.0] * (LOGGED_VALUES - len(self.logged)))]
        return _HEADER.pack(len(self.private), self.samples, len(self.logged), *values) + self.private

    @classmethod
    def from_bytes(cls, data: bytes) -> Entry:
        size, samples, count, *values = _HEADER.unpack_from(data)
        return cls(samples, tuple(values[:count]), data[_HEADER.size : _HEADER.size + size])


class Journal:
    """Entries of all ranks for the start of step `version + 1`, identical on every worker."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ranks: list[int] = []
        """The ranks that take part, in the order of the group; the others' entries stay as they were."""
        self._gathered: list[Entry] = []

    def exchange(self, group: LiveGroup, mine: Entry) -> bool:
        """All-gather the entries for the next version; they count from `advance` on.

        Returns whether the exchange succeeded here. The slot's size follows from the last entries, which are
        the same everywhere; an entry that outgrew it makes everybody repeat with a larger slot.
        """
        data = mine.to_bytes()
        slot = _slot(max((len(entry.private) for entry in self.entries), default=0))
        while True:
            parts = self._gather(group, data, slot)
            if group.failed:
                return False
            needed = _HEADER.size + max(_HEADER.unpack_from(part)[0] for part in parts)
            if needed <= slot:
                self._gathered = [replace(entry, logged=()) for entry in self.entries]
                for rank, part in zip(self.ranks, parts, strict=True):
                    self._gathered[rank] = Entry.from_bytes(part)
                return True
            slot = _slot(needed)

    @staticmethod
    def _gather(group: LiveGroup, data: bytes, slot: int) -> list[bytes]:
        mine = torch.zeros(slot, dtype=torch.uint8)
        part = data[:slot]
        mine[: len(part)] = torch.frombuffer(bytearray(part), dtype=torch.uint8)
        slots = [torch.empty(slot, dtype=torch.uint8) for _ in range(group.size())]
        group.allgather([slots], [mine]).wait()
        return [piece.numpy().tobytes() for piece in slots]

    def advance(self) -> None:
        """The step committed: the gathered entries are now the journal."""
        self.entries, self._gathered = self._gathered, []

    def receive(self, entries: list[Entry], committed: bool) -> None:
        """Take the entries of a peer: as the journal, or (`committed`) for the step about to be applied."""
        if committed:
            self._gathered = entries
        else:
            self.entries = entries

    @property
    def samples(self) -> int:
        """Samples consumed by all ranks in committed steps."""
        return sum(entry.samples for entry in self.entries)

    def to_bytes(self) -> bytes:
        return codec.encode([entry.to_bytes() for entry in self.entries])

    @staticmethod
    def parse(data: bytes | memoryview) -> list[Entry]:
        return [Entry.from_bytes(item) for item in codec.decode(data)]


def _slot(size: int) -> int:
    return -(-(size + _HEADER.size + 1024) // 4096) * 4096

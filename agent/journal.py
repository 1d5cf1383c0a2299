"""The rank-private state of all ranks, which every worker holds for the start of the next step.

RNG states, data position, samples consumed and logged values belong to the logical rank, and die with its
process. So they travel in the last collective of each step: if any survivor committed the step, every
survivor knows how each rank begins the next one. About 10 KiB per rank and step.
"""

from __future__ import annotations

import array
import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from agent import codec
from agent.group import LiveGroup

LOGGED_VALUES = 8
"""How many scalars `Agent.log` carries per step and rank."""

_HEADER = struct.Struct(f"<IqBi{LOGGED_VALUES}d")


Generator = torch.Generator | np.random.Generator | random.Random
"""A source of random numbers that a script made for itself."""


def capture_rng(generators: Sequence[Generator] = ()) -> dict[str, Any]:
    """The state of every random number generator that a step can draw from."""
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": _python_state(random.getstate()),
        "numpy": np.random.get_state(legacy=False),
        "generators": [_generator_state(generator) for generator in generators],
    }
    if torch.accelerator.is_available():  # untested: no GPU at hand
        module = torch.get_device_module(torch.accelerator.current_accelerator())
        state["devices"] = [module.get_rng_state(device) for device in _devices()]
    return state


def restore_rng(state: dict[str, Any], generators: Sequence[Generator] = ()) -> None:
    """The inverse of `capture_rng`."""
    torch.set_rng_state(state["torch"])
    random.setstate(_from_python_state(state["python"]))
    np.random.set_state(state["numpy"])
    for generator, saved in zip(generators, state["generators"], strict=True):
        _set_generator_state(generator, saved)
    if "devices" in state:  # untested: no GPU at hand
        module = torch.get_device_module(torch.accelerator.current_accelerator())
        for device, saved in zip(_devices(), state["devices"], strict=True):
            module.set_rng_state(saved, device)


_used_devices: list[int] = []


def use_devices(devices: Iterable[torch.device]) -> None:
    """The model's devices: a step may draw on each of them. Their order is that of the model on every worker, whose
    numbers for them may differ."""
    indices = [device.index for device in devices if device.type != "cpu" and device.index is not None]
    _used_devices[:] = dict.fromkeys([*_used_devices, *indices])


def _devices() -> list[int]:
    return list(dict.fromkeys([torch.accelerator.current_device_index(), *_used_devices]))


def _python_state(state: Any) -> list[Any]:
    version, words, gauss = state
    return [version, array.array("I", words).tobytes(), gauss]


def _from_python_state(state: list[Any]) -> tuple[Any, ...]:
    version, words, gauss = state
    return version, tuple(array.array("I", words)), gauss


def _generator_state(generator: Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return _python_state(generator.getstate())
    return generator.bit_generator.state


def _set_generator_state(generator: Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(_from_python_state(state))
    else:
        generator.bit_generator.state = state


@dataclass(frozen=True)
class Entry:
    """One rank's private state at the start of a step."""

    samples: int
    """Samples that the rank consumed in committed steps."""
    logged: tuple[float, ...]
    """What the rank logged in the step just committed."""
    private: bytes
    """RNG, data position and user state, encoded by `codec`."""
    findings: int = 0
    """What was not finite: see `agent.numerics`."""

    def to_bytes(self) -> bytes:
        values = [*self.logged, *([0.0] * (LOGGED_VALUES - len(self.logged)))]
        return _HEADER.pack(len(self.private), self.samples, self.findings, len(self.logged), *values) + self.private

    @classmethod
    def from_bytes(cls, data: bytes) -> Entry:
        size, samples, findings, count, *values = _HEADER.unpack_from(data)
        return cls(samples, tuple(values[:count]), data[_HEADER.size : _HEADER.size + size], findings)


class Journal:
    """Entries of all ranks for the start of step `version + 1`, identical on every worker."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ranks: list[int] = []
        """The ranks that take part, in the order of the group; the others' entries stay as they were."""
        self.gathered: list[Entry] = []
        """The entries for the next version, not in force yet."""

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
                self.gathered = [replace(entry, logged=(), findings=0) for entry in self.entries]
                for rank, part in zip(self.ranks, parts, strict=True):
                    self.gathered[rank] = Entry.from_bytes(part)
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
        self.entries, self.gathered = self.gathered, []

    def receive(self, entries: list[Entry], committed: bool) -> None:
        """Take the entries of a peer: as the journal, or (`committed`) for the step about to be applied."""
        if committed:
            self.gathered = entries
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

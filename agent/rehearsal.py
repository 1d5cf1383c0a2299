"""The loop's body, run a few times before the first step without communication, and undone.

It settles DDP's gradient buckets as they will be, touches the optimizer's memory, warms kernels, and shows what the
body changes: a spare rehearses like a worker, which makes it ready to take over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from agent import faults, journal
from agent.forgotten import Inspection, carried_gradients, check_complete
from agent.gate import Gate, ScriptError
from agent.private import Private
from agent.scaling import forget_step
from agent.sharding import check_moments, forget_iteration
from agent.state import Registry

REHEARSALS = 2
"""DDP settles its buckets in the second iteration; a spare must have the same ones as its peers."""


class Rehearsal:
    """Runs the body, and knows how things were before."""

    def __init__(self, registry: Registry, private: Private, gate: Gate) -> None:
        self._registry, self._private, self._gate = registry, private, gate
        self.initial: dict[str, Any] = {}
        """The rank's private state before the first step."""
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._fresh: list[bool] = []

    def run(self, rank: int, world_size: int) -> Iterator[tuple[int, Any]]:
        """Yield batches to the body as `Agent.steps` does; `rank` is negative in a spare. Raises ScriptError."""
        registry, gate, private = self._registry, self._gate, self._private
        if not registry.optimizers or not registry.models:
            raise ScriptError("call agent.wrap(model) and agent.register(optimizer) before agent.steps()")
        self._forget_iteration()
        registry.settle()
        check_complete(registry)
        feed = private.feed
        feed.open(max(rank, 0), world_size)
        self.initial = private.capture()
        rng = feed.step_rng = self.initial["rng"]
        registry.snapshot()
        self._saved = [(leaf.tensor, leaf.tensor.clone()) for leaf in registry.leaves()]
        self._fresh = [not optimizer.state for optimizer in registry.optimizers]
        inspection: Inspection | None = None
        micro_batches = 0
        for number in range(REHEARSALS):
            self._begin()
            while gate.decision is None:
                yield 0, feed.next()
            self._check_objects()
            if number == 0:
                inspection = Inspection(registry, private)
                carried_gradients(registry)
                micro_batches = feed.handed_out
                if micro_batches > 1:
                    self._begin()
                    yield 0, feed.next()  # broken off here, as the loss of another worker does
                    self._break_off()
        assert inspection is not None
        if feed.handed_out != micro_batches:
            raise ScriptError(
                f"a step that is broken off and begun again takes {feed.handed_out} micro-batches instead of "
                f"{micro_batches}: the script counts them itself; decide by agent.micro_batch, which is 0 for the first"
            )
        inspection.conclude(aloud=rank == 0)
        check_moments(registry.optimizers)
        faults.at("rehearsal")
        self._undo()
        if rank >= 0:
            self.clear_moments()
        private.take_initial(self.initial, rank, world_size)
        journal.restore_rng(rng, private.generators)
        gate.rehearsing = False

    def _check_objects(self) -> None:
        """What follows the gate is lost with a worker that dies after it."""
        for name, encoded in self._private.encode_objects().items():
            if encoded != self._gate.objects_at_gate[name]:
                raise ScriptError(
                    f"{name}, registered as private, changes after optimizer.step(), where its state has already been "
                    "shared; change it before, or register it without `private` if it is equal on all ranks"
                )

    def _begin(self) -> None:
        self._gate.begin()
        self._gate.buckets = []
        self._private.feed.rewind()

    def _break_off(self) -> None:
        for optimizer in self._registry.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for thing in self._registry.replicated.values():
            forget_step(thing)
        self._forget_iteration()

    @torch.no_grad()
    def _undo(self) -> None:
        """Bring the state back; an optimizer's memory stays, warm."""
        for live, saved in self._saved:
            live.copy_(saved)
        self._saved.clear()
        self._registry.restore()
        self._forget_iteration()

    def clear_moments(self) -> None:
        """Back to an optimizer that has not stepped yet, exactly as it was made."""
        for optimizer, fresh in zip(self._registry.optimizers, self._fresh, strict=True):
            if fresh:
                optimizer.state.clear()

    def _forget_iteration(self) -> None:
        for model in self._registry.models:
            forget_iteration(model)

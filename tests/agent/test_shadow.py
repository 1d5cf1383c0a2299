"""A spare follows a worker by replaying its gradients: in one process, over a real connection."""

import copy
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from agent.shadow import ShadowCopy, Source
from agent.state import Registry
from agent.tap import ALGORITHM, Tap
from agent.transport import Moved
from agent.wire import Link, admit

SECRET = b"sixteen or more characters"
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.1),
    "radam": lambda parameters: torch.optim.RAdam(parameters, lr=0.1),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, momentum=0.5, centered=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.1),
}


class Side:
    """A model with its optimizer, as one process holds it."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        self.model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 8), nn.Linear(8, 8))
        self.model[3].weight.requires_grad_(False)  # frozen, and without moments
        # Two groups, so that a scheduler could treat them differently.
        groups = [
            {"params": self.model[0].parameters()},
            {"params": [*self.model[1].parameters(), *self.model[2].parameters(), self.model[3].bias], "lr": 0.01},
        ]
        self.optimizer = make(groups)
        self.registry = Registry()
        self.registry.models.append(self.model)
        self.registry.optimizers.append(self.optimizer)
        self.registry.settle()
        self.tap = Tap(self.registry)
        self.version = 0

    def step(self) -> None:
        """One step as `Agent` makes it, with a learning rate that changes."""
        loss = self.model(torch.randn(5, 16)).square().mean()
        loss.backward()
        self.tap.hold()
        self.version += 1
        self.tap.capture(self.optimizer, self.version)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.version % 2 == 0)
        self.optimizer.param_groups[0]["lr"] *= 0.9
        self.registry.snapshot()
        self.tap.release(self.version)

    def bits(self) -> list[tuple[str, bytes]]:
        return [(leaf.name, leaf.tensor.numpy().tobytes()) for leaf in self.registry.leaves()]


class Follower:
    """The spare's end, and what it told."""

    def __init__(self, copied: ShadowCopy, told: list[dict[str, Any]]) -> None:
        self.copied, self.told = copied, told

    def wait(self, kind: str, source: Side | None = None, seconds: float = 20) -> dict[str, Any]:
        """Wait for a message; `source` goes on training meanwhile."""
        deadline = time.monotonic() + seconds
        while not any(message["type"] == kind for message in self.told):
            assert time.monotonic() < deadline, self.told
            if source is not None:
                source.step()
            time.sleep(0.005)
        return next(message for message in self.told if message["type"] == kind)

    def finish(self, source: Side) -> Moved | None:
        return self.copied.finish(2, source.version, 10)


@contextmanager
def following(source: Side, spare: Side) -> Iterator[Follower]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            admit(sock, SECRET)
            link = Link(sock)
            assert link.receive()["type"] == "shadow"
            source.tap.serve(link, lambda epoch, version: version == source.version)

        thread = threading.Thread(target=serve)
        thread.start()
        told: list[dict[str, Any]] = []
        copied = ShadowCopy(spare.registry, Source("w1", listener.getsockname()[:2], SECRET), told.append)
        try:
            yield Follower(copied, told)
        finally:
            assert copied.close()
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_copy_equals_the_source_bit_for_bit(name: str) -> None:
    torch.manual_seed(1)
    source, spare = Side(OPTIMIZERS[name]), Side(OPTIMIZERS[name])
    for _ in range(3):
        source.step()
    with following(source, spare) as follower:
        follower.wait("shadow_ready", source)
        for _ in range(5):
            source.step()
        moved = follower.finish(source)
    assert moved is not None, follower.told
    assert (moved.source, moved.algorithm) == ("w1", ALGORITHM)
    assert moved.digest_sent == moved.digest_received
    assert spare.bits() == source.bits()
    spare.registry.restore()
    assert spare.optimizer.param_groups[0]["lr"] == source.optimizer.param_groups[0]["lr"]


def test_a_copy_that_came_out_differently_is_found() -> None:
    torch.manual_seed(1)
    source, spare = Side(OPTIMIZERS["adam"]), Side(OPTIMIZERS["adam"])
    source.step()
    replay = type(spare.optimizer).step

    def sick(optimizer: torch.optim.Optimizer) -> None:
        replay(optimizer)
        with torch.no_grad():
            spare.model[2].weight[0, 0] += 1e-6

    spare.optimizer.__class__ = type("Adam", (torch.optim.Adam,), {"step": sick})
    with following(source, spare) as follower:
        failed = follower.wait("shadow_failed", source)
        assert follower.finish(source) is None
    assert "came out differently than on w1" in failed["reason"]


def refused(source: Side) -> str:
    with following(source, Side(OPTIMIZERS["sgd"])) as follower:
        reason: str = follower.wait("shadow_failed")["reason"]
    return reason


def test_what_cannot_be_replayed_is_refused_with_the_reason() -> None:
    torch.manual_seed(1)
    hooked = Side(OPTIMIZERS["sgd"])
    hooked.step()
    hooked.optimizer.register_step_pre_hook(lambda *_: None)
    assert "step hooks" in refused(hooked)
    own = Side(OPTIMIZERS["sgd"])
    own.step()
    own.optimizer.__class__ = type("MySGD", (torch.optim.SGD,), {})
    assert "MySGD is not known to update each parameter by itself" in refused(own)
    assert "training has not begun" in refused(Side(OPTIMIZERS["sgd"]))


def test_a_kind_of_state_that_changed_meanwhile_is_not_taken_over() -> None:
    """The frozen parameter begins to train: its moments are new, and were never copied."""
    torch.manual_seed(1)
    source, spare = Side(OPTIMIZERS["sgd"]), Side(OPTIMIZERS["sgd"])
    source.step()
    before = copy.deepcopy(source.registry.manifest())
    with following(source, spare) as follower:
        follower.wait("shadow_ready", source)
        frozen = source.model[3].weight
        source.optimizer.add_param_group({"params": [frozen.requires_grad_(True)]})
        source.step()
        assert source.registry.manifest() != before
        assert follower.finish(source) is None

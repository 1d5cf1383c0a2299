"""One training script, three ways: with the agent, as bare DDP with checkpoints, and with torchft.

The benchmarks start it as a user would start a script. It imports nothing of the project but the agent, and writes
what happens, with the wall clock of this process, to LOG/PID.jsonl: `begin` and `commit` of every step, `digest` of
parameters and optimizer state. So the agent's own times can be checked against times that it did not take.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch._C import _distributed_c10d as c10d


class Blocks(nn.Module):
    """`depth` square layers: little to compute for much state."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return hidden


class Log:
    """What happened in this process and when."""

    def __init__(self, folder: Path, rank: Callable[[], int]) -> None:
        self._file = os.open(folder / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._rank = rank

    def write(self, what: str, step: int, **more: Any) -> None:
        line = {"at": time.time(), "what": what, "step": step, "rank": self._rank(), **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def batches(rank: int, options: argparse.Namespace, start: int = 0) -> Iterator[torch.Tensor]:
    """The rank's batches from step `start` on; each depends on rank and step alone."""
    for step in count(start):
        generator = torch.Generator().manual_seed(step * 1000 + rank)
        yield torch.randn(options.batch, options.width, generator=generator)


def state_digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """xxh3-128 of all parameters and all that the optimizer keeps for each."""
    state = xxhash.xxh3_128()
    for parameter in model.parameters():
        kept = optimizer.state[parameter]
        for tensor in (parameter.detach(), *(kept[key] for key in sorted(kept))):
            state.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return state.hexdigest()


def backward(model: nn.Module, batch: torch.Tensor) -> None:
    loss = (model(batch) - batch.roll(1, 1)).square().mean()
    loss.backward()


class Training:
    """The loop's body, the same in all three ways."""

    def __init__(self, options: argparse.Namespace, log: Log) -> None:
        self._options, self._log = options, log
        self._ballast: torch.Tensor | None = None
        self._digest_steps = {int(text) for text in options.digest_steps.split(",") if text}

    def step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        step: int,
        batch: torch.Tensor,
        committed: Callable[[], bool],
        reduce: Callable[[], None] = lambda: None,
    ) -> None:
        self._log.write("begin", step)
        optimizer.zero_grad()
        backward(model, batch)
        reduce()
        optimizer.step()
        if committed():
            self._log.write("commit", step)
            if step in self._digest_steps or (self._options.log / "digest").exists():
                self._log.write("digest", step, digest=state_digest(model, optimizer))

    def wait_at_gate(self, step: int) -> None:
        """With --gate: go on while the number in the file is above `step`."""
        gate: Path | None = self._options.gate
        if gate is None or _number(gate) > step:
            return
        self._log.write("gate", step)
        while _number(gate) <= step:
            time.sleep(0.002)

    def fill(self, rank: int) -> None:
        """With --ballast: memory for the given rank, all of it resident."""
        if self._options.ballast and rank == self._options.ballast_rank and self._ballast is None:
            self._ballast = torch.empty(int(self._options.ballast * 2**30), dtype=torch.uint8).fill_(1)
            self._log.write("filled", 0)


def _number(path: Path) -> int:
    """0 if the file is not there or is being written."""
    return int(path.read_text() or 0) if path.exists() else 0


def make_model(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    return Blocks(options.width, options.depth)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def with_agent(options: argparse.Namespace) -> None:
    from agent import Agent

    agent = Agent.from_env()
    log = Log(options.log, lambda: agent.rank)
    training = Training(options, log)
    model = agent.wrap(make_model(options))
    optimizer = agent.register(make_optimizer(model))
    for step, batch in agent.steps(lambda rank, size: batches(rank, options), options.steps):
        if agent.rehearsing:
            optimizer.zero_grad()
            backward(model, batch)
            optimizer.step()
            continue
        training.fill(agent.rank)
        training.wait_at_gate(step)
        training.step(model, optimizer, step, batch, lambda step=step: agent.version > step)  # type: ignore[misc]


def bare(options: argparse.Namespace) -> None:
    """DDP as documented; rank 0 saves a checkpoint with torch.save, all ranks load it with mmap."""
    rank = int(os.environ["RANK"])
    log = Log(options.log, lambda: rank)
    training = Training(options, log)
    dist.init_process_group("gloo")
    model = make_model(options)
    optimizer = make_optimizer(model)
    start = 0
    if options.load:
        saved = torch.load(options.checkpoint, mmap=True, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    wrapped = nn.parallel.DistributedDataParallel(model)
    for step, batch in zip(range(start, options.steps), batches(rank, options, start), strict=False):
        training.wait_at_gate(step)
        training.step(wrapped, optimizer, step, batch, lambda: True)
        if step == options.save_after:
            if rank == 0:
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                torch.save(saved, options.checkpoint)
                log.write("saved", step)
            dist.barrier()
    dist.destroy_process_group()


def with_torchft(options: argparse.Namespace) -> None:
    """As in torchft's own example: a replica group of one process, gloo, time-outs of 5 seconds.

    Gradients go through `Manager.allreduce` itself: on gloo torchft's DDP wrapper ends every survivor with an
    AssertionError when a peer dies, and its pure Python one never waits for the sum.
    """
    from torchft import Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found]

    replica = int(os.environ["REPLICA_GROUP_ID"])
    log = Log(options.log, lambda: replica)
    training = Training(options, log)
    model = make_model(options)
    plain = make_optimizer(model)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    seconds = timedelta(seconds=options.timeout)
    store = c10d.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=seconds),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        min_replica_size=1,
        replica_id=f"group-{replica}",
        timeout=seconds,
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    optimizer = Optimizer(manager, plain)

    def reduce() -> None:
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()

    for drawn, batch in enumerate(batches(replica, options)):
        step = manager.current_step()
        log.write("draw", step, batch=drawn)  # each batch is drawn once, whether or not its step commits
        training.step(model, optimizer, step, batch, lambda step=step: manager.current_step() > step, reduce)  # type: ignore[misc]
        if manager.current_step() >= options.steps:
            break
    manager.shutdown(wait=False)


WAYS: dict[str, Callable[[argparse.Namespace], None]] = {"agent": with_agent, "bare": bare, "torchft": with_torchft}


def parse(arguments: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=sorted(WAYS), required=True)
    parser.add_argument("--log", type=Path, required=True, help="folder; a file `digest` in it asks for digests")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--digest-steps", default="", help="log the digest after these steps")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--save-after", type=int, default=-1, metavar="STEP")
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--gate", type=Path, help="file with the number of steps that may be done")
    parser.add_argument("--ballast", type=float, default=0.0, metavar="GIB")
    parser.add_argument("--ballast-rank", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=5.0, help="torchft's time-outs")
    return parser.parse_args(None if arguments is None else list(arguments))


if __name__ == "__main__":
    chosen = parse()
    WAYS[chosen.way](chosen)

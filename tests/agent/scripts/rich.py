"""All that a script may hold at once: what it trains with is chosen by `--with`, and every choice must move exactly.

A network with batch normalisation and dropout; two optimizers; a schedule each; a GradScaler that overflows now and
then; micro-batches; a StatefulDataLoader that shuffles; generators of torch, numpy and Python of its own, and draws
from the global ones; a running average of the model; an object that counts, private to its rank.
"""

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchdata.stateful_dataloader import StatefulDataLoader

from agent import Agent

CHOICES = (
    "optimizers",
    "scaler",
    "micro-batches",
    "loader",
    "workers",
    "plain-loader",
    "generators",
    "average",
    "norm",
)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--out", type=Path)
parser.add_argument("--pause", type=float)
parser.add_argument("--replicas", type=int, default=0, help="0 trains with DDP")
parser.add_argument("--with", dest="features", nargs="*", choices=CHOICES, default=list(CHOICES))
options = parser.parse_args()
chosen = set(options.features)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 24))
        self.norm = nn.BatchNorm1d(24) if "norm" in chosen else nn.Identity()
        self.head = nn.Linear(24, 3)

    def forward(self, values: torch.Tensor, spike: float) -> torch.Tensor:
        """`spike` changes no value, but the gradient of one parameter, which one shard holds."""
        bias = self.head.bias
        return self.head(self.norm(self.body(values))) + (bias - bias.detach()) * spike


class Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Deterministic values, and a random disturbance where this process draws them."""

    def __len__(self) -> int:
        return 44  # not a multiple of what a step takes: steps cross the ends of passes

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.sin(torch.arange(12) * (index + 1.0))
        if "workers" not in chosen:
            values = values + 0.01 * torch.rand(12)
        return values, torch.tensor(index % 3)


class Counter:
    """What only this rank knows."""

    def __init__(self) -> None:
        self.seen = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def data(rank: int, size: int) -> Any:
    if not chosen & {"loader", "workers", "plain-loader"}:
        return endless(rank)
    rows = torch.utils.data.Subset(Rows(), range(rank, len(Rows()), size))
    if "plain-loader" in chosen:
        return torch.utils.data.DataLoader(rows, batch_size=3, shuffle=True)
    return StatefulDataLoader(rows, batch_size=3, shuffle=True, num_workers=2 if "workers" in chosen else 0)


def endless(rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    rows, chance = Rows(), random.Random(rank)
    while True:
        yield torch.utils.data.default_collate([rows[chance.randrange(len(rows))] for _ in range(3)])


agent = Agent.from_env()
torch.manual_seed(5)
random.seed(5)
np.random.seed(5)
model = Network()
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if "average" in chosen else None
if options.replicas:
    mesh = agent.mesh(replicas=options.replicas)
    for module in (model.body, model):
        fully_shard(module, mesh=mesh)
wrapped = agent.wrap(model)
optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(model.body.parameters(), lr=0.02)]
rest = [*model.norm.parameters(), *model.head.parameters()]
if "optimizers" in chosen:
    optimizers.append(torch.optim.SGD(rest, lr=0.05, momentum=0.9))
else:
    optimizers[0].add_param_group({"params": rest})
schedules: dict[str, Any] = {"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizers[0], 0.05, options.steps + 4)}
if "optimizers" in chosen:
    parts = [
        torch.optim.lr_scheduler.ConstantLR(optimizers[1]),
        torch.optim.lr_scheduler.ExponentialLR(optimizers[1], 0.9),
    ]
    schedules["second"] = torch.optim.lr_scheduler.SequentialLR(optimizers[1], parts, milestones=[4])
scaler = torch.amp.GradScaler("cpu", growth_interval=2, enabled="scaler" in chosen)
torch_source, numpy_source, python_source = torch.Generator(), np.random.default_rng(3), random.Random(4)
counter = Counter()
agent.register(
    *optimizers,
    **schedules,
    scaler=scaler if "scaler" in chosen else None,
    generators=(torch_source, numpy_source, python_source) if "generators" in chosen else (),
    private={"counter": counter},
    **({"average": average} if average is not None else {}),
)
torch.manual_seed(100 + agent.rank)
micro_batches = 3 if "micro-batches" in chosen else 1
for step, (values, targets) in agent.steps(data, options.steps):
    if "generators" in chosen:
        values = values + 0.01 * torch.rand(values.shape, generator=torch_source)
        values = values * float(numpy_source.uniform(0.9, 1.1)) + python_source.random() * 0.01
    values = values + random.random() * 0.01 + np.random.random() * 0.01
    spike = 1e38 if "scaler" in chosen and step % 5 == 3 else 0.0
    loss = F.cross_entropy(wrapped(values, spike), targets) / micro_batches
    scaler.scale(loss).backward()
    counter.seen += float(values.sum())
    agent.log(loss=loss, seen=counter.seen, scale=scaler.get_scale())
    if agent.micro_batch < micro_batches - 1:
        continue
    if options.replicas and "scaler" in chosen:
        scaler.unscale_(optimizers[0])
        nn.utils.clip_grad_norm_(model.body.parameters(), 1.0)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for schedule in schedules.values():
        schedule.step()
    for optimizer in optimizers:
        optimizer.zero_grad()
    if average is not None:
        average.update_parameters(model)

if options.out:
    path = options.out if agent.rank == 0 else options.out.with_name(f"{options.out.name}.rank{agent.rank}")
    lasting = {
        "schedules": {name: [float(rate) for rate in each.get_last_lr()] for name, each in schedules.items()},
        "scaler": scaler.state_dict(),
        "buffers": {name: value.tolist() for name, value in model.named_buffers()},
        "average": {} if average is None else {name: value.tolist() for name, value in average.state_dict().items()},
        "sources": [torch_source.get_state().tolist()[:32], numpy_source.random(), python_source.random()],
        "counter": counter.seen,
    }
    logged = {name: agent.history.values(name) for name in ("loss", "seen", "scale")}
    path.write_text(json.dumps({**logged, **lasting, **agent.digests()}))

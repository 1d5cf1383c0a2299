"""A script that forgets one thing, as users do; `--forget` says which. What it should have written is in the else."""

import argparse
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from agent import Agent

parser = argparse.ArgumentParser()
parser.add_argument("--forget", required=True)
parser.add_argument("--steps", type=int)
parser.add_argument("--out")
options = parser.parse_args()
forget = options.forget


def endless() -> Iterator[torch.Tensor]:
    while True:
        yield torch.rand(4, 6)


class Meter:
    """Of the script's own; what it does not know of cannot be certain to matter."""

    def __init__(self) -> None:
        self.best = 1e9

    def state_dict(self) -> dict[str, float]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


agent = Agent.from_env()
torch.manual_seed(1)
network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
teacher = nn.Linear(6, 1)
temperature = nn.Linear(1, 1)
model = agent.wrap(network)
parameters = [*model.parameters()]
if forget == "a parameter":
    del parameters[0]
if forget == "a module":
    parameters += temperature.parameters()
main_optimizer = torch.optim.SGD(parameters[:2] if forget == "an optimizer" else parameters, lr=0.1)
if forget == "an optimizer":
    second_optimizer = torch.optim.SGD(parameters[2:], lr=0.1)
if forget == "an optimizer of another model":
    teacher_optimizer = torch.optim.SGD(teacher.parameters(), lr=0.1)
warm_up = torch.optim.lr_scheduler.StepLR(main_optimizer, 100) if forget == "a scheduler" else None
loss_scaler = torch.amp.GradScaler("cpu", enabled=forget == "a scaler")
noise = torch.Generator() if forget == "a generator" else None
numpy_noise = np.random.default_rng(0) if forget == "a numpy generator" else None
python_noise = random.Random(0) if forget == "a random.Random" else None
meter = Meter()
agent.register(main_optimizer)

data: Any = lambda rank, size: endless()  # noqa: E731
if forget == "the loader's generator":
    shuffler = torch.Generator()
    data = torch.utils.data.DataLoader(torch.rand(12, 6), batch_size=4, shuffle=True, generator=shuffler)
extra = iter(torch.utils.data.DataLoader(torch.rand(400, 6), batch_size=4)) if forget == "a loader" else None
count = 0
for _, batch in agent.steps(data, options.steps):
    if noise is not None:
        batch = batch + torch.rand(4, 6, generator=noise)
    if numpy_noise is not None:
        batch = batch * float(numpy_noise.uniform())
    if python_noise is not None:
        batch = batch * python_noise.random()
    if extra is not None:
        batch = batch + next(extra)
    if forget == "an average":
        with torch.no_grad():
            teacher.weight.mul_(0.9)
    loss = F.mse_loss(model(batch), teacher(batch).detach())
    loss_scaler.scale(loss).backward()
    if forget == "to count by agent.micro_batch":
        count += 1
        if count % 3:
            continue
    if forget == "an optimizer of another model":
        teacher(batch).sum().backward()
        teacher_optimizer.step()
    loss_scaler.step(main_optimizer)
    loss_scaler.update()
    if forget == "a meter":
        meter.best = min(meter.best - 1, loss.item())
    if forget != "zero_grad":
        main_optimizer.zero_grad()

"""text_fsdp.py with an optimizer whose step a copy elsewhere cannot follow."""

import argparse
import sys

import torch
from torch.distributed.fsdp import fully_shard

from agent import Agent
from agent.examples.text import CharacterModel, batches, next_character_loss

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=["communicating", "counting"])
parser.add_argument("--steps", type=int)
parser.add_argument("--out")
options = parser.parse_args()


class Odd(torch.optim.SGD):
    """Normalises by the whole gradient's length, or changes its pace with every call."""

    calls = 0

    def step(self, closure: None = None) -> None:
        self.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if options.kind == "communicating":
                    parameter.grad.div_(parameter.grad.norm())
                else:
                    parameter.grad.div_(self.calls)
        super().step()


agent = Agent.from_env()
torch.manual_seed(0)
model = CharacterModel()
fully_shard(model, mesh=agent.mesh(replicas=1))
agent.wrap(model)
optimizer = Odd(model.parameters(), lr=0.1)
agent.register(optimizer)
for _, batch in agent.steps(lambda rank, size: batches(rank, size, 0), options.steps):
    next_character_loss(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
sys.exit(0)

"""text_ddp.py or text_fsdp.py with numbers that are not finite because of the script: of one rank's data, or of all."""

import argparse
from pathlib import Path

import torch
from torch.distributed.fsdp import fully_shard

from agent import Agent
from agent.examples.text import CharacterModel, batches, next_character_loss, seed_everything, write_result

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--out", type=Path)
parser.add_argument("--replicas", type=int, default=0, help="0 trains with DDP")
parser.add_argument("--bad-step", type=int, default=-1)
parser.add_argument("--bad-rank", type=int, help="all ranks unless given")
options = parser.parse_args()
agent = Agent.from_env(nan_checks=True)
seed_everything(0)
model = CharacterModel()
if options.replicas:
    fully_shard(model, mesh=agent.mesh(replicas=options.replicas))
wrapped = agent.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
agent.register(optimizer)
for step, batch in agent.steps(lambda rank, size: batches(rank, size, 0), options.steps):
    loss = next_character_loss(wrapped, batch)
    if step + 1 == options.bad_step and options.bad_rank in (None, agent.rank):
        loss = loss * float("inf")
    agent.log(loss=loss)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
write_result(agent, options)

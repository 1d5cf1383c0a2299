"""A small language model on text that ships with Python, data-parallel, able to lose workers.

    python -m agent run --workers 4 --spares 2 agent/examples/text_ddp.py --steps 60 --out result.json

Reads top to bottom; the lines with `agent` are all that live migration needs.
"""

import time

import torch

from agent import Agent
from agent.examples.text import (
    CharacterModel,
    batches,
    next_character_loss,
    parse_options,
    seed_everything,
    write_result,
)

options = parse_options()
agent = Agent.from_env()
seed_everything(options.seed)
model = agent.wrap(CharacterModel(options.width, options.depth))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
agent.register(optimizer, scheduler=scheduler)
seed_everything(options.seed * agent.world_size + max(agent.rank, 0))  # each rank drops out differently

for _, batch in agent.steps(lambda rank, size: batches(rank, size, options.seed), options.steps):
    time.sleep(options.pause)
    loss = next_character_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    agent.log(loss=loss)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()

write_result(agent, options)

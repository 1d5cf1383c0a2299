"""The same model fully sharded (FSDP2), each shard once: every rank keeps a copy of its neighbour's shard in memory.

    python -m agent run --workers 3 --spares 1 agent/examples/text_fsdp.py --out result.json

A lost rank's shard comes from the copy, which is never a step behind; `docs/agent.md` says what that costs.
"""

import time

import torch
from torch.distributed.fsdp import fully_shard

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
model = CharacterModel(options.width, options.depth)
mesh = agent.mesh(replicas=1)
for module in (*model.blocks, model):
    fully_shard(module, mesh=mesh)
agent.wrap(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
agent.register(optimizer, scheduler=scheduler)
seed_everything(options.seed * agent.world_size + max(agent.rank, 0))  # each rank drops out differently

for _, batch in agent.steps(lambda rank, size: batches(rank, size, options.seed), options.steps):
    time.sleep(options.pause)
    loss = next_character_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    agent.log(loss=loss)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()

write_result(agent, options)

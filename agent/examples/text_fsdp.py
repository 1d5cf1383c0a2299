"""The same model sharded by FSDP2's `fully_shard`, on a mesh that follows the agent.

    python -m agent run --workers 4 --spares 2 agent/examples/text_fsdp.py --replicas 2 --out result.json

With replica groups (HSDP) a lost rank's shard comes from the rank with the same shard in another group. With a single
one (pure FSDP, the default) every rank keeps a copy of its neighbour's shard in memory, and a lost shard comes from
there; `docs/agent.md` says what that costs.
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
mesh = agent.mesh(replicas=options.replicas)
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

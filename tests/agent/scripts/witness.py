"""The text example, and a line `rank version pid` in `--witness` after each optimizer step that counted.

So that a test can tell when a process that was given up last wrote anything.
"""

import os
import time
from pathlib import Path

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
witness = Path(os.environ["WITNESS"]).open("a")  # noqa: SIM115 (open as long as the process lives)
agent = Agent.from_env()
seed_everything(options.seed)
model = agent.wrap(CharacterModel(options.width, options.depth))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
agent.register(optimizer)
seed_everything(options.seed * agent.world_size + max(agent.rank, 0))

for step, batch in agent.steps(lambda rank, size: batches(rank, size, options.seed), options.steps):
    time.sleep(options.pause)
    loss = next_character_loss(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    agent.log(loss=loss)
    optimizer.step()
    optimizer.zero_grad()
    if agent.version == step + 1:
        print(agent.rank, agent.version, os.getpid(), file=witness, flush=True)

write_result(agent, options)

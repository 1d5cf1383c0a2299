"""A small language model on text that ships with Python, data-parallel, able to lose workers.

    python -m agent run --workers 4 --spares 2 agent/examples/text_ddp.py --steps 60 --out result.json

Reads top to bottom; the lines with `agent` are all that live migration needs.
"""

import argparse
import json
import pydoc_data.topics
import random
import time
from collections.abc import Iterator

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from agent import Agent

CONTEXT = 32
BATCH = 8


class CharacterModel(nn.Module):
    """A transformer of one block over ASCII characters, with dropout so that the RNG matters."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.block = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, 128)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.characters(text) + self.positions.weight[: text.shape[1]]
        logits: torch.Tensor = self.head(self.block(hidden, src_mask=mask, is_causal=True))
        return logits


def batches(rank: int, world_size: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless random windows of the text; every rank draws its own."""
    text = "".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed * world_size + rank)
    while True:
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=generator)
        yield torch.stack([data[start : start + CONTEXT + 1] for start in starts])


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step, to watch what happens")
parser.add_argument("--out")
options = parser.parse_args()

agent = Agent.from_env()
torch.manual_seed(options.seed)
model = agent.wrap(CharacterModel())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
agent.register(optimizer, scheduler=scheduler)
for seed in (torch.manual_seed, random.seed, numpy.random.seed):
    seed(options.seed * agent.world_size + max(agent.rank, 0))  # each rank drops out differently

for _, batch in agent.steps(lambda rank, size: batches(rank, size, options.seed), options.steps):
    time.sleep(options.pause)
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    agent.log(loss=loss)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()

if agent.rank == 0:
    losses = agent.history.values("loss")
    first, last = (sum(row) / len(row) for row in (losses[0], losses[-1]))
    print(f"{options.steps} steps, loss {first:.3f} → {last:.3f}")
    if options.out:
        digests = agent.digests()
        with open(options.out, "w") as file:
            json.dump({"losses": losses, **digests}, file, indent=1)

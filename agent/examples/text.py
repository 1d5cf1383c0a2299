"""What the text examples share: the model, the data, the options and the result. Nothing here knows of migration."""

import argparse
import json
import pydoc_data.topics
import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from agent import Agent

CONTEXT = 32
BATCH = 8


class CharacterModel(nn.Module):
    """A transformer over ASCII characters, with dropout so that the RNG matters."""

    def __init__(self, width: int = 48, depth: int = 1) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, nhead=4, dim_feedforward=4 * width, dropout=0.1, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 127)  # the last character, DEL, never comes

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        hidden = self.characters(text) + self.positions(torch.arange(text.shape[1]))
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden.flatten(0, 1))
        return logits


def next_character_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The cross entropy of predicting each character of `batch` from those before it."""
    return F.cross_entropy(model(batch[:, :-1]), batch[:, 1:].flatten())


def batches(rank: int, world_size: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless random windows of the text; every rank draws its own."""
    text = "".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed * world_size + rank)
    while True:
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=generator)
        yield torch.stack([data[start : start + CONTEXT + 1] for start in starts])


def parse_options() -> argparse.Namespace:
    """The command line of every example."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step, to watch what happens")
    parser.add_argument("--out", type=Path, help="write losses and digests here; ranks above 0 to FILE.rankN")
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1, help="copies of the whole sharded model")
    return parser.parse_args()


def seed_everything(seed: int) -> None:
    """Seed every generator that a script may draw from."""
    for each in (torch.manual_seed, random.seed, numpy.random.seed):
        each(seed)


def write_result(agent: Agent, options: argparse.Namespace) -> None:
    """Print how the loss fell; with `--out`, write the losses of all ranks and the digests of this rank's state."""
    losses = agent.history.values("loss")
    first, last = (sum(row) / len(row) for row in (losses[0], losses[-1]))
    if agent.rank == 0:
        print(f"{options.steps} steps, loss {first:.3f} → {last:.3f}")
    if options.out:
        path = options.out if agent.rank == 0 else options.out.with_name(f"{options.out.name}.rank{agent.rank}")
        path.write_text(json.dumps({"losses": losses, **agent.digests()}, indent=1))

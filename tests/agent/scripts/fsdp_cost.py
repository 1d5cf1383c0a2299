"""text_fsdp.py that times what the copy of the neighbour's shard adds to each step; rank 0 writes the result."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard

from agent import Agent
from agent.examples.text import CharacterModel, batches, next_character_loss, parse_options, seed_everything

place = sys.argv.index("--cost")
out = sys.argv[place + 1]
del sys.argv[place : place + 2]
options = parse_options()
agent = Agent.from_env()
seed_everything(options.seed)
model = CharacterModel(options.width, options.depth)
mesh = agent.mesh(replicas=1)
for module in (*model.blocks, model):
    fully_shard(module, mesh=mesh)
agent.wrap(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
agent.register(optimizer)
copy: Any = agent._worker.held.copy
times: dict[str, list[float]] = {"exchange": [], "compare": [], "optimizers": [], "again": [], "step": []}


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            times[name].append(time.perf_counter() - begin)

    return run


apply = copy.apply
copy.exchange, copy._compare = timed("exchange", copy.exchange), timed("compare", copy._compare)
copy.apply = timed("optimizers", lambda one, step, again: apply(one, step, timed("again", again)))
at = time.perf_counter()
for _, batch in agent.steps(lambda rank, size: batches(rank, size, options.seed), options.steps):
    next_character_loss(model, batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    at, before = time.perf_counter(), at
    times["step"].append(at - before)

if agent.rank == 0:
    local = [parameter.to_local() for parameter in model.parameters()]
    kept = [leaf.tensor.nbytes for leaf in copy.leaves()]
    cost: dict[str, Any] = {f"{name}_ms": round(1000 * statistics.median(each), 3) for name, each in times.items()}
    cost["shard_bytes"] = sum(tensor.nbytes for tensor in local)
    cost["sent_bytes"] = copy._outgoing.data.nbytes
    cost["copy_bytes"], cost["buffer_bytes"] = sum(kept), copy._outgoing.data.nbytes + copy._incoming.data.nbytes
    with open(out, "w") as file:
        json.dump(cost, file, indent=1)

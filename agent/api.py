"""The training script's side of the agent: five lines, and the rest of the script stays as it was.

    agent = Agent.from_env()
    model = agent.wrap(model)
    optimizer = agent.register(optimizer, scheduler=scheduler)
    for step, batch in agent.steps(batches, total):
        loss = loss_function(model(batch)); loss.backward(); optimizer.step(); optimizer.zero_grad()

The body of the loop may run more than once for a step: when a worker was lost, the step in flight is redone
on all ranks from the last committed state. It also runs a few times before the first step, as a rehearsal
without communication whose effects are undone: spares rehearse too, which makes them ready to take over. So
let the body only compute, and use `Agent.log` for what it measures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from agent import codec, faults, journal, nccl
from agent.feed import DataSource
from agent.gate import Gate, ScriptError
from agent.group import LiveGroup, make_default_group
from agent.history import History
from agent.journal import Entry, Generator
from agent.mesh import RankMesh
from agent.parallel import data_parallel
from agent.private import Private
from agent.redundancy import ShardCopy
from agent.rehearsal import Rehearsal
from agent.settings import WorkerSettings
from agent.sharding import check_sharded, forget_iteration, take_shard
from agent.state import Registry, layout
from agent.transport import bytes_of, state_digest
from agent.worker import Worker

__all__ = ["Agent", "ScriptError"]


class Agent:
    """This process in the run: a logical rank, or a spare that may become one."""

    def __init__(self, settings: WorkerSettings, group: LiveGroup, *, nan_checks: bool = False) -> None:
        self._settings = settings
        self._group = group
        self._registry = Registry()
        self._worker = Worker(settings, group, self._registry)
        self._commit, self._journal = self._worker.commit, self._worker.journal
        self._private = Private()
        self._gate = Gate(self._worker, self._private, nan_checks=nan_checks or settings.nan_checks)
        self._rehearsal = Rehearsal(self._registry, self._private, self._gate)
        self._initial_digest = ""
        self._epoch = 0
        self._total = 0
        self._mesh: RankMesh | None = None
        self._worker.held.on_rank = self._take_part
        group.on_contribution = self._gate.probe_gradient
        faults.script.rank = settings.rank
        faults.script.who = "spare" if settings.rank < 0 else "worker"
        faults.script.cut = group.cut

    @classmethod
    def from_env(cls, *, nan_checks: bool = False) -> Agent:
        """Join the run that the launcher started. Raises NotLaunched with what to do.

        `nan_checks`, the same on all ranks, looks for a sick device by numbers that are not finite: see
        `agent.numerics`. The launcher's `--nan-checks` does the same.
        """
        settings = WorkerSettings.from_environment()
        return cls(settings, make_default_group(settings.rank, settings.world_size), nan_checks=nan_checks)

    # What the script may ask ---------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The logical rank; -1 while this process is a spare."""
        return self._worker.rank

    @property
    def rehearsing(self) -> bool:
        """Whether the loop's body now runs without effect."""
        return self._gate.rehearsing

    @property
    def micro_batch(self) -> int:
        """Number of the batch within its step, from 0, where several are accumulated. Do not count them yourself:
        when a step is done again, it begins with its first one."""
        return self._private.feed.handed_out - 1

    @property
    def world_size(self) -> int:
        """How many ranks train together; spares do not count, and a rank that nobody takes for now does."""
        return self._settings.world_size

    @property
    def present(self) -> int:
        """How many ranks train now: fewer than `world_size` after a loss without a spare (`--without-spare shrink`)."""
        return self._group.size()

    @property
    def version(self) -> int:
        """Optimizer steps committed so far."""
        return self._commit.version

    @property
    def history(self) -> History:
        """Logged values of all committed steps and ranks."""
        return self._registry.history

    def digests(self) -> dict[str, str]:
        """xxh3-128 of `parameters` (with buffers), `optimizer` and `rng` (all ranks, with data position)."""
        found: dict[str, str] = {}
        for kind, name in (("model", "parameters"), ("optimizer", "optimizer")):
            state = xxhash.xxh3_128()
            for leaf in self._registry.leaves():
                if leaf.name.startswith(kind):
                    state.update(bytes_of(leaf.tensor.cpu().contiguous()))
            found[name] = state.hexdigest()
        found["rng"] = xxhash.xxh3_128(b"".join(entry.private for entry in self._journal.entries)).hexdigest()
        return found

    # Registration --------------------------------------------------------------------------------------

    def mesh(self, *, replicas: int) -> DeviceMesh:
        """The mesh to give to every `fully_shard` call, with dimensions `replicate` (if two or more) and `shard`.

        `replicas` is the number of replica groups: each holds the whole model, sharded over its ranks. With a
        single one, every rank also keeps a copy of its neighbour's shard; see `agent.redundancy` for what that
        costs. Raises ValueError if the ranks cannot be divided so.
        """
        device = "cuda" if nccl.available() else "cpu"
        self._mesh = RankMesh(self._group, world_size=self.world_size, replicas=replicas, device_type=device)
        if replicas == 1:
            self._worker.held.copy = ShardCopy(self._registry)
        return self._mesh.device_mesh

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """`model` for data-parallel training, with gradients averaged over the ranks.

        A model that `fully_shard` was applied to stays as it is; for any other, `options` go to
        `DistributedDataParallel`. Buffers of rank 0 reach all ranks at the end of each step.
        """
        if isinstance(model, FSDPModule):
            check_sharded(model, self._mesh)
            wrapped: torch.nn.Module = model
        else:
            wrapped = data_parallel(model, self._group, self._gate.reduce, options)
        self._registry.models.append(wrapped)
        wrapped.register_forward_pre_hook(lambda *_: self._forward_begins())
        return wrapped

    def register(
        self,
        optimizer: torch.optim.Optimizer,
        *more: torch.optim.Optimizer,
        scheduler: Any = None,
        scaler: Any = None,
        generators: tuple[Generator, ...] = (),
        private: dict[str, Any] | None = None,
        **replicated: Any,
    ) -> torch.optim.Optimizer:
        """Name everything that holds state; returns `optimizer`, whose `step` now passes the commit gate.

        `private` objects differ between ranks, `replicated` ones are equal on all; both need `state_dict` and
        `load_state_dict`. All optimizers of a step must step after its last backward pass.
        """
        self._gate.parts = self._strategy()["parts"]
        for each in (optimizer, *more):
            self._registry.optimizers.append(each)
            self._gate.install(each)
        if scaler is not None:
            self._gate.install_scaler(scaler)
        named = {"scheduler": scheduler, "scaler": scaler, **replicated}
        self._registry.replicated |= {name: thing for name, thing in named.items() if thing is not None}
        self._private.generators += generators
        self._private.objects |= private or {}
        return optimizer

    def log(self, **values: Any) -> None:
        """Keep scalars of the step being computed; call before `optimizer.step()`, with the same names always.

        They enter `history` on all ranks when the step commits.
        """
        self._gate.log({name: _number(value) for name, value in values.items()})

    # The loop ------------------------------------------------------------------------------------------

    def steps(self, data: DataSource, total: int) -> Iterator[tuple[int, Any]]:
        """Yield `(step, batch)` until `total` steps have been committed; `step` counts from 0.

        `data` is an iterable of batches (repeated when exhausted) or, where ranks read different data, a
        function of (rank, world size) that returns one. Spares wait inside until they are needed, and leave
        the process when the run is over. An iteration without `optimizer.step()` accumulates gradients: the
        next one continues the same step, and `micro_batch` says how far it is.
        """
        self._total = total
        self._private.open_feed(data)
        yield from self._rehearsal.run(self.rank, self.world_size)
        self._initial_digest = state_digest(self._registry)
        journal.use_devices(tensor.device for _, tensor in self._registry.local_parameters())
        if self._settings.resume is not None and self.rank >= 0:
            self._worker.resume_from(Path(self._settings.resume))
        self._worker.register(self._introduce)
        self._await_resume()
        while True:
            if self.version >= total:
                if self._finish():
                    return
                continue
            yield from self._one_step()
            if not self._gate.decision:
                self._await_resume()

    def _one_step(self) -> Iterator[tuple[int, Any]]:
        """Run the body until the gate has decided whether the step commits."""
        gate, group, feed = self._gate, self._group, self._private.feed
        gate.begin()
        faults.script.step = self.version + 1
        faults.at("draw")
        step = self.version
        if not self._commit.begin(self._epoch):
            return
        group.begin_step()
        while gate.decision is None:
            batch = feed.next()
            faults.at("step", bucket=self.micro_batch)
            yield step, batch
            if gate.decision is None and (self._commit.stopped or group.failed):
                return
        if gate.decision:
            faults.at("applied")
            self._conclude()

    def _conclude(self) -> None:
        """The step is applied: bring everything that describes it to its new version."""
        entries = self._journal.entries
        self.history.append([each.logged for each in entries])
        self._registry.snapshot()
        self._private.committed(entries[self.rank])
        self._gate.probe_parameters()
        self._worker.tap.release(self.version)
        self._commit.reach_boundary()
        faults.at("boundary")
        self._worker.committed(self._epoch)

    def _await_resume(self) -> None:
        """Park until the run goes on, then take up the epoch's members and, if promoted, the rank's state."""
        limits = self._settings.limits
        spare = self.rank < 0
        seconds = None if spare else limits.start + limits.spare + limits.form + limits.hang
        self._epoch = self._commit.park(seconds, self._epoch)
        if self._worker.finished:
            if self.rank < 0:
                sys.exit(0)
            return
        if not self._worker.join_epoch(self._epoch):
            return
        self._registry.restore()
        self._worker.tap.version = self.version
        for model in self._registry.models:
            forget_iteration(model)
        if self._worker.held.copy is not None:
            self._worker.held.copy.begin()
        self._worker.peers.drop_offer()
        if self._worker.held.promoted:
            self._worker.held.promoted = False
            self._take_rank()
        else:
            self._private.restore_objects(self._journal.entries[self.rank])
        self._gate.probe_parameters()
        self._private.feed.rewind()

    def _take_rank(self) -> None:
        """Become the logical rank that was assigned, as its journal entry describes it."""
        os.environ["RANK"] = str(self.rank)
        faults.script.rank = self.rank
        self._private.take(self._journal.entries[self.rank], self.rank, self.world_size)
        if self.version == 0:
            self._rehearsal.clear_moments()

    def _take_part(self, rank: int) -> None:
        """State for `rank` is about to arrive: hold the part of the model that belongs to it."""
        if self._mesh is not None:
            for model in self._registry.models:
                take_shard(model, self._mesh, rank)

    def _forward_begins(self) -> None:
        if not self.rehearsing:
            faults.at("forward")

    def _finish(self) -> bool:
        """Wait until every rank has made its last step; False if a worker must be replaced first."""
        faults.at("end")
        self._worker.tell({"type": "done", "version": self.version})
        self._await_resume()
        return self._worker.finished

    def _introduce(self) -> dict[str, Any]:
        first = Entry(0, (), codec.encode(self._rehearsal.initial, "private"))
        return {
            "layout": xxhash.xxh3_128(layout(self._registry, self._gate.buckets).encode()).hexdigest(),
            "digest": self._initial_digest,
            "initial": first.to_bytes().hex() if self.version == 0 else None,
            "total": self._total,
            **self._strategy(),
            "done": self.version >= self._total,
        }

    def _strategy(self) -> dict[str, Any]:
        size, mesh = self.world_size, self._mesh
        if mesh is None:
            return {"strategy": "ddp", "replicas": size, "parts": [0] * size, "copied": False}
        parts = [mesh.shard_of(rank) for rank in range(size)]
        alone = mesh.replicas == 1
        return {
            "strategy": "fsdp" if alone else "hsdp",
            "replicas": mesh.replicas,
            "parts": parts,
            "copied": alone,
        }


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)

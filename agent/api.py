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

import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from agent import codec, faults, journal
from agent.feed import DataSource, Feed
from agent.group import LiveGroup, make_default_group
from agent.history import History
from agent.journal import LOGGED_VALUES, Entry
from agent.mesh import RankMesh
from agent.parallel import average_gradients, broadcast_buffers, data_parallel
from agent.redundancy import ShardCopy
from agent.settings import WorkerSettings
from agent.sharding import check_moments, check_sharded, forget_iteration, take_shard
from agent.state import Registry, Rehearsal, layout
from agent.transport import bytes_of, state_digest
from agent.worker import Worker

REHEARSALS = 2
"""DDP settles its buckets in the second iteration; a spare must have the same ones as its peers."""


class ScriptError(RuntimeError):
    """The training script uses the agent in a way that cannot be exact; the message says what to change."""


class Agent:
    """This process in the run: a logical rank, or a spare that may become one."""

    def __init__(self, settings: WorkerSettings, group: LiveGroup) -> None:
        self._settings = settings
        self._group = group
        self._registry = Registry()
        self._worker = Worker(settings, group, self._registry)
        self._commit = self._worker.commit
        self._journal = self._worker.journal
        self._feed: Feed | None = None
        self._generators: list[torch.Generator] = []
        self._private: dict[str, Any] = {}
        self._buckets: list[list[int]] = []
        self._logged: dict[str, float] = {}
        self._samples = 0
        self._epoch = 0
        self._decision: bool | None = None
        self._initial: dict[str, Any] = {}
        self._initial_digest = ""
        self._total = 0
        self._mesh: RankMesh | None = None
        self._copy: ShardCopy | None = None
        self._worker.on_rank = self._take_part
        self.rehearsing = True
        """Whether the loop's body now runs without effect."""
        faults.script.rank = settings.rank
        faults.script.who = "spare" if settings.rank < 0 else "worker"
        faults.script.cut = group.cut

    @classmethod
    def from_env(cls) -> Agent:
        """Join the run that the launcher started. Raises NotLaunched with what to do."""
        settings = WorkerSettings.from_environment()
        return cls(settings, make_default_group(settings.rank, settings.world_size))

    # What the script may ask ---------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The logical rank; -1 while this process is a spare."""
        return self._worker.rank

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
        self._mesh = RankMesh(self._group, world_size=self.world_size, replicas=replicas)
        if replicas == 1:
            self._copy = self._worker.copy = ShardCopy(self._registry)
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
            wrapped = data_parallel(model, self._group, self._reduce, options)
        self._registry.models.append(wrapped)
        wrapped.register_forward_pre_hook(lambda *_: None if self.rehearsing else _fault("forward"))
        return wrapped

    def register(
        self,
        optimizer: torch.optim.Optimizer,
        *more: torch.optim.Optimizer,
        scheduler: Any = None,
        scaler: Any = None,
        generators: tuple[torch.Generator, ...] = (),
        private: dict[str, Any] | None = None,
        **replicated: Any,
    ) -> torch.optim.Optimizer:
        """Name everything that holds state; returns `optimizer`, whose `step` now passes the commit gate.

        `private` objects differ between ranks, `replicated` ones are equal on all; both need `state_dict` and
        `load_state_dict`. All optimizers of a step must step after its last backward pass.
        """
        for each in (optimizer, *more):
            self._registry.optimizers.append(each)
            self._install_gate(each, "step")
        if scaler is not None and self._copy is not None:
            raise ScriptError("a GradScaler needs replica groups; use bfloat16, or agent.mesh(replicas=2) or more")
        if scaler is not None:
            self._install_gate(scaler, "step")
        named = {"scheduler": scheduler, "scaler": scaler, **replicated}
        self._registry.replicated |= {name: thing for name, thing in named.items() if thing is not None}
        self._generators += generators
        self._private |= private or {}
        return optimizer

    def log(self, **values: Any) -> None:
        """Keep scalars of the step being computed; call before `optimizer.step()`, with the same names always.

        They enter `history` on all ranks when the step commits.
        """
        if self.rehearsing:
            return
        if self._decision is not None:
            raise ScriptError("call agent.log() before optimizer.step(): values belong to the step that commits")
        self._logged |= {name: _number(value) for name, value in values.items()}
        if len(self._logged) > LOGGED_VALUES:
            raise ScriptError(f"agent.log() carries at most {LOGGED_VALUES} values per step")
        if not self.history.names:
            self.history.names = list(self._logged)

    # The loop ------------------------------------------------------------------------------------------

    def steps(self, data: DataSource, total: int) -> Iterator[tuple[int, Any]]:
        """Yield `(step, batch)` until `total` steps have been committed; `step` counts from 0.

        `data` is an iterable of batches (repeated when exhausted) or, where ranks read different data, a
        function of (rank, world size) that returns one. Spares wait inside until they are needed, and leave
        the process when the run is over. An iteration without `optimizer.step()` accumulates gradients: the
        next one continues the same step.
        """
        self._total = total
        self._feed = feed = Feed(data, self._generators)
        yield from self._rehearse(feed)
        if self._settings.resume is not None and self.rank >= 0:
            self._worker.resume_from(Path(self._settings.resume))
        self._worker.register(self._introduce)
        self._await_resume()
        while True:
            if self.version >= total:
                if self._finish():
                    return
                continue
            yield from self._one_step(feed)
            if self._decision is None or not self._decision:
                self._await_resume()

    def _one_step(self, feed: Feed) -> Iterator[tuple[int, Any]]:
        """Run the body until the gate has decided; afterwards `_decision` says whether the step committed."""
        self._decision, self._logged = None, {}
        faults.script.step = self.version + 1
        faults.at("draw")
        step = self.version
        if not self._commit.begin(self._epoch):
            return
        self._group.begin_step()
        while self._decision is None:
            batch = feed.next()
            faults.at("step")
            yield step, batch
            if self._decision is None and (self._commit.stopped or self._group.failed):
                return
        if self._decision:
            faults.at("applied")
            self._conclude(feed)

    def _conclude(self, feed: Feed) -> None:
        """The step is applied: bring everything that describes it to its new version."""
        entry = self._journal.entries[self.rank]
        self._samples = entry.samples
        self.history.append([each.logged for each in self._journal.entries])
        self._registry.snapshot()
        feed.commit(codec.decode(entry.private)["rng"])
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
        self._forget_iteration()
        if self._copy is not None:
            self._copy.begin()
        self._worker.drop_offer()
        assert self._feed is not None
        if self._worker.promoted:
            self._worker.promoted = False
            self._take_rank(self._feed)
        elif self._private:
            self._restore_private(codec.decode(self._journal.entries[self.rank].private))
        self._feed.rewind()

    def _take_rank(self, feed: Feed) -> None:
        """Become the logical rank that was assigned, as its journal entry describes it."""
        os.environ["RANK"] = str(self.rank)
        faults.script.rank = self.rank
        entry = self._journal.entries[self.rank]
        private = codec.decode(entry.private)
        self._samples = entry.samples
        feed.open(self.rank, self.world_size)
        feed.seek(private["position"])
        feed.step_rng = private["rng"]
        self._restore_private(private)
        if self.version == 0:
            self._rehearsal.clear_moments()

    def _forget_iteration(self) -> None:
        for model in self._registry.models:
            forget_iteration(model)

    def _take_part(self, rank: int) -> None:
        """State for `rank` is about to arrive: hold the part of the model that belongs to it."""
        if self._mesh is not None:
            for model in self._registry.models:
                take_shard(model, self._mesh, rank)

    def _restore_private(self, private: dict[str, Any]) -> None:
        for name, thing in self._private.items():
            thing.load_state_dict(private["user"][name])

    def _finish(self) -> bool:
        """Wait until every rank has made its last step; False if a worker must be replaced first."""
        faults.at("end")
        self._worker.tell({"type": "done", "version": self.version})
        self._await_resume()
        return self._worker.finished

    # Rehearsal -----------------------------------------------------------------------------------------

    def _rehearse(self, feed: Feed) -> Iterator[tuple[int, Any]]:
        """Run the body without communication and undo it: settles buckets, touches memory, warms kernels."""
        if not self._registry.optimizers or not self._registry.models:
            raise ScriptError("call agent.wrap(model) and agent.register(optimizer) before agent.steps()")
        self._forget_iteration()
        self._registry.settle()
        feed.open(max(self.rank, 0), self.world_size)
        position, rng = feed.position(), journal.capture_rng(self._generators)
        user = {name: thing.state_dict() for name, thing in self._private.items()}
        self._rehearsal = Rehearsal(self._registry)
        feed.step_rng = rng
        for _ in range(REHEARSALS):
            self._buckets, self._decision = [], None
            feed.rewind()
            while self._decision is None:
                yield 0, feed.next()
        check_moments(self._registry.optimizers)
        faults.at("rehearsal")
        self._rehearsal.undo()
        self._forget_iteration()
        if self.rank >= 0:
            self._rehearsal.clear_moments()
        for name, thing in self._private.items():
            thing.load_state_dict(user[name])
        feed.close()
        if self.rank >= 0:
            feed.open(self.rank, self.world_size)
            feed.seek(position)
        feed.step_rng = rng
        journal.restore_rng(rng, self._generators)
        self._initial = {"rng": rng, "position": position, "user": user}
        self._initial_digest = state_digest(self._registry)
        self.rehearsing = False

    def _introduce(self) -> dict[str, Any]:
        first = Entry(0, (), codec.encode(self._initial, "private"))
        return {
            "layout": xxhash.xxh3_128(layout(self._registry, self._buckets).encode()).hexdigest(),
            "digest": self._initial_digest,
            "initial": first.to_bytes().hex() if self.version == 0 else None,
            "total": self._total,
            **self._describe_strategy(),
            "done": self.version >= self._total,
        }

    def _describe_strategy(self) -> dict[str, Any]:
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

    # The gate ------------------------------------------------------------------------------------------

    def _install_gate(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def gated(_: Any, *args: Any, **kwargs: Any) -> Any:
            copy = self._copy
            if copy is None or self.rehearsing:
                return self._gate(owner, lambda: original(*args, **kwargs))
            return self._gate(owner, lambda: copy.apply(owner, lambda: original(*args, **kwargs), original))

        # A bound method, because a scheduler made later wraps `step.__func__`.
        setattr(owner, name, types.MethodType(gated, owner))

    def _gate(self, owner: Any, apply: Callable[[], Any]) -> Any:
        """Apply the optimizer if the step commits. Decided once for each step, by its first optimizer."""
        if self._decision is None:
            self._decision = True if self.rehearsing else self._decide()
            if self._decision and not self.rehearsing:
                self._worker.tap.hold()
                faults.at("apply")
                faults.at("inside")
        if not self._decision:
            return None
        if not self.rehearsing:
            self._worker.tap.capture(owner, self.version)
        calls, result = self._group.calls, apply()
        if self.rehearsing and self._group.calls > calls:
            raise ScriptError(
                "the optimizer communicates in step(), where a lost worker could not be replaced exactly; use one "
                "that works on each rank's own part, and reduce before optimizer.step()"
            )
        return result

    def _decide(self) -> bool:
        assert self._feed is not None
        faults.at("gate")
        if self._group.failed:
            return False
        broadcast_buffers(self._group, self._registry)
        if self._copy is not None and not self._group.failed:
            faults.at("copy")
            self._copy.exchange(self._group)
        if self._group.failed or not self._commit.prepare():
            return False
        faults.at("exchange")
        exchanged = self._journal.exchange(self._group, self._entry(self._feed))
        faults.at("doubt")
        limits = self._settings.limits
        return self._commit.decide(exchanged, limits.quiesce + limits.spare + limits.form + limits.coordinator)

    def _entry(self, feed: Feed) -> Entry:
        private = {
            "rng": journal.capture_rng(self._generators),
            "position": feed.position(),
            "user": {name: thing.state_dict() for name, thing in self._private.items()},
        }
        logged = tuple(self._logged.get(name, float("nan")) for name in self.history.names)
        return Entry(self._samples + feed.samples(), logged, codec.encode(private, "private"))

    def _reduce(self, bucket: torch.Tensor, index: int) -> torch.futures.Future[torch.Tensor]:
        """Average one bucket of gradients."""
        if self.rehearsing:
            self._buckets.append([index, bucket.numel()])
        elif self._decision is not None:
            raise ScriptError(
                "a backward pass ran after optimizer.step() in the same step; the agent commits a step at its "
                "first optimizer.step(), so run all backward passes before it"
            )
        faults.at("backward", bucket=index)
        future = average_gradients(self._group, bucket)
        faults.at("reduce", bucket=index)
        return future


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _fault(point: str) -> None:
    faults.at(point)

"""A c10d process group whose members can change under the model.

DDP, FSDP and user code hold one `LiveGroup` for the whole run. Inside it sits the gloo group of the current
epoch, which is replaced when a worker is. Three states:

- *loopback*: no members yet. Collectives act on this process alone, which is what a rehearsal needs.
- *formed*: collectives run on the epoch's gloo group.
- *broken*: the epoch is over. Collectives return at once and their results are garbage; `failed` says so,
  and the commit gate refuses the step.

Gloo cannot be aborted and can lose a wake-up when a peer dies in mid-message, so the training thread never
waits for gloo itself: every collective returns a completion that the agent owns, and `cut` fulfils them all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import GroupName

from agent import nccl
from agent.members import CPU, WHOLE, Members, OwnedWork, Tensor


class LiveGroup(dist.ProcessGroup):
    """The process group that the model sees. See the module's text."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub lacks this constructor
        self._rank, self._size = rank, size
        self._lock = threading.Lock()
        self._state = "loopback"
        self._members: Members | None = None
        self._pending: set[OwnedWork] = set()
        self._graveyard: list[Members] = []
        self.issued = 0
        """Collectives begun since the members were installed."""
        self.calls = 0
        """Collectives asked for, in any state."""
        self.failed = False
        """Whether a collective since the last `begin_step` failed or was cut."""
        self.partitions: dict[str, list[list[int]]] = {}
        """Ways to divide the ranks into rows, each with a group of its own (see `agent.mesh`)."""
        self.make_row: Callable[[GroupName], dist.ProcessGroup] | None = None
        """Answers `dist.new_group` while a mesh is made."""
        self.on_break: Callable[[str], None] = lambda reason: None
        """Called from any thread when a collective fails without `cut` having been called."""
        self.on_contribution: Callable[[Tensor], None] = lambda tensor: None
        """Called with this rank's part of a reduction of gradients, before it begins."""

    # Membership ------------------------------------------------------------------------------------

    def install(self, members: Members) -> None:
        """Go on with the members of a new epoch. Call from the training thread, between steps."""
        self.cut()
        self._bury_dead()
        with self._lock:
            self._members, self._state = members, "formed"
            self._rank, self._size = members.rank, members.size
            self.failed, self.issued = False, 0

    @property
    def formed(self) -> bool:
        """Whether collectives now run between members."""
        return self._state == "formed"

    def begin_step(self) -> None:
        """Forget the failures of earlier steps, unless the group is still broken."""
        with self._lock:
            self.failed = self._state == "broken"

    def cut(self) -> None:
        """End the epoch: complete what is outstanding, disconnect, and answer later calls with garbage."""
        self._break(self._members)

    def _break(self, members: Members | None) -> bool:
        with self._lock:
            if members is None or members is not self._members or self._state != "formed":
                return False
            # A rank that never comes to the next epoch must not look as if it had begun collectives in it.
            self._state, self.failed, self.issued = "broken", True, 0
            pending, self._pending = self._pending, set()
            self._graveyard.append(members)
        members.shut_sockets()
        for work in pending:
            work.complete()
        return True

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no collective of a dead epoch can still write; False if one is stuck after `seconds`.

        A stuck one only waits for a wake-up that never comes; it does not write. Later calls do not wait for it again.
        """
        deadline = time.monotonic() + seconds
        while running := [dead for dead in self._graveyard if not dead.stuck and not dead.is_idle()]:
            if time.monotonic() > deadline:
                for dead in running:
                    dead.stuck = True
                return False
            time.sleep(0.001)
        return True

    def _bury_dead(self) -> None:
        """Drop dead groups whose threads are done; the destructor of the others would block."""
        idle = [dead for dead in self._graveyard if dead.is_idle()]
        self._graveyard = [dead for dead in self._graveyard if dead not in idle]
        if idle:
            threading.Thread(target=idle.clear, name="agent-bury", daemon=True).start()

    # Collectives -----------------------------------------------------------------------------------

    def _issue(
        self,
        name: str,
        result: Any,
        start: Callable[[Any], Any],
        alone: Callable[[], None],
        *,
        finish: Callable[[], None] = lambda: None,
        part: str = WHOLE,
    ) -> OwnedWork:
        """Begin a collective: `start` on the group of `part` if the members are connected, else `alone`.

        `finish` runs once gloo has succeeded, before the completion; never after a cut.
        """
        device = _device_of(result)
        work = OwnedWork(result, device)
        with self._lock:
            self.calls += 1
            members = self._members
            if self._state == "formed" and not self.failed and members is not None:
                self._pending.add(work)
                self.issued += 1
            else:
                self.failed = self._state != "loopback"
                alone()  # a broken step's results count for nothing, but finite ones surprise no script
                work.complete()
                return work
        try:
            inner = start(members.part(part, device))
            members.works.append(inner)
            if device.type == "cuda":
                nccl.complete_after(inner, device, lambda: self._fulfil(work, finish))
                return work
            inner.get_future().add_done_callback(lambda future: self._settle(name, members, work, future, finish))
        except RuntimeError as error:
            self._fail(name, members, error)
        if len(members.works) > 64:
            members.is_idle()
        return work

    def _settle(
        self,
        name: str,
        members: Members,
        work: OwnedWork,
        future: torch.futures.Future[Any],
        finish: Callable[[], None],
    ) -> None:
        try:
            future.value()
        except Exception as error:  # gloo raises RuntimeError subclasses and plain ones, by version
            self._fail(name, members, error)
        self._fulfil(work, finish)

    def _fulfil(self, work: OwnedWork, finish: Callable[[], None]) -> None:
        with self._lock:
            waited_for = work in self._pending
            self._pending.discard(work)
        if waited_for:
            finish()
        work.complete()

    def settle(self) -> None:
        """Wait until every collective of the step has come out: on a GPU it has only been begun so far."""
        nccl.settle(lambda: self.failed)

    def _fail(self, name: str, members: Members, error: Exception) -> None:
        if self._break(members):
            # gloo begins with its source line in brackets and ends with advice
            reason = str(error).splitlines()[0].partition("] ")[2].partition(". ")[0] or str(error)
            self.on_break(f"{name}: {reason}")

    def reduce_bucket(self, bucket: Tensor) -> torch.futures.Future[Tensor]:
        """Sum a DDP bucket over the members, in place; the future's value is the bucket."""
        return self._issue("allreduce", bucket, lambda gloo: gloo.allreduce([bucket]), lambda: None).future

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> OwnedWork:  # type: ignore[override]
        opts = opts or c10d.AllreduceOptions()
        return self._issue("allreduce", tensors, lambda gloo: gloo.allreduce(tensors, opts), lambda: None)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> OwnedWork:  # type: ignore[override]
        opts = opts or c10d.BroadcastOptions()
        return self._issue("broadcast", tensors, lambda gloo: gloo.broadcast(tensors, opts), lambda: None)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> OwnedWork:  # type: ignore[override]
        opts = opts or c10d.AllgatherOptions()

        def alone() -> None:
            for slots, value in zip(outputs, inputs, strict=True):
                for slot in slots:
                    slot.copy_(value)

        return self._issue("allgather", outputs, lambda gloo: gloo.allgather(outputs, inputs, opts), alone)

    def _allgather_base(self, output: Tensor, value: Tensor, opts: Any = None) -> OwnedWork:
        opts = opts or c10d.AllgatherOptions()

        def alone() -> None:
            output.view(self._size, -1).copy_(value.reshape(1, -1).expand(self._size, -1))

        return self._issue("allgather", output, lambda gloo: gloo._allgather_base(output, value, opts), alone)

    def _reduce_scatter_base(self, output: Tensor, value: Tensor, opts: Any = None) -> OwnedWork:
        """Made of an exchange and a local sum in rank order: gloo's own has no future to wait on."""
        average = opts is not None and opts.reduceOp == c10d.ReduceOp.AVG
        if not average and opts is not None and opts.reduceOp != c10d.ReduceOp.SUM:
            raise ValueError(f"reduce-scatter with {opts.reduceOp} is not supported; use SUM or AVG")
        value = value.contiguous()
        self.on_contribution(value)
        received = torch.empty_like(value)
        parts = received.view(self._size, *output.shape)

        def add() -> None:
            output.copy_(parts[0])
            for part in parts[1:]:
                output.add_(part)
            if average:
                output.div_(self._size)

        def alone() -> None:
            output.copy_(value.view(self._size, *output.shape)[max(self._rank, 0)])

        def start(gloo: Any) -> Any:
            return gloo.alltoall_base(received, value, [], [], c10d.AllToAllOptions())

        return self._issue("reduce_scatter", output, start, alone, finish=add)

    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base  # type: ignore[assignment]
    """The names under which torch.distributed calls them from 2.13 on."""

    def all_gather_single_coalesced(self, outputs: list[Tensor], values: list[Tensor], opts: Any = None) -> OwnedWork:
        return _last([self._allgather_base(*pair, opts) for pair in zip(outputs, values, strict=True)])

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], values: list[Tensor], opts: Any = None
    ) -> OwnedWork:
        return _last([self._reduce_scatter_base(*pair, opts) for pair in zip(outputs, values, strict=True)])

    def alltoall_base(
        self, output: Tensor, value: Tensor, output_sizes: list[int], value_sizes: list[int], opts: Any = None
    ) -> OwnedWork:
        opts = opts or c10d.AllToAllOptions()
        return self._issue(
            "alltoall",
            output,
            lambda gloo: gloo.alltoall_base(output, value, output_sizes, value_sizes, opts),
            lambda: None,
        )

    def barrier(self, opts: Any = None) -> OwnedWork:
        opts = opts or c10d.BarrierOptions()
        return self._issue("barrier", None, lambda gloo: gloo.barrier(opts), lambda: None)

    def new_group(self, ranks: list[int], *, group_name: GroupName, **_: Any) -> dist.ProcessGroup:
        """What `dist.new_group` and `init_device_mesh` call. Raises RuntimeError unless `agent.mesh` is at work."""
        if self.make_row is not None:
            return self.make_row(group_name)
        raise RuntimeError(
            "groups of some of the ranks must come from the agent, or a replaced worker would be missing from "
            "them; use `mesh = agent.mesh(replicas=...)` instead of init_device_mesh or new_group"
        )

    # What c10d asks of a group -----------------------------------------------------------------------

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return BACKEND


BACKEND = "yoco_live"


def make_default_group(rank: int, size: int) -> LiveGroup:
    """Make a loopback `LiveGroup` the process's default group (`dist.get_rank()` and so on use it).

    Raises RuntimeError if the script already initialised torch.distributed.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "torch.distributed is already initialised; let Agent.from_env() do it and remove "
            "the call of init_process_group"
        )
    made: list[LiveGroup] = []

    def create(store: Any, rank: int, size: int, timeout: Any) -> LiveGroup:
        made.append(LiveGroup(rank, size))
        return made[-1]

    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])
    dist.init_process_group(BACKEND, store=c10d.HashStore(), rank=max(rank, 0), world_size=size)
    group = made[-1]
    group._rank = rank
    return group


def _device_of(result: Any) -> torch.device:
    """Where the tensors of a collective lie."""
    while isinstance(result, list) and result:
        result = result[0]
    return result.device if isinstance(result, Tensor) else CPU


def _last(works: list[OwnedWork]) -> OwnedWork:
    for work in works[:-1]:
        work.wait()
    return works[-1]

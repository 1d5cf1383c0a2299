"""Data-parallel training over a `LiveGroup`: DDP with a communication hook, and equal buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from agent.group import LiveGroup
from agent.state import Registry

Reduce = Callable[[torch.Tensor, int], torch.futures.Future[torch.Tensor]]


def data_parallel(
    model: torch.nn.Module, group: LiveGroup, reduce: Reduce, options: dict[str, Any]
) -> DistributedDataParallel:
    """DDP whose buckets go through `reduce`. Raises ValueError for options that cannot be exact."""
    if options.get("find_unused_parameters"):
        raise ValueError("find_unused_parameters=True is not supported: every parameter must take part in each step")
    if options.pop("broadcast_buffers", True) is False and list(model.buffers()):
        raise ValueError("broadcast_buffers=False is not supported: replicas would differ")
    wrapped = DistributedDataParallel(model, process_group=group, forward_sync_buffers=False, **options)

    def hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return reduce(bucket.buffer(), bucket.index())

    # DDP reads the annotations of the hook's parameters; it insists on the classes, not their names.
    hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    wrapped.register_comm_hook(None, hook)
    return wrapped


def average_gradients(group: LiveGroup, bucket: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Divide first, then sum, as DDP's own hook does."""
    bucket.div_(group.size())
    return group.reduce_bucket(bucket)


@torch.no_grad()
def broadcast_buffers(group: LiveGroup, registry: Registry) -> None:
    """Give all ranks the buffers of rank 0, e.g. running statistics, one message for each data type."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for _, tensor in registry.buffers():
        if tensor.numel():
            by_type.setdefault(tensor.dtype, []).append(tensor.detach())
    for tensors in by_type.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        group.broadcast([flat]).wait()
        if group.failed:
            return
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

"""NCCL groups and GPU streams. **Not tested: no GPU was at hand.** Nothing here runs where CUDA is absent.

Collectives on GPU tensors go through an NCCL group beside each gloo group, which keeps what lies in CPU memory. NCCL
runs on its own stream: a side stream waits for it and for what follows, and fulfils the completion that the agent
owns, so that backward goes on meanwhile. The commit gate waits until the GPU has done all of it (`settle`), because
an optimizer must not run before its gradients are known to be whole. `abort` ends kernels that wait for a dead peer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

POLL_SECONDS = 0.0005


def available() -> bool:
    """Whether this process trains on GPUs that NCCL can connect."""
    return torch.cuda.is_available() and dist.is_nccl_available()


def connect(store: c10d.Store, rank: int, size: int, seconds: float) -> Any:
    """An NCCL group over the same members as a gloo group; its connections are made by the first collective."""
    # By default torch ends the process when a peer is lost; here the agent decides.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=seconds)
    return dist.ProcessGroupNCCL(c10d.PrefixStore("nccl", store), rank, size, options)


def complete_after(inner: c10d.Work, device: torch.device, then: Callable[[], None]) -> None:
    """Let a side stream wait for `inner`, and run `then` in that stream's order. Does not block this thread."""
    stream = _side_streams.get(device.index)
    if stream is None:
        stream = _side_streams[device.index] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        inner.wait()
        then()


_side_streams: dict[int | None, torch.cuda.Stream] = {}


def settle(broken: Callable[[], bool]) -> None:
    """Wait until the GPU has done all that was asked of it, or the group is broken."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    for stream in _side_streams.values():
        torch.cuda.current_stream().wait_stream(stream)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    while not done.query() and not broken():  # type: ignore[no-untyped-call]
        time.sleep(POLL_SECONDS)


def abort(group: Any) -> None:
    """End the group's kernels; what they were to write is garbage."""
    group.abort()

"""Scripted faults, for tests and the demonstration. Nothing happens unless `YOCO_FAULTS` is set.

`YOCO_FAULTS` holds faults separated by `;`, each `action:key=value,…`:

    kill:rank=2,step=5,point=backward        SIGKILL the worker of logical rank 2 in the backward of step 5
    stop:rank=0,step=3,point=gate            SIGSTOP it
    hang:…  exit:…  raise:…  break:…         sleep for ever; exit status 1; raise; cut the group's connections
    device:…                                 raise what torch raises when a GPU fails
    mark:rank=1,step=5,point=sick_gradient   spoil a number: sick_gradient, sick_parameters, corrupt (a segment)
    kill:who=spare,point=receive,progress=0.5

Keys: `rank`, `step` (the one being computed, from 1), `point`, `bucket`, `progress` (fires once it is reached),
`delay_ms`, `who` (`worker`, default; `spare` = a process that was started as a spare; `coordinator`; `any`). Each
fault fires once in a run: a marker in `YOCO_FAULTS_DIR` sees to that. Points: rehearsal, draw, step, forward,
backward, reduce, gate, copy, exchange, doubt, apply, inside, applied, boundary, serve, receive, form, ready, corrupt,
end; with `fully_shard` also allgather, reduce_scatter, allreduce (before such a collective) and in_allgather,
in_reduce_scatter, in_allreduce (while it runs), of which `bucket` counts those of a step; in the coordinator: fence,
quiesce, plan, planned, sent, all-ready, resume, resumed, committed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class FaultInjected(RuntimeError):
    """Raised by the action `raise`."""


@dataclass(frozen=True)
class Fault:
    """One scripted fault. Raises ValueError when its text is wrong."""

    number: int
    action: str
    point: str
    rank: int | None = None
    step: int | None = None
    bucket: int | None = None
    progress: float = 0.0
    who: str = "worker"
    delay_ms: float = 0.0

    @classmethod
    def parse(cls, number: int, text: str) -> Fault:
        action, _, rest = text.strip().partition(":")
        values = dict(item.split("=", 1) for item in rest.split(",") if item)
        known = {"rank": int, "step": int, "bucket": int, "progress": float, "who": str, "delay_ms": float}
        point = values.pop("point", "")
        if action not in _ACTIONS or not point or set(values) - set(known):
            raise ValueError(f"YOCO_FAULTS: cannot read {text!r}; write e.g. kill:rank=2,step=5,point=backward")
        return cls(number, action, point, **{key: known[key](value) for key, value in values.items()})


class Script:
    """The faults that this process must bring about."""

    def __init__(self) -> None:
        text = os.environ.get("YOCO_FAULTS", "")
        parts = [part for part in text.split(";") if part.strip()]
        self.faults = [Fault.parse(number, part) for number, part in enumerate(parts)]
        self.rank = -1
        self.step = 0
        self.who = "worker"
        self.cut: Callable[[], None] = lambda: None

    def at(self, point: str, bucket: int | None, progress: float) -> bool:
        for fault in self.faults:
            if (
                fault.point == point
                and fault.rank in (None, self.rank)
                and fault.step in (None, self.step)
                and fault.bucket in (None, bucket)
                and fault.who in ("any", self.who)
                and progress >= fault.progress
                and _claim(fault.number)
            ):
                self._act(fault)
                return True
        return False

    def _act(self, fault: Fault) -> None:
        if fault.delay_ms:
            threading.Timer(fault.delay_ms / 1000, _ACTIONS[fault.action], (self,)).start()
        else:
            _ACTIONS[fault.action](self)


def _claim(number: int) -> bool:
    """Whether this process is the first to bring fault `number` about."""
    folder = os.environ.get("YOCO_FAULTS_DIR")
    if folder is None:
        return True
    try:
        (Path(folder) / f"fault-{number}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _hang(script: Script) -> None:
    while True:
        time.sleep(60)


def _raise(script: Script) -> None:
    raise FaultInjected("scripted fault")


def _raise_as_device(script: Script) -> None:
    import torch

    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered (scripted fault)")


_ACTIONS: dict[str, Callable[[Script], None]] = {
    "kill": lambda script: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda script: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": lambda script: os._exit(1),
    "hang": _hang,
    "raise": _raise,
    "device": _raise_as_device,
    "break": lambda script: script.cut(),
    "mark": lambda script: None,
}

script = Script()


def at(point: str, *, bucket: int | None = None, progress: float = 1.0) -> bool:
    """A place where a fault may happen. Returns whether one fired (and left this process alive)."""
    return bool(script.faults) and script.at(point, bucket, progress)

"""What a run was started with: written by its first launcher, read by its coordinator and told to other hosts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from agent.settings import Limits

FILE = "job.json"
WithoutSpare = Literal["wait", "shrink", "stop"]
WITHOUT_SPARE: tuple[WithoutSpare, ...] = ("wait", "shrink", "stop")


@dataclass(frozen=True)
class Job:
    """The settings that hold for the whole run; no secrets."""

    run_id: str
    node: str
    """The name of the first host."""
    hosts: int
    workers: int
    """Ranks of the whole run, as many on each host."""
    command: list[str]
    """The training script and its arguments."""
    streams: int
    limits: Limits
    gpus: int
    gpu_model: str = "none"
    sigterm_notice: float | None = None
    """Seconds from SIGTERM until a process is killed; None: SIGTERM just ends it."""
    nan_checks: bool = False
    """Look for sick devices by numbers that are not finite."""
    without_spare: WithoutSpare = "wait"
    """What to do about a lost rank when no spare is free."""
    pool: str | None = None
    """The directory in which runs find those whose places they may take."""
    priority: int = 0
    preemptible: bool = False
    resume: str | None = None
    """The directory of a kept state to begin with."""
    spool: str | None = None
    report_url: str | None = None
    report_key_env: str | None = None

    @property
    def local_workers(self) -> int:
        """Ranks that each host starts."""
        return self.workers // self.hosts

    def write(self, folder: Path) -> None:
        """Leave it in the run's state directory. Raises OSError."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Job:
        """Raises OSError, or ValueError if the file is damaged."""
        return cls.from_values(json.loads((folder / FILE).read_text()))

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Job:
        """From what `told` gave. Raises ValueError for what is no job."""
        try:
            return cls(**{**values, "limits": Limits(**values["limits"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"this is no description of a run: {error}") from error

    def told(self) -> dict[str, Any]:
        """For the launchers of other hosts, which report to nobody themselves."""
        return {**asdict(self), "spool": None, "report_url": None, "report_key_env": None}

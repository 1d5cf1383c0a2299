"""What the launcher tells a worker through its environment, and the time limits of a run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

WORKER_VARIABLE = "YOCO_WORKER"
SECRET_VARIABLE = "YOCO_SECRET"  # noqa: S105 (the name of a variable)


class NotLaunched(RuntimeError):
    """The process was not started by the agent's launcher."""


@dataclass(frozen=True)
class Limits:
    """Seconds that bound every wait of a run."""

    start: float = 180.0
    """From the launch until every worker has registered."""
    quiesce: float = 10.0
    """From the end of an epoch until every survivor has said where it stands."""
    form: float = 60.0
    """From a plan until every member is connected and holds the state."""
    spare: float = 60.0
    """Waiting for a spare when none is free."""
    settle: float = 0.15
    """From a broken connection without a death until the same members connect again."""
    heartbeat: float = 15.0
    """Silence of a worker after which it counts as lost."""
    hang: float = 600.0
    """One step without progress after which a worker counts as hung."""
    coordinator: float = 60.0
    """A worker's wait for an unreachable coordinator."""


@dataclass(frozen=True)
class WorkerSettings:
    """One worker's place in the run."""

    worker: str
    run_id: str
    node: str
    host: str
    coordinator: str
    rank: int
    world_size: int
    streams: int
    limits: Limits
    nan_checks: bool = False
    sigterm_notice: float | None = None
    """Seconds from SIGTERM until the process is killed; None: SIGTERM just ends it."""
    ports: tuple[int, int] = (0, 0)
    """Lowest and highest port to listen on; (0, 0): any."""
    resume: str | None = None
    """The directory of a kept state to begin with."""

    def to_environment(self) -> dict[str, str]:
        return {WORKER_VARIABLE: json.dumps(asdict(self), separators=(",", ":"))}

    @classmethod
    def from_environment(cls) -> WorkerSettings:
        """Raises NotLaunched with what to do."""
        text = os.environ.get(WORKER_VARIABLE)
        if text is None:
            raise NotLaunched(
                "this script was not started by the agent; run "
                "`python -m agent run --workers 4 --spares 1 SCRIPT` instead of `python SCRIPT`"
            )
        values: dict[str, Any] = json.loads(text)
        values["limits"] = Limits(**values["limits"])
        return cls(**values)


def job_secret() -> bytes:
    """The secret that every connection of this job must prove. Raises NotLaunched without one."""
    secret = os.environ.get(SECRET_VARIABLE, "")
    if len(secret) < 16:
        raise NotLaunched(f"{SECRET_VARIABLE} is missing or shorter than 16 characters")
    return secret.encode()

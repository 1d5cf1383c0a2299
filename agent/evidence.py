"""Where the facts of incidents go: a local file always, and the service's reporter where one is configured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agent.incidents import Incident
from agent.reporting import IncidentReporter

FLUSH_SECONDS = 15.0


class Evidence:
    """States facts in order on a thread of its own: recovery never waits for a disk or a network."""

    def __init__(self, folder: Path, run_id: str, reporter: IncidentReporter | None, *, online: bool = False) -> None:
        """`online`: the reporter has a service to send to."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "incidents.jsonl").open("a")
        self._run_id = run_id
        self._reporter, self._online = reporter, online
        self._thread = ThreadPoolExecutor(1, "agent-evidence")

    def describe(self, *, strategy: str, replicas: int) -> None:
        """How the run trains, as its workers say: `ddp`, `hsdp` or `fsdp`, and how many replica groups."""
        if self._reporter is not None:
            self._reporter.workload |= {"strategy": strategy, "replicas": replicas}

    def detected(self, incident: Incident) -> None:
        self._state("detected", incident)

    def amended(self, incident: Incident) -> None:
        self._state("amended", incident)

    def resolved(self, incident: Incident) -> None:
        self._state("resolved", incident)

    def heartbeat(self, step: int) -> None:
        """The run lives and has committed `step`."""
        reporter = self._reporter
        if reporter is not None:
            reporter.heartbeat(run_id=self._run_id, step=step)

    def run_ended(self, step: int) -> None:
        """The run is over and `step` was its last committed one."""
        reporter = self._reporter
        if reporter is not None:
            self._thread.submit(lambda: reporter.run_ended(run_id=self._run_id, step=step))

    def close(self) -> None:
        """Wait until everything is on disk, and a little for the service to answer."""
        self._thread.shutdown(wait=True)
        if self._reporter is not None:
            if self._online and not self._reporter.flush(FLUSH_SECONDS):
                print("agent: some reports are not acknowledged yet; they stay in the spool", file=sys.stderr)
            self._reporter.close()
        self._file.close()

    def _state(self, event: str, incident: Incident) -> None:
        record = incident.record
        self._thread.submit(self._write, event, record.payload())
        if self._reporter is not None:
            tell: Callable[[Any], Any] = getattr(self._reporter, f"incident_{event}")
            self._thread.submit(tell, record)

    def _write(self, event: str, payload: dict[str, Any]) -> None:
        self._file.write(json.dumps({"event": event, **payload}) + "\n")
        self._file.flush()

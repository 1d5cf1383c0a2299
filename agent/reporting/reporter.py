"""What the agent calls: state a fact, have it on disk when the call returns, and go on training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from agent.reporting.client import ServiceClient
from agent.reporting.incident import IncidentRecord, json_value, rfc3339
from agent.reporting.sender import Sender
from agent.reporting.spool import Durability, LiveBoot, ReportClock, newest_id_ms, payload_encode

log = logging.getLogger("agent.reporting")

SCHEMA_VERSION = "1.0"
DETAIL_BYTES = 64 * 1024
"""A trigger's detail beyond this size is cut: no report may outgrow a request."""

ReportType = Literal["incident.detected", "incident.resolved", "incident.amended"]


class IncidentReporter:
    """Writes reports to the spool in `spool_dir` and sends them to the service at `url` in the background.

    Every method returns without waiting for the network (except `flush`) and never raises: training goes on
    whatever happens here; what goes wrong is logged once, in one sentence. `url` `None` spools only.
    """

    def __init__(
        self,
        spool_dir: Path,
        url: str | None,
        key: str | None,
        agent_id: str,
        workload: dict[str, Any],
        *,
        heartbeat_interval_s: float = 5.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.agent_id = agent_id
        self.workload = json_value(workload)
        self._now = now
        self._boot = LiveBoot(spool_dir, agent_id=agent_id)
        try:
            floor_ms = newest_id_ms(spool_dir)
        except Exception as error:
            log.warning("The newest id in %s cannot be read: %s", spool_dir, error)
            floor_ms = 0
        self._clock = ReportClock(floor_ms=floor_ms, now=now)
        self._steps: dict[str, int] = {}
        self._sender: Sender | None = None
        if url is not None:
            self._sender = Sender(
                root=spool_dir,
                live=self._boot,
                client=ServiceClient(url=url, key=key),
                heartbeat_interval_s=heartbeat_interval_s,
            )
            self._sender.start()

    @property
    def boot_id(self) -> str:
        """Names this opening of the spool in every report."""
        return self._boot.boot_id

    def incident_detected(self, record: IncidentRecord) -> bool:
        """Report that an incident began. True when the report is on disk; False when the disk refuses it."""
        return self._report("incident.detected", record)

    def incident_resolved(self, record: IncidentRecord) -> bool:
        """Report how an incident ended, with everything known about it. Returns as `incident_detected`."""
        return self._report("incident.resolved", record)

    def incident_amended(self, record: IncidentRecord) -> bool:
        """Report what became known about an incident later. Returns as `incident_detected`."""
        return self._report("incident.amended", record)

    def heartbeat(self, *, run_id: str, step: int) -> None:
        """Say that the run lives and stands at `step`. Kept in memory only: a newer one replaces it."""
        try:
            self._steps[run_id] = step
            if self._sender is not None:
                self._sender.heartbeat(self._heartbeat(run_id), self.workload)
        except Exception:
            log.exception("A heartbeat could not be sent.")

    def run_ended(self, *, run_id: str, step: int | None = None) -> bool:
        """Say that the run ended in order, so that its silence is no incident. `step`: its last committed one.

        Returns as `incident_detected`.
        """
        try:
            if self._sender is not None:
                self._sender.heartbeat_forget(run_id)
            if step is not None:
                self._steps[run_id] = step
            heartbeat = dict(self._heartbeat(run_id), run_ended=True, workload=self.workload)
            durability = self._boot.run_ended_append(heartbeat)
            return self._appended(durability)
        except Exception:
            log.exception("The end of run %s could not be reported.", run_id)
            return False

    def flush(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until the service has answered for everything in the spool."""
        try:
            return self._boot.done() if self._sender is None else self._sender.flush(timeout_s)
        except Exception:
            log.exception("The spool could not be flushed.")
            return False

    def close(self) -> None:
        """Stop sending and release the spool.

        What was not sent is sent by the next agent or `agent spool flush`.
        """
        try:
            if self._sender is not None:
                self._sender.stop(timeout_s=2.0)
            self._boot.close()
        except Exception:
            log.exception("The spool could not be closed.")

    def _report(self, report_type: ReportType, record: IncidentRecord) -> bool:
        try:
            facts = record.payload()
            detail_bytes = len(payload_encode(facts["trigger"]["detail"]))
            if detail_bytes > DETAIL_BYTES:
                facts["trigger"]["detail"] = {"too_large_bytes": detail_bytes}

            def build(seq: int) -> dict[str, Any]:
                return {
                    "schema_version": SCHEMA_VERSION,
                    "id": self._clock.id_next(),
                    "agent_id": self.agent_id,
                    "boot_id": self.boot_id,
                    "seq": seq,
                    "type": report_type,
                    "sent_at": self._moment(),
                    "workload": self.workload,
                    **facts,
                }

            return self._appended(self._boot.report_append(build))
        except Exception:
            incident_id = getattr(record, "incident_id", None)
            log.exception("A report (%s of incident %s) could not be written.", report_type, incident_id)
            return False

    def _appended(self, durability: Durability) -> bool:
        if self._sender is not None:
            self._sender.wake()
        return durability == "durable"

    def _heartbeat(self, run_id: str) -> dict[str, Any]:
        return {
            "agent_id": self.agent_id,
            "boot_id": self.boot_id,
            "seq": self._boot.last_seq,
            "run_id": run_id,
            "step": self._steps.get(run_id),
            "at": self._moment(),
        }

    def _moment(self) -> str:
        return rfc3339(datetime.fromtimestamp(self._now(), UTC))

"""Writing incidents: what arrives, what stays silent, and what people correct."""

from yoco.incidents.services.heartbeats import HeartbeatOutcome, heartbeat_record
from yoco.incidents.services.ingest import IngestOutcome, ReportResult, reports_ingest
from yoco.incidents.services.regroup import incident_split, incidents_merge, regrouping_revert
from yoco.incidents.services.root_events import root_event_windows
from yoco.incidents.services.silence import silence_candidates, silence_sweep

__all__ = [
    "HeartbeatOutcome",
    "IngestOutcome",
    "ReportResult",
    "heartbeat_record",
    "incident_split",
    "incidents_merge",
    "regrouping_revert",
    "reports_ingest",
    "root_event_windows",
    "silence_candidates",
    "silence_sweep",
]

"""Writing incidents: what arrives, what stays silent, and what people correct."""

from yoco.incidents.services.heartbeats import HeartbeatOutcome, heartbeat_record
from yoco.incidents.services.ingest import IngestOutcome, ReportResult, reports_ingest
from yoco.incidents.services.regroup import (
    incidents_regroup,
    regrouping_contract,
    regrouping_decide,
    regrouping_propose,
    regrouping_withdraw,
)
from yoco.incidents.services.root_events import root_event_windows
from yoco.incidents.services.silence import silence_candidates, silence_sweep

__all__ = [
    "HeartbeatOutcome",
    "IngestOutcome",
    "ReportResult",
    "heartbeat_record",
    "incidents_regroup",
    "regrouping_contract",
    "regrouping_decide",
    "regrouping_propose",
    "regrouping_withdraw",
    "reports_ingest",
    "root_event_windows",
    "silence_candidates",
    "silence_sweep",
]

"""Writing incidents: what arrives, what stays silent, and what people correct."""

from yoco.incidents.services.heartbeats import heartbeat_record
from yoco.incidents.services.ingest import IngestOutcome, ReportResult, reports_ingest

__all__ = ["IngestOutcome", "ReportResult", "heartbeat_record", "reports_ingest"]

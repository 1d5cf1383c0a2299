"""Incident reports: durable on disk first, then sent until the service has answered for each."""

from agent.reporting.incident import IncidentRecord, new_incident_id
from agent.reporting.reporter import IncidentReporter

__all__ = ["IncidentRecord", "IncidentReporter", "new_incident_id"]

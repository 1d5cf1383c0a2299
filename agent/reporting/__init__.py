"""Incident reports: durable on disk first, then sent until the service has acknowledged them."""

from agent.reporting.incident import IncidentRecord, new_incident_id

__all__ = ["IncidentRecord", "new_incident_id"]

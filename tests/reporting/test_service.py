"""The agent's reporter against the service itself, over HTTP."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from agent.reporting import IncidentReporter
from tests.reporting.facts import WORKLOAD, detected, resolved
from yoco.incidents.models import Incident, RawReport

pytestmark = pytest.mark.django_db(transaction=True)


def recent(record):
    """The record's times moved to the last minute: the service refuses times ahead of its own."""
    shift = datetime.now(UTC) - timedelta(minutes=1) - record.phases.started_at
    names = ("started_at", "detected_at", "quiesced_at", "spare_ready_at", "state_moved_at", "state_verified_at")
    moved = {
        name: getattr(record.phases, name) + shift
        for name in (*names, "resumed_at")
        if getattr(record.phases, name) is not None
    }
    return replace(record, phases=replace(record.phases, **moved))


@pytest.fixture
def agent(tmp_path, live_server, world):
    agent = IncidentReporter(
        tmp_path / "spool", live_server.url, world.key_text, "agent-1", WORKLOAD, heartbeat_interval_s=0.05
    )
    yield agent
    agent.close()


def test_every_report_arrives_once_and_makes_one_incident(agent):
    records = [recent(detected(number)) for number in range(20)]
    for record in records:
        assert agent.incident_detected(record)
        assert agent.incident_resolved(replace(recent(resolved()), incident_id=record.incident_id))
        agent.heartbeat(run_id="run-1", step=1200)
    assert agent.run_ended(run_id="run-1")
    assert agent.flush(60)
    assert RawReport.objects.count() == 40
    assert Incident.objects.count() == 20


def test_a_wrong_key_keeps_everything(tmp_path, live_server, world, caplog):
    for key, taken in (("yoco_ingest_wrong", False), (world.key_text, True)):
        agent = IncidentReporter(tmp_path / "spool", live_server.url, key, "agent-1", WORKLOAD)
        agent.incident_detected(recent(detected()))
        assert agent.flush(60) == taken
        agent.close()
    assert "refuses the agent key (401" in caplog.text
    assert RawReport.objects.count() == 2

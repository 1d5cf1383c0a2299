"""Records and reporters that the tests share."""

from datetime import UTC, datetime, timedelta

from agent.reporting import IncidentRecord, IncidentReporter, new_incident_id
from agent.reporting.incident import Attempt, Phases, Progress, Spare, State, Trigger, Where

KEY = "yoco_test"
WORKLOAD = {
    "run_id": "run-1",
    "name": "digits",
    "framework": "pytorch",
    "agent_version": "0.1",
    "world_size": 4,
    "gpus": 4,
    "gpu_model": "H200",
    "gpus_per_node": 8,
    "strategy": "ddp",
    "replicas": 4,
}
START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def detected(number=0, **detail):
    return IncidentRecord(
        incident_id=new_incident_id(),
        kind="unplanned",
        trigger=Trigger("process_exit", detail={"signal": 9, "number": number, **detail}),
        where=Where("node-a", 3, "GPU-1"),
        phases=Phases(started_at=START, detected_at=START + timedelta(milliseconds=7)),
    )


def resolved(number=0, **detail):
    return IncidentRecord(
        incident_id=new_incident_id(),
        kind="unplanned",
        trigger=Trigger("process_exit", detail={"signal": 9, "number": number, **detail}),
        where=Where("node-a", 3, "GPU-1"),
        phases=Phases(*(START + timedelta(milliseconds=milliseconds) for milliseconds in (0, 7, 20, 40, 80, 81, 90))),
        progress=Progress(1200, 1201, 76800, 76864, 64, False, 1000, START - timedelta(minutes=5), 0.41),
        state=State("replica", 6_442_450_944, "xxh3-128", "ab" * 16, "ab" * 16),
        spare=Spare("node-b", "pool"),
        resolution="live_migration",
        attempts=(Attempt(START, "resumed", None),),
    )


def reporter(spool, url, **options):
    return IncidentReporter(spool, url, KEY, "agent-1", WORKLOAD, **{"heartbeat_interval_s": 0.05, **options})

"""Reports as an agent writes them."""

import copy
import datetime
import uuid
from typing import Any

BOOT = "0192f0a0-0000-7000-8000-000000000001"
DETECTED = datetime.datetime(2026, 11, 2, 9, 0, 5, tzinfo=datetime.UTC)


def text(at: datetime.datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def after(seconds: float) -> str:
    return text(DETECTED + datetime.timedelta(seconds=seconds))


def report(**changes: Any) -> dict[str, Any]:
    """A live migration without loss, told in one report. Keys such as `progress__samples_after` change inner fields."""
    body: dict[str, Any] = {
        "schema_version": "1.0",
        "id": str(uuid.uuid4()),
        "agent_id": "coordinator-1",
        "boot_id": BOOT,
        "seq": 1,
        "type": "incident.resolved",
        "incident_id": str(uuid.uuid4()),
        "root_event_id": None,
        "sent_at": after(200),
        "workload": {
            "run_id": "pretraining-7",
            "name": "Pre-training 7",
            "framework": "pytorch",
            "agent_version": "1.0.0",
            "world_size": 2048,
            "gpus": 2048,
            "gpu_model": "H200",
            "gpus_per_node": 8,
            "strategy": "hsdp",
            "replicas": 4,
        },
        "kind": "unplanned",
        "trigger": {"signal": "xid", "xid": 79, "detail": {"lines": 3}},
        "where": {"node": "node-17", "rank": 131, "gpu_uuid": "GPU-b6c3b2be"},
        "phases": {
            "started_at": after(-5),
            "detected_at": after(0),
            "quiesced_at": after(2),
            "spare_ready_at": after(30),
            "state_moved_at": after(100),
            "state_verified_at": after(103),
            "resumed_at": after(110),
        },
        "progress": {
            "last_committed_step": 1200,
            "first_step_after": 1201,
            "samples_before": 76800,
            "samples_after": 76864,
            "samples_per_step": 64,
            "checkpoint_loaded": False,
            "last_checkpoint_step": 1000,
            "last_checkpoint_at": after(-1800),
            "step_seconds": 0.41,
        },
        "state": {
            "source": "replica",
            "bytes": 6442450944,
            "digest_algorithm": "xxh3-128",
            "digest_sent": "ab" * 16,
            "digest_received": "ab" * 16,
        },
        "spare": {"node": "spare-1", "origin": "pool", "preempted": None},
        "resolution": "live_migration",
        "attempts": [],
    }
    for path, value in changes.items():
        *outer, last = path.split("__")
        place = body
        for name in outer:
            place = place[name]
        place[last] = value
    return body


def detected(**changes: Any) -> dict[str, Any]:
    """The first report of an incident that is still going on."""
    first = report(type="incident.detected", sent_at=after(1), resolution=None, progress=None, state=None, spare=None)
    first["phases"] = {"started_at": after(-5), "detected_at": after(0)}
    first.update(copy.deepcopy(changes))
    return first


def heartbeat(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "agent_id": "coordinator-1",
        "boot_id": BOOT,
        "seq": 0,
        "run_id": "pretraining-7",
        "step": 1200,
        "at": after(0),
    }
    body.update(changes)
    return body

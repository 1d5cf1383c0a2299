"""Invented incident reports for the demo's earlier contract year. Every row made from them is labelled *synthetic*."""

import datetime
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from yoco.core.ids import uuid7

GPUS = 2048
STEP_SECONDS = 12.5
SAMPLES_PER_STEP = 2048


@dataclass(frozen=True, slots=True)
class Episode:
    """What happens in one invented incident."""

    kind: str
    signal: str
    resolution: str
    xid: int | None = None


# 16 of 20 counted failures without loss: 80 %, below the guaranteed 90 %.
EPISODES = (
    [Episode("unplanned", "xid", "live_migration", 79)] * 5
    + [Episode("unplanned", "process_exit", "live_migration")] * 4
    + [Episode("unplanned", "xid", "live_migration", 94)] * 3
    + [Episode("unplanned", "heartbeat_lost", "live_migration")] * 2
    + [Episode("preventive", "ecc", "live_migration")] * 2
    + [Episode("unplanned", "hang", "checkpoint_restart")] * 2
    + [Episode("unplanned", "xid", "checkpoint_restart", 119)]
    + [Episode("unplanned", "power", "abandoned")]
    + [Episode("planned", "operator", "live_migration")] * 3
)


def _text(at: datetime.datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _progress(episode: Episode, step: int, checkpoint_at: datetime.datetime) -> dict[str, Any]:
    lost = 0 if episode.resolution == "live_migration" else step % 200
    first_after = step + 1 - lost
    return {
        "last_committed_step": step,
        "first_step_after": first_after,
        "samples_before": step * SAMPLES_PER_STEP,
        "samples_after": first_after * SAMPLES_PER_STEP,
        "samples_per_step": SAMPLES_PER_STEP,
        "checkpoint_loaded": lost > 0,
        "last_checkpoint_step": step - step % 200,
        "last_checkpoint_at": _text(checkpoint_at),
        "step_seconds": STEP_SECONDS,
    }


def _trigger(episode: Episode) -> dict[str, Any]:
    trigger: dict[str, Any] = {"signal": episode.signal, "detail": {}}
    if episode.xid is not None:
        trigger["xid"] = episode.xid
    if episode.signal == "ecc":
        trigger["detail"] = {
            "rule": "ecc_uncorrected",
            "readings": {"ecc_volatile_uncorrected": [0, 3]},
            "thresholds": {"ecc_uncorrected_new": 1},
        }
    return trigger


def synthetic_reports(
    *, start: datetime.datetime, end: datetime.datetime, seed: int = 20260803
) -> Iterator[dict[str, Any]]:
    """One `incident.resolved` report an episode, spread over [start, end) in the shape that agents send."""
    rng = random.Random(seed)  # noqa: S311  (invented data, reproducible on purpose)
    boot = uuid.UUID(int=rng.getrandbits(128), version=4)
    width = (end - start) / len(EPISODES)
    for seq, episode in enumerate(rng.sample(EPISODES, len(EPISODES)), start=1):
        started = start + width * (seq - 1) + width * rng.uniform(0.1, 0.8)
        started = started.replace(microsecond=0)
        migrated = episode.resolution == "live_migration"
        detected = started + datetime.timedelta(seconds=rng.randint(2, 40) if migrated else rng.randint(300, 900))
        moments = [detected]
        for low, high in ((1, 5), (20, 60), (60, 110), (2, 6), (3, 12)) if migrated else ((600, 1500),):
            moments.append(moments[-1] + datetime.timedelta(seconds=rng.randint(low, high)))
        phases = {"started_at": _text(started), "detected_at": _text(detected)}
        if migrated:
            names = ("quiesced_at", "spare_ready_at", "state_moved_at", "state_verified_at", "resumed_at")
            phases |= {name: _text(at) for name, at in zip(names, moments[1:], strict=True)}
        elif episode.resolution == "checkpoint_restart":
            phases["resumed_at"] = _text(moments[-1])
        step = rng.randint(20_000, 400_000)
        digest = f"{rng.getrandbits(128):032x}"
        node = f"node-{rng.randint(1, GPUS // 8):03d}"
        yield {
            "schema_version": "1.0",
            "id": str(uuid7()),
            "agent_id": "synthetic",
            "boot_id": str(boot),
            "seq": seq,
            "type": "incident.resolved",
            "incident_id": str(uuid7()),
            "root_event_id": None,
            "sent_at": _text(moments[-1] + datetime.timedelta(seconds=1)),
            "workload": {
                "run_id": "synthetic-pretraining",
                "name": "Synthetic pre-training (invented)",
                "framework": "pytorch",
                "agent_version": "synthetic",
                "world_size": GPUS,
                "gpus": GPUS,
                "gpu_model": "H200",
                "gpus_per_node": 8,
                "strategy": "hsdp",
                "replicas": 4,
            },
            "kind": episode.kind,
            "trigger": _trigger(episode),
            "where": {"node": node, "rank": rng.randrange(GPUS), "gpu_uuid": f"GPU-{rng.getrandbits(32):08x}"},
            "phases": phases,
            "progress": _progress(episode, step, started - datetime.timedelta(minutes=rng.randint(5, 55))),
            "state": {
                "source": "replica" if migrated else "storage",
                "bytes": 6_442_450_944,
                "digest_algorithm": "xxh3-128",
                "digest_sent": digest if migrated else None,
                "digest_received": digest if migrated else None,
            },
            "spare": {"node": f"spare-{rng.randint(1, 4)}", "origin": "pool"} if migrated else None,
            "resolution": episode.resolution,
            "attempts": [],
        }

"""A contract year with a watched run, failures at known times, and figures that can be worked out by hand.

2,048 GPUs on 256 nodes, watched for the first ten days: 2,560 node-days. Five unplanned failures: four migrated, with
defaults for what a restart would have taken; one restarted, everything measured: 10 + 5 + 15 + 20 minutes.
"""

import datetime
import uuid
from typing import Any

from tests.guarantee.facts import START, at, incident, restart
from yoco.contracts.models import Contract
from yoco.guarantee.placements import placements_refresh
from yoco.incidents.models import AgentBoot, Incident, Run

GPUS = 2048
MIGRATED_HOURS = (10.0, 60.0, 110.0, 160.0)
RESTARTED_HOURS = 210.0
WATCHED_HOURS = 240.0
# Without migration: 2 s noticed, 5 + 15 + 30 minutes by default. With it: 2 + 128 s and half a second.
MIGRATED_MS = GPUS * 130_500
WITHOUT_MS = GPUS * (2_000 + 50 * 60_000)
RESTARTED_MS = GPUS * 50 * 60_000
NOW = START + datetime.timedelta(hours=WATCHED_HOURS)


def watch(contract: Contract, run_id: str, start: float, end: float, **more: Any) -> AgentBoot:
    """An agent's life, hours into the year."""
    return AgentBoot.objects.create(
        contract=contract,
        agent_id="agent",
        boot_id=uuid.uuid4(),
        run_id=run_id,
        first_seen_at=at(start),
        last_seen_at=at(end),
        **more,
    )


def restarted(contract: Contract, hours: float, **more: Any) -> Incident:
    """A restart from a checkpoint of twenty minutes before, fully measured."""
    nothing = dict.fromkeys(["quiesced_at", "state_moved_at", "state_verified_at", "state_bytes"])
    nothing |= dict.fromkeys(["digest_algorithm", "digest_sent", "digest_received"], "")
    start = at(hours)
    checkpoint = {"last_checkpoint_at": start - datetime.timedelta(minutes=20)}
    return incident(contract, start, **nothing, **restart(start), **checkpoint, **more)


def build(contract: Contract) -> list[Incident]:
    found = [incident(contract, at(hours), strategy="hsdp") for hours in MIGRATED_HOURS]
    found.append(restarted(contract, RESTARTED_HOURS, xid=None, signal="hang", strategy="hsdp"))
    placements_refresh(incident_ids=[row.pk for row in found])
    Run.objects.filter(contract=contract).update(gpus=GPUS, gpus_per_node=8)
    # Two boots that overlap by five hours are one time of watching.
    watch(contract, "run-1", 0, 125)
    watch(contract, "run-1", 120, WATCHED_HOURS)
    return found

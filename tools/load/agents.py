"""The agents: each the reporter that a training job carries, with a spool of its own, in one process for all.

    python -m tools.load.agents PLAN.json RESULT.json

Nothing here sends or retries: `agent.reporting` does. A job beats, and now and then it meets an incident: one report
when it is detected, one when it is resolved.
"""

from __future__ import annotations

import heapq
import json
import logging
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent.reporting import IncidentRecord, IncidentReporter, new_incident_id, reporter
from agent.reporting.client import Refusal, ServiceClient
from agent.reporting.incident import Phases, Progress, Spare, State, Trigger, Where
from tools.load.measuring import Log

BEAT_S = 5.0  # as the agent's default
FLUSH_S = 180.0
KINDS = ("unplanned", "unplanned", "unplanned", "preventive", "planned")
log = Log()
dice = random.Random(8)  # noqa: S311 (traffic, reproducible)


class TimedClient(ServiceClient):
    """The agent's client; each request is noted as it was answered, retries included."""

    def _post(self, path: str, body: bytes) -> Any:
        with log.asking("agent " + path.rpartition("/")[2]) as errors:
            try:
                return super()._post(path, body)
            except Refusal as refusal:
                errors.append(str(refusal))
                raise


@dataclass
class Job:
    """One training job under its agent."""

    agent: IncidentReporter
    run_id: str
    node: str
    pause_s: float
    step: int = 1000
    open: IncidentRecord | None = None
    durable: int = 0
    incidents: list[str] = field(default_factory=list)

    def beat(self) -> None:
        self.step += 12
        self.agent.heartbeat(run_id=self.run_id, step=self.step)

    def incident(self) -> float:
        """Reports an incident's beginning, or its end; the seconds until the other."""
        now = datetime.now(UTC)
        if self.open is None:
            kind = dice.choice(KINDS)
            signal = {"unplanned": "process_exit", "preventive": "ecc", "planned": "operator"}[kind]
            detail = {"readings": {"ecc_volatile_uncorrected": [0, 3]}} if signal == "ecc" else {}
            self.open = IncidentRecord(
                incident_id=new_incident_id(),
                kind=kind,  # type: ignore[arg-type]
                trigger=Trigger(signal, detail=detail),  # type: ignore[arg-type]
                where=Where(self.node, dice.randrange(64), f"GPU-{dice.getrandbits(32):08x}"),
                phases=Phases(started_at=now - timedelta(seconds=1), detected_at=now),
            )
            self.incidents.append(self.open.incident_id)
            self.durable += self.agent.incident_detected(self.open)
            return dice.uniform(1, 4)
        begun = self.open.phases.detected_at
        assert begun is not None
        part = (now - begun) / 5
        names = ("quiesced_at", "spare_ready_at", "state_moved_at", "state_verified_at", "resumed_at")
        phases = {name: begun + part * (n + 1) for n, name in enumerate(names)}
        digest = f"{dice.getrandbits(128):032x}"
        self.durable += self.agent.incident_resolved(
            replace(
                self.open,
                phases=replace(self.open.phases, **phases),
                progress=Progress(
                    self.step, self.step + 1, self.step * 64, self.step * 64 + 64, 64, False, 1000, None, 0.41
                ),
                state=State("replica", 6_442_450_944, "xxh3-128", digest, digest),
                spare=Spare("spare-1", "pool"),
                resolution="live_migration",
            )
        )
        self.open = None
        return dice.uniform(0.7, 1.3) * self.pause_s


def job_make(plan: dict[str, Any], number: int, told: dict[str, str]) -> Job:
    agent_id = f"load-{number:03d}"
    workload = {
        "run_id": f"run-{number:03d}", "name": f"Job {number}", "framework": "pytorch", "agent_version": "load",
        "world_size": 64, "gpus": 64, "gpu_model": "H200", "gpus_per_node": 8, "strategy": "hsdp", "replicas": 2,
    }  # fmt: skip
    agent = IncidentReporter(
        Path(plan["spools"]) / agent_id, plan["url"], told["key"], agent_id, workload, heartbeat_interval_s=BEAT_S
    )
    return Job(agent, f"run-{number:03d}", f"node-{number:03d}", plan["pause_s"])


def drive(jobs: list[Job], until: float) -> None:
    """Beats and incidents, each job at its own times. No call waits for the network."""
    numbers = count()
    due = [(time.time() + dice.uniform(0, BEAT_S), next(numbers), job, "beat") for job in jobs]
    due += [(time.time() + dice.uniform(0, job.pause_s), next(numbers), job, "incident") for job in jobs]
    heapq.heapify(due)
    while due:
        at, _, job, what = heapq.heappop(due)
        if at >= until and job.open is None:
            continue
        time.sleep(max(0.0, at - time.time()))
        wait = job.incident() if what == "incident" else BEAT_S
        if what == "beat":
            job.beat()
        if at < until or job.open is not None:
            heapq.heappush(due, (time.time() + wait, next(numbers), job, what))


def end(job: Job) -> dict[str, Any]:
    """Says that the run is over, waits until the service has everything, and tells what was promised."""
    job.agent.run_ended(run_id=job.run_id, step=job.step)
    flushed = job.agent.flush(FLUSH_S)
    job.agent.close()
    return {
        "agent_id": job.agent.agent_id,
        "boot_id": job.agent.boot_id,
        "reports": job.durable,
        "incidents": job.incidents,
        "flushed": flushed,
    }


def main() -> None:
    logging.basicConfig(level=logging.CRITICAL)  # refusals in the faults are what the run is about
    plan_path, result_path = map(Path, sys.argv[1:])
    plan = json.loads(plan_path.read_text())
    with patch.object(reporter, "ServiceClient", TimedClient):
        jobs = [job_make(plan, number, told) for number, told in enumerate(plan["agents"])]
    print("ready", flush=True)
    drive(jobs, plan["until"])
    with ThreadPoolExecutor(len(jobs)) as pool:
        agents = list(pool.map(end, jobs))
    result_path.write_text(json.dumps({"agents": agents, "asked": log.asked}))


if __name__ == "__main__":
    main()

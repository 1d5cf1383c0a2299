"""Contracts of one year, and incident reports for them, made as customers and agents make them. Needs Django set up."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from yoco.accounts.models import AgentKey, Scope
from yoco.accounts.services import agent_key_create, organisation_create
from yoco.contracts.models import OFFERED_FROM, Contract
from yoco.contracts.services import contract_create
from yoco.core.ids import uuid7

NODES = 256
RUNS = 4
STEP_SECONDS = 12.5
SAMPLES = 2048

# kind, signal, xid, resolution, and how many of a hundred incidents are like this
MIX = (
    (45, "unplanned", "xid", 79, "live_migration"),
    (20, "unplanned", "process_exit", None, "live_migration"),
    (10, "unplanned", "heartbeat_lost", None, "live_migration"),
    (10, "preventive", "ecc", None, "live_migration"),
    (7, "planned", "operator", None, "live_migration"),
    (6, "unplanned", "hang", None, "checkpoint_restart"),
    (2, "unplanned", "power", None, "abandoned"),
)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A contract with its agent key."""

    contract: Contract
    key: AgentKey
    key_text: str


def tenants_make(count: int, *, terms: dict[str, Any] | None = None) -> list[Tenant]:
    """Organisations with one contract each, for one year that has begun, guaranteed from its first day."""
    ago = datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=90)
    starts_on = max(OFFERED_FROM, ago.replace(day=1))
    made = []
    for number in range(1, count + 1):
        organisation = organisation_create(name=f"Customer {number}", slug=f"customer-{number}", actor=None)
        contract = contract_create(
            organisation=organisation,
            number=f"BENCH-{number}",
            name="Training cluster",
            currency="EUR",
            time_zone="Europe/Madrid",
            starts_on=starts_on,
            ends_on=starts_on.replace(year=starts_on.year + 1),
            guarantee_from=starts_on,
            price_per_gpu_hour="2.50",
            terms=terms,
            actor=None,
        )
        key, text = agent_key_create(
            organisation=organisation, contract=contract, scope=Scope.INGEST, name="agent", actor=None
        )
        made.append(Tenant(contract, key, text))
    return made


@dataclass(frozen=True, slots=True)
class Agent:
    """A coordinator that numbers its reports. Its incidents begin every `gap` on one of 256 nodes, in one of 4 runs."""

    name: str
    start: datetime.datetime
    gap: datetime.timedelta

    def reports(self, *, first: int = 1, count: int) -> list[dict[str, Any]]:
        """The reports number `first` to `first + count - 1`; the same number always tells the same."""
        return [report for seq in range(first, first + count) for report in self._reports(seq)]

    def _reports(self, seq: int) -> Iterator[dict[str, Any]]:
        rng = random.Random(f"{self.name}/{seq}")  # noqa: S311 (invented data, the same in every run)
        _, kind, signal, xid, resolution = rng.choices(MIX, weights=[share for share, *_ in MIX])[0]
        migrated = resolution == "live_migration"
        began = self.start + self.gap * seq + datetime.timedelta(microseconds=rng.randrange(1_000_000))
        moments = [began]
        for low, high in ((2, 9), (1, 5), (20, 60), (60, 110), (2, 6), (3, 12)):
            moments.append(moments[-1] + datetime.timedelta(seconds=rng.randint(low, high)))
        names = ["started_at", "detected_at", "quiesced_at", "spare_ready_at", "state_moved_at", "state_verified_at"]
        phases = {name: text(at) for name, at in zip(names, moments, strict=False)}
        phases["resumed_at"] = text(moments[-1])
        if not migrated:
            phases = {name: phases[name] for name in ("started_at", "detected_at", "resumed_at")}
        step = 20_000 + 200 * seq
        after = step + 1 if migrated else step - 120
        digest = f"{rng.getrandbits(128):032x}"
        trigger: dict[str, Any] = {"signal": signal, "xid": xid, "detail": {}}
        if signal == "ecc":
            trigger["detail"] = {"ecc_uncorrected_volatile": 3, "threshold": 1}
        yield {
            "schema_version": "1.0",
            "id": str(uuid7()),
            "agent_id": self.name,
            "boot_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name)),
            "seq": seq,
            "type": "incident.resolved",
            "incident_id": str(uuid7()),
            "root_event_id": None,
            "sent_at": text(moments[-1] + datetime.timedelta(seconds=1)),
            "workload": {
                "run_id": f"{self.name}-pretraining-{seq % RUNS}",
                "name": f"Pre-training {seq % RUNS}",
                "framework": "pytorch",
                "agent_version": "1.0.0",
                "world_size": 2048,
                "gpus": 2048,
                "gpu_model": "H200",
                "gpus_per_node": 8,
                "strategy": "hsdp",
                "replicas": 4,
            },
            "kind": kind,
            "trigger": trigger,
            "where": {
                "node": f"node-{rng.randrange(NODES):03d}",
                "rank": rng.randrange(2048),
                "gpu_uuid": f"GPU-{rng.getrandbits(32):08x}",
            },
            "phases": phases,
            "progress": {
                "last_committed_step": step,
                "first_step_after": after,
                "samples_before": step * SAMPLES,
                "samples_after": after * SAMPLES,
                "samples_per_step": SAMPLES,
                "checkpoint_loaded": not migrated,
                "last_checkpoint_step": step - 120,
                "last_checkpoint_at": text(began - datetime.timedelta(minutes=25)),
                "step_seconds": STEP_SECONDS,
            },
            "state": {
                "source": "replica" if migrated else "storage",
                "bytes": 6_442_450_944,
                "digest_algorithm": "xxh3-128",
                "digest_sent": digest if migrated else None,
                "digest_received": digest if migrated else None,
            },
            "spare": {"node": f"spare-{rng.randint(1, 4)}", "origin": "pool"} if migrated else None,
            "resolution": resolution,
            "attempts": [],
        }


def text(at: datetime.datetime) -> str:
    """RFC 3339 as agents write it."""
    return at.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")

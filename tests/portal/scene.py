"""Acme with two contract years, made by the services from reports: a closed synthetic one that fell short, with its
credit, and a running one. The clock starts at NOW, so that verdicts and days left do not depend on the day."""

import datetime
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import time_machine

from tests.people import World, build_world
from yoco.contracts.models import Contract, ContractYear, Order
from yoco.contracts.services import contract_create, order_record
from yoco.core.ids import uuid7
from yoco.core.money import Money
from yoco.credits.models import Credit
from yoco.credits.services import credit_approve, credit_issue
from yoco.demo.synthetic import synthetic_reports
from yoco.guarantee.services import reports_accept, years_close
from yoco.incidents.models import Incident
from yoco.portal.graphics import PHASES

NOW = datetime.datetime(2027, 11, 20, 10, 30, tzinfo=datetime.UTC)


@dataclass
class Scene:
    """What pages are tested on. `without_loss`, `rolled_back` and `open` are incidents of the running year."""

    world: World
    contract: Contract
    closed_year: ContractYear
    running_year: ContractYear
    credit: Credit
    order: Order
    without_loss: Incident
    rolled_back: Incident
    open: Incident


def report(started: datetime.datetime, **changes: Any) -> dict[str, Any]:
    """A report of a migration without loss; `changes` replace members of the same name one level down."""
    at = [started + datetime.timedelta(milliseconds=ms) for ms in (0, 3100, 9800, 48_000, 133_000, 141_500, 171_200)]
    names = ["started_at", *(name for name, _ in PHASES)]
    body: dict[str, Any] = {
        "schema_version": "1.0",
        "id": str(uuid7()),
        "agent_id": "agent-1",
        "boot_id": str(uuid.UUID(int=7)),
        "seq": int(started.timestamp()),
        "type": "incident.resolved",
        "incident_id": str(uuid7()),
        "root_event_id": None,
        "sent_at": at[-1].isoformat(),
        "workload": {
            "run_id": "llm-7b-0412",
            "name": "llm-7b pre-training",
            "framework": "pytorch",
            "agent_version": "1.0",
            "world_size": 2048,
            "gpus": 2048,
            "gpu_model": "H200",
            "gpus_per_node": 8,
            "strategy": "hsdp",
            "replicas": 4,
        },
        "kind": "unplanned",
        "trigger": {"signal": "xid", "xid": 79, "detail": {}},
        "where": {"node": f"node-{started.day:03d}", "rank": 3, "gpu_uuid": "GPU-0001"},
        "phases": {name: moment.isoformat() for name, moment in zip(names, at, strict=True)},
        "progress": {
            "last_committed_step": 1200,
            "first_step_after": 1201,
            "samples_before": 76800,
            "samples_after": 76864,
            "samples_per_step": 64,
            "checkpoint_loaded": False,
            "last_checkpoint_step": 1000,
            "last_checkpoint_at": (started - datetime.timedelta(minutes=30)).isoformat(),
            "step_seconds": 0.41,
        },
        "state": {
            "source": "replica",
            "bytes": 6442450944,
            "digest_algorithm": "xxh3_128",
            "digest_sent": "5f" * 16,
            "digest_received": "5f" * 16,
        },
        "spare": {"node": "spare-02", "origin": "pool", "preempted": None},
        "resolution": "live_migration",
        "attempts": [],
    }
    for name, value in changes.items():
        body[name] = {**body[name], **value} if isinstance(value, dict) and isinstance(body[name], dict) else value
    return body


def build_scene() -> Scene:
    world = build_world()
    contract = contract_create(
        organisation=world.organisation,
        number="ACME-7",
        name="Pre-training cluster",
        currency="USD",
        time_zone="Europe/Madrid",
        starts_on=datetime.date(2026, 9, 1),
        ends_on=datetime.date(2029, 9, 1),
        guarantee_from=datetime.date(2026, 9, 1),
        price_per_gpu_hour="2.50",
        actor=world.account_manager,
    )
    closed_year, running_year, _ = contract.years.order_by("number")
    accept(contract, list(synthetic_reports(start=closed_year.starts_at, end=closed_year.ends_at)), source="synthetic")
    first = running_year.starts_at + datetime.timedelta(days=3, hours=5)
    good = [report(first + datetime.timedelta(days=4 * n, hours=3 * n)) for n in range(12)]
    bad = report(
        first + datetime.timedelta(days=55),
        progress={"first_step_after": 1001, "samples_after": 64064, "checkpoint_loaded": True},
        state={"source": "storage"},
        resolution="checkpoint_restart",
    )
    still_open = report(first + datetime.timedelta(days=70), type="incident.detected", resolution=None)
    still_open["phases"] = {name: still_open["phases"][name] for name in ("started_at", "detected_at")}
    still_open["progress"] = still_open["state"] = still_open["spare"] = None
    accept(contract, [*good, bad, still_open])
    years_close(as_of=NOW)
    credit = Credit.objects.get(year=closed_year)
    order = order_record(
        contract=contract,
        number="R-2027",
        kind="renewal",
        amount=Money(480_000_000, "USD"),
        ordered_on=datetime.date(2027, 11, 2),
        actor=world.account_manager,
    )
    closed_year.refresh_from_db()
    incident = {row.public_id: row for row in Incident.objects.filter(contract=contract)}
    return Scene(
        world=world,
        contract=contract,
        closed_year=closed_year,
        running_year=running_year,
        credit=credit,
        order=order,
        without_loss=incident[uuid.UUID(good[0]["incident_id"])],
        rolled_back=incident[uuid.UUID(bad["incident_id"])],
        open=incident[uuid.UUID(still_open["incident_id"])],
    )


def accept(contract: Contract, reports: list[dict[str, Any]], source: str = "agent") -> None:
    outcome = reports_accept(contract=contract, key=None, reports=reports, received_at=NOW, source=source)
    assert {result.status for result in outcome.results} == {"created"}, outcome.results


def issue_and_approve(scene: Scene) -> None:
    world = scene.world
    credit_issue(credit_id=scene.credit.pk, actor=world.account_manager, reason="The statement was checked.")
    credit_approve(credit_id=scene.credit.pk, actor=world.second_account_manager)


@pytest.fixture
def scene(db: None) -> Iterator[Scene]:
    with time_machine.travel(NOW, tick=True):
        yield build_scene()

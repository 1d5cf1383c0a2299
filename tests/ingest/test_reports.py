"""POST /api/v1/reports: what is kept, what is answered, what becomes of it."""

import datetime
import itertools
import json
import random
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.ingest.conftest import NOW, AgentClient
from tests.ingest.reports import BOOT, DETECTED, after, detected, report
from tests.people import World
from yoco.accounts.models import Scope
from yoco.accounts.services import agent_key_create
from yoco.incidents.models import AgentBoot, Incident, RawReport, RootEvent, Run


def facts(incident: Incident) -> dict[str, Any]:
    row = Incident.objects.filter(pk=incident.pk).values().get()
    for name in ("id", "revision", "run_id"):
        row.pop(name)
    return row


def test_it_works(agent: AgentClient, world: World) -> None:
    body = report()
    response = agent.post("reports", body)
    assert response.status_code == 200
    assert response.json() == {"results": [{"id": body["id"], "status": "created"}]}
    raw = RawReport.objects.get()
    assert (raw.contract, raw.key, raw.seq, raw.received_at) == (world.contract, world.key, 1, NOW)
    assert json.loads(raw.body) == body
    incident = Incident.objects.get()
    assert str(incident.public_id) == body["incident_id"]
    assert incident.state == "resolved"
    assert incident.gpus == 2048
    assert (incident.last_committed_step, incident.first_step_after, incident.step_ms) == (1200, 1201, 410)
    assert incident.resumed_at == DETECTED + datetime.timedelta(seconds=110)
    assert incident.digest_sent == incident.digest_received == "ab" * 16
    assert incident.run.name == "Pre-training 7"
    assert incident.root_event is not None
    assert (incident.root_event.cause, incident.root_event.node) == ("xid:79", "node-17")
    assert AgentBoot.objects.get().last_seq == 1


def test_the_same_report_twice_is_one_incident(agent: AgentClient) -> None:
    body = report()
    shuffled = dict(reversed(body.items()))
    assert agent.statuses(body, shuffled) == ["created", "duplicate"]
    assert agent.statuses(body) == ["duplicate"]
    assert (RawReport.objects.count(), Incident.objects.count()) == (1, 1)
    assert Incident.objects.get().revision == 1


def test_the_same_id_with_another_content_is_kept_beside_the_first(agent: AgentClient) -> None:
    body = report()
    other = {**body, "resolution": "checkpoint_restart"}
    assert agent.statuses(body) == ["created"]
    assert agent.statuses(other, other) == ["conflict", "conflict"]
    assert list(RawReport.objects.order_by("id").values_list("conflict", flat=True)) == [False, True]
    assert Incident.objects.get().resolution == "live_migration"


def test_one_bad_report_does_not_hold_up_the_others(agent: AgentClient) -> None:
    good, bad = report(), report(kind="sabotage")
    results = agent.reports(bad, good)
    assert [result["status"] for result in results] == ["invalid", "created"]
    assert results[0]["path"] == "$.kind"
    assert results[0]["id"] == bad["id"]


def test_none_valid_is_422_with_results(agent: AgentClient) -> None:
    response = agent.post("reports", [report(kind="sabotage")])
    assert response.status_code == 422
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["results"][0]["path"] == "$.kind"


def test_detection_then_resolution_is_one_incident_in_any_order(agent: AgentClient, world: World) -> None:
    incident_id = str(uuid.uuid4())
    reports = [
        detected(incident_id=incident_id, seq=1),
        detected(
            incident_id=incident_id,
            seq=2,
            type="incident.amended",
            sent_at=after(50),
            trigger={"signal": "process_exit", "xid": 95, "detail": {"lines": 9, "how": "SIGKILL"}},
        ),
        report(incident_id=incident_id, seq=3, workload__gpus=1024),
    ]
    outcomes = []
    for number, order in enumerate(itertools.permutations(reports)):
        renamed = str(uuid.uuid4())
        for one in order:
            copy = {**one, "id": str(uuid.uuid5(uuid.UUID(one["id"]), str(number))), "incident_id": renamed}
            assert agent.statuses(copy) == ["created"]
        outcomes.append(facts(Incident.objects.get(public_id=renamed)))
    for outcome in outcomes:
        outcome.pop("public_id")
        outcome.pop("root_event_id")
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert (outcomes[0]["gpus"], outcomes[0]["xid"], outcomes[0]["state"]) == (2048, 79, "resolved")
    assert (outcomes[0]["signal"], outcomes[0]["trigger_detail"]) == ("process_exit", {"lines": 3, "how": "SIGKILL"})


def test_a_report_without_a_field_erases_nothing(agent: AgentClient) -> None:
    body = report()
    late = detected(incident_id=body["incident_id"], sent_at=after(300), type="incident.amended", seq=2)
    agent.reports(body, late)
    incident = Incident.objects.get()
    assert incident.first_step_after == 1201
    assert incident.resolution == "live_migration"


def test_unknown_fields_are_kept_and_ignored_and_newer_minors_accepted(agent: AgentClient) -> None:
    body = {**report(schema_version="1.7"), "colour": {"of": ["the", "sky"]}}
    assert agent.statuses(body) == ["created"]
    assert json.loads(RawReport.objects.get().body)["colour"] == {"of": ["the", "sky"]}


def test_an_unknown_major_is_refused_with_the_supported_list(agent: AgentClient) -> None:
    (result,) = agent.reports(report(schema_version="2.0"))
    assert result["status"] == "invalid"
    assert result["path"] == "$.schema_version"
    assert "1.x" in result["reason"]


def test_queries_do_not_grow_with_the_batch(agent: AgentClient) -> None:
    # SQLite's driver splits an insert of more than 999 values, so larger batches than these are for PostgreSQL.
    sizes = (1, 5, 15) if connection.vendor == "sqlite" else (1, 20, 300)
    counts = []
    numbers = itertools.count(1)
    agent.reports(report(seq=next(numbers), where__rank=0))
    for size in sizes:
        batch = [report(seq=seq, where__rank=seq, where__node=f"n{seq}") for seq in itertools.islice(numbers, size)]
        with CaptureQueriesContext(connection) as queries:
            assert set(agent.statuses(*batch)) == {"created"}
        counts.append(len(queries))
    assert counts[0] == counts[1] == counts[2], counts
    assert counts[0] <= 40


def test_another_contracts_incident_with_the_same_id_is_another_incident(agent: AgentClient, world: World) -> None:
    body = report()
    other = AgentClient(world.stranger_key_text)
    assert agent.statuses(body) == ["created"]
    assert other.statuses(body) == ["created"]
    assert set(Incident.objects.values_list("contract_id", flat=True)) == {
        world.contract.pk,
        world.stranger_contract.pk,
    }
    assert RootEvent.objects.count() == 2


@pytest.mark.parametrize("key", ["", "yoco_ingest_nothing", "Bearer"])
def test_a_wrong_key_is_401(world: World, key: str) -> None:
    response = AgentClient(key).post("reports", report())
    assert response.status_code == 401
    assert response["WWW-Authenticate"] == "Bearer"
    assert response["Content-Type"] == "application/problem+json"


def test_a_key_that_reads_may_not_report(world: World) -> None:
    _, text = agent_key_create(organisation=world.organisation, scope=Scope.READ, name="reader", actor=world.owner)
    assert AgentClient(text).post("reports", report()).status_code == 403
    assert not RawReport.objects.exists()


def test_gzip_is_welcome(agent: AgentClient) -> None:
    assert agent.post("reports", [report()], compress=True).status_code == 200
    assert Run.objects.get().gpus == 2048


def test_an_aged_spool_arriving_shuffled_gives_the_same_rows(agent: AgentClient, world: World) -> None:
    batch = []
    for number in range(12):
        incident_id, shift = str(uuid.uuid4()), datetime.timedelta(hours=2 * number)
        for seq, body in enumerate((detected(), report())):
            body["incident_id"], body["seq"] = incident_id, 2 * number + seq + 1
            body["phases"] = {
                name: (datetime.datetime.fromisoformat(at) - shift).isoformat() for name, at in body["phases"].items()
            }
            body["sent_at"] = (datetime.datetime.fromisoformat(body["sent_at"]) - shift).isoformat()
            batch.append(body)
    random.Random(5).shuffle(batch)
    for body in batch:
        assert agent.statuses(body) == ["created"]
    assert Incident.objects.count() == 12
    assert set(Incident.objects.values_list("state", flat=True)) == {"resolved"}
    assert RootEvent.objects.count() == 12
    assert AgentBoot.objects.get(boot_id=BOOT).last_seq == 24

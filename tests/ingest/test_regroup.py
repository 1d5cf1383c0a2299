"""Merging is visible and reversible by an account manager with a reason."""

import pytest

from tests.ingest.conftest import AgentClient
from tests.ingest.reports import report
from tests.people import World
from yoco.core.models import AuditEntry
from yoco.core.problem import DomainError
from yoco.guarantee.intake import incident_split, incidents_merge, regrouping_revert
from yoco.incidents.models import Incident, Regrouping, RootEvent


@pytest.fixture
def cascade(agent: AgentClient) -> list[Incident]:
    agent.reports(report(seq=1), report(seq=2, trigger__xid=45), report(seq=3, where__node="elsewhere"))
    return list(Incident.objects.order_by("id"))


def groups() -> list[set[int]]:
    return [
        set(root.incidents.values_list("pk", flat=True))
        for root in RootEvent.objects.exclude(incidents=None).distinct().order_by("first_at", "id")
    ]


def test_a_split_and_its_reversal(cascade: list[Incident], agent: AgentClient, world: World) -> None:
    _, second, _ = cascade
    assert len(groups()) == 2
    incident_split(incident=second, actor=world.account_manager, reason="Another card.")
    assert len(groups()) == 3
    assert AuditEntry.objects.get(action="incident.split").data["reason"] == "Another card."

    # Reports that arrive later do not undo a person's decision.
    agent.reports(report(incident_id=str(second.public_id), seq=4, type="incident.amended"))
    agent.reports(report(seq=5, where__rank=9))
    assert {second.pk} in groups()

    second.refresh_from_db()
    regrouping_revert(incident=second, actor=world.account_manager, reason="It was the same after all.")
    assert len(groups()) == 2
    assert Regrouping.objects.filter(incident=second).count() == 2


def test_a_merge_by_hand(cascade: list[Incident], world: World) -> None:
    first, _, other = cascade
    incidents_merge(incidents=[first, other], actor=world.account_manager, reason="One power feed.")
    assert {first.pk, other.pk} in groups()


def test_it_refuses(cascade: list[Incident], world: World) -> None:
    first, _, _ = cascade
    AgentClient(world.stranger_key_text).reports(report())
    foreign = Incident.objects.get(contract=world.stranger_contract)
    for call in (
        lambda: incident_split(incident=first, actor=world.account_manager, reason="  "),
        lambda: incidents_merge(incidents=[first], actor=world.account_manager, reason="x"),
        lambda: incidents_merge(incidents=[first, foreign], actor=world.account_manager, reason="x"),
        lambda: regrouping_revert(incident=first, actor=world.account_manager, reason="x"),
    ):
        with pytest.raises(DomainError):
            call()
    assert not Regrouping.objects.exists()

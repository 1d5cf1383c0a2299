"""Merging is visible and reversible by an account manager with a reason."""

import pytest
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.utils import timezone

from tests.ingest.conftest import AgentClient
from tests.ingest.reports import report
from tests.people import World
from yoco.accounts.models import User
from yoco.core.models import AuditEntry, OutboxEvent
from yoco.core.problem import DomainError
from yoco.guarantee.regrouping import incidents_regroup, regrouping_decide
from yoco.incidents.models import Incident, Regrouping, RegroupingProposal, RootEvent


@pytest.fixture
def cascade(agent: AgentClient) -> list[Incident]:
    agent.reports(report(seq=1), report(seq=2, trigger__xid=45), report(seq=3, where__node="elsewhere"))
    return list(Incident.objects.order_by("id"))


def groups() -> list[set[int]]:
    return [
        set(root.incidents.values_list("pk", flat=True))
        for root in RootEvent.objects.exclude(incidents=None).distinct().order_by("first_at", "id")
    ]


def regroup(action: str, *incidents: Incident, actor: User, reason: str = "Looked at.") -> RegroupingProposal | None:
    return incidents_regroup(action=action, incidents=incidents, actor=actor, reason=reason)


def agree(proposal: RegroupingProposal | None, world: World) -> None:
    assert proposal is not None
    regrouping_decide(proposal=proposal, accept=True, note="So it was.", actor=world.second_account_manager)


def test_a_split_and_its_reversal(cascade: list[Incident], agent: AgentClient, world: World) -> None:
    _, second, _ = cascade
    assert len(groups()) == 2
    # Two failures resolved instead of one: the vendor gains, so it takes two people.
    agree(regroup("split", second, actor=world.account_manager, reason="Another card."), world)
    assert len(groups()) == 3
    assert AuditEntry.objects.get(action="incident.split").data["reason"] == "Another card."

    # Reports that arrive later do not undo a person's decision.
    agent.reports(report(incident_id=str(second.public_id), seq=4, type="incident.amended"))
    agent.reports(report(seq=5, where__rank=9))
    assert {second.pk} in groups()

    second.refresh_from_db()
    assert regroup("revert", second, actor=world.account_manager) is None
    assert len(groups()) == 2
    assert Regrouping.objects.filter(incident=second).count() == 2


def test_a_merge_by_hand(cascade: list[Incident], world: World) -> None:
    assert regroup("merge", *cascade, actor=world.account_manager, reason="One power feed.") is None
    assert groups() == [{incident.pk for incident in cascade}]


def failures(agent: AgentClient, *nodes: str) -> list[Incident]:
    bodies = [
        report(seq=seq, where__node=node, where__rank=seq, resolution="abandoned") for seq, node in enumerate(nodes, 1)
    ]
    assert set(agent.statuses(*bodies)) == {"created"}
    return list(Incident.objects.order_by("id"))


def test_failures_merge_only_with_a_second_person(agent: AgentClient, world: World) -> None:
    one, two = failures(agent, "a", "b")
    proposal = regroup("merge", one, two, actor=world.account_manager)
    assert proposal is not None
    assert len(groups()) == 2
    assert not Regrouping.objects.exists()
    assert OutboxEvent.objects.filter(kind="regrouping.proposed", organisation_id=world.organisation.pk).exists()
    with pytest.raises(DomainError, match="second person"):
        regrouping_decide(proposal=proposal, accept=True, note="Mine.", actor=world.account_manager)
    with pytest.raises(DomainError, match="already"):
        regroup("merge", two, one, actor=world.second_account_manager)
    with pytest.raises(PermissionDenied):
        regrouping_decide(proposal=proposal, accept=True, note="Mine.", actor=world.owner)
    # Whatever has joined the events meanwhile is taken along.
    assert agent.statuses(report(seq=9, where__node="b", where__rank=9, resolution="abandoned")) == ["created"]
    agree(proposal, world)
    assert len(groups()) == 1
    assert {row.by for row in Regrouping.objects.all()} == {world.account_manager}
    with pytest.raises(DomainError, match="already"):
        regrouping_decide(proposal=proposal, accept=False, note="No.", actor=world.second_account_manager)
    # Apart again is worse for the vendor: one person may say so.
    for incident in Incident.objects.select_related("contract"):
        assert regroup("revert", incident, actor=world.account_manager) is None
    assert len(groups()) == 2


def test_a_rejected_regrouping_changes_nothing(agent: AgentClient, world: World) -> None:
    proposal = regroup("merge", *failures(agent, "a", "b"), actor=world.account_manager)
    assert proposal is not None
    regrouping_decide(proposal=proposal, accept=False, note="Two feeds.", actor=world.second_account_manager)
    assert len(groups()) == 2
    assert {"regrouping.proposed", "regrouping.rejected"} <= set(AuditEntry.objects.values_list("action", flat=True))


def test_no_proposer_accepts_behind_the_services_back(agent: AgentClient, world: World) -> None:
    proposal = regroup("merge", *failures(agent, "a", "b"), actor=world.account_manager)
    assert proposal is not None
    rows = RegroupingProposal.objects.filter(pk=proposal.pk)
    with pytest.raises(IntegrityError, match="regrouping_four_eyes"), transaction.atomic():
        rows.update(state="accepted", decided_by=world.account_manager, decided_at=timezone.now())


def test_it_refuses(cascade: list[Incident], world: World) -> None:
    first, _, _ = cascade
    AgentClient(world.stranger_key_text).reports(report())
    foreign = Incident.objects.get(contract=world.stranger_contract)
    for action, incidents, reason in (
        ("split", [first], "  "),
        ("merge", [first], "x"),
        ("merge", [first, foreign], "x"),
        ("revert", [first], "x"),
    ):
        with pytest.raises(DomainError):
            regroup(action, *incidents, actor=world.account_manager, reason=reason)
    with pytest.raises(PermissionDenied):
        regroup("split", first, actor=world.owner)
    assert not Regrouping.objects.exists()

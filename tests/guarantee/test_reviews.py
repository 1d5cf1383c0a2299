"""Exclusions and disputes: visible, dated, decided by the right person, and undone by the other side's right."""

import datetime

import pytest
import time_machine
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.utils import timezone

from tests.guarantee.facts import at, incident, restart
from tests.people import World
from yoco.core.models import AuditEntry
from yoco.core.problem import DomainError
from yoco.guarantee import reviews
from yoco.guarantee.models import Placement, RestatementDue, Statement
from yoco.guarantee.selectors import year_report
from yoco.guarantee.services import placements_refresh, years_close
from yoco.incidents.models import Decision, Exclusion, Incident

CLOSED = datetime.datetime(2027, 10, 5, tzinfo=datetime.UTC)


@pytest.fixture
def failure(world: World) -> Incident:
    """A restart from a checkpoint among nine failures that were resolved."""
    rows = [incident(world.contract, at(2 * n)) for n in range(9)]
    row = incident(world.contract, **restart(at(100)))
    placements_refresh(incident_ids=[*(r.pk for r in rows), row.pk])
    return row


def outcome(row: Incident) -> tuple[str, str]:
    placement = Placement.objects.get(pk=row.pk)
    return placement.outcome, placement.rule


def excluded(world: World, row: Incident) -> Exclusion:
    exclusion = reviews.exclusion_propose(
        incident=row, reason="user_error", note="The job's own assertion failed.", actor=world.account_manager
    )
    return reviews.exclusion_decide(
        exclusion=exclusion, accept=True, note="Seen in its log.", actor=world.second_account_manager
    )


def test_it_leaves_the_ratio_only_when_a_second_person_accepts(world: World, failure: Incident) -> None:
    exclusion = reviews.exclusion_propose(
        incident=failure, reason="user_error", note="An assertion of the job failed.", actor=world.account_manager
    )
    assert exclusion.state == Decision.PENDING
    assert outcome(failure) == ("not_resolved", "no_live_migration")
    with pytest.raises(DomainError, match="second person"):
        reviews.exclusion_decide(exclusion=exclusion, accept=True, note="Mine.", actor=world.account_manager)
    reviews.exclusion_decide(exclusion=exclusion, accept=True, note="Seen.", actor=world.second_account_manager)
    assert outcome(failure) == ("excluded", "excluded_user_error")
    report = year_report(year=world.year)
    assert (report.counted, report.resolved, report.excluded) == (9, 9, 1)
    entries = AuditEntry.objects.filter(subject_id=str(exclusion.pk)).order_by("at", "id")
    assert [(e.action, e.actor) for e in entries] == [
        ("exclusion.proposed", world.account_manager),
        ("exclusion.accepted", world.second_account_manager),
    ]


def test_the_database_refuses_an_exclusion_accepted_by_its_proposer(world: World, failure: Incident) -> None:
    exclusion = reviews.exclusion_propose(
        incident=failure, reason="user_error", note="An assertion.", actor=world.account_manager
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        Exclusion.objects.filter(pk=exclusion.pk).update(
            state="accepted", decided_by=world.account_manager, decided_at=timezone.now()
        )


def test_it_rejects_reasons_and_people_that_may_not(world: World, failure: Incident) -> None:
    with pytest.raises(DomainError, match="do not list"):
        reviews.exclusion_propose(incident=failure, reason="bad_luck", note="x", actor=world.account_manager)
    with pytest.raises(DomainError, match="Say why"):
        reviews.exclusion_propose(incident=failure, reason="user_error", note="  ", actor=world.account_manager)
    with pytest.raises(PermissionDenied):
        reviews.exclusion_propose(incident=failure, reason="user_error", note="x", actor=world.owner)
    exclusion = excluded(world, failure)
    with pytest.raises(DomainError, match="already"):
        reviews.exclusion_propose(incident=failure, reason="site_outage", note="x", actor=world.account_manager)
    with pytest.raises(DomainError, match="decided already"):
        reviews.exclusion_decide(exclusion=exclusion, accept=False, note="x", actor=world.second_account_manager)


def test_a_rejected_or_withdrawn_exclusion_leaves_the_incident_in_the_ratio(world: World, failure: Incident) -> None:
    exclusion = excluded(world, failure)
    reviews.exclusion_withdraw(exclusion=exclusion, note="The log was another job's.", actor=world.account_manager)
    assert outcome(failure)[0] == "not_resolved"
    again = reviews.exclusion_propose(
        incident=failure, reason="site_outage", note="Power.", actor=world.account_manager
    )
    reviews.exclusion_decide(exclusion=again, accept=False, note="No.", actor=world.second_account_manager)
    assert outcome(failure)[0] == "not_resolved"


def test_an_upheld_objection_undoes_an_exclusion(world: World, failure: Incident) -> None:
    excluded(world, failure)
    dispute = reviews.dispute_raise(incident=failure, text="Our job was not at fault.", actor=world.owner)
    assert (dispute.against_outcome, dispute.against_rule) == ("excluded", "excluded_user_error")
    with pytest.raises(DomainError, match="waits"):
        reviews.dispute_raise(incident=failure, text="Again.", actor=world.team_mate)
    with pytest.raises(PermissionDenied):
        reviews.dispute_decide(dispute=dispute, accept=True, note="Yes.", actor=world.owner)
    reviews.dispute_decide(dispute=dispute, accept=True, note="Agreed.", actor=world.account_manager)
    assert outcome(failure)[0] == "not_resolved"
    dispute.refresh_from_db()
    assert (dispute.state, dispute.decided_by, dispute.decision_note) == ("accepted", world.account_manager, "Agreed.")
    assert dispute.decided_at is not None
    assert not Exclusion.objects.filter(state__in=["pending", "accepted"]).exists()


def test_an_upheld_objection_to_a_resolved_failure_counts_against_the_vendor(world: World) -> None:
    row = incident(world.contract, at(3))
    placements_refresh(incident_ids=[row.pk])
    assert outcome(row) == ("resolved", "without_loss")
    dispute = reviews.dispute_raise(incident=row, text="We lost an hour.", actor=world.owner)
    assert outcome(row)[0] == "resolved"
    reviews.dispute_decide(dispute=dispute, accept=True, note="Your log shows it.", actor=world.account_manager)
    assert outcome(row) == ("not_resolved", "dispute_upheld")


def test_a_rejected_or_withdrawn_objection_changes_nothing(world: World, failure: Incident) -> None:
    before = outcome(failure)
    first = reviews.dispute_raise(incident=failure, text="No.", actor=world.owner)
    reviews.dispute_decide(dispute=first, accept=False, note="The evidence stands.", actor=world.account_manager)
    second = reviews.dispute_raise(incident=failure, text="Still no.", actor=world.owner)
    reviews.dispute_withdraw(dispute=second, actor=world.owner)
    assert outcome(failure) == before


def test_the_window_ends_after_the_statement(world: World, failure: Incident) -> None:
    with time_machine.travel(CLOSED, tick=False):
        years_close(as_of=CLOSED)
        statement = Statement.objects.get(year=world.year)
    with (
        time_machine.travel(CLOSED + datetime.timedelta(days=30), tick=False),
        pytest.raises(DomainError, match="window for objections ended"),
    ):
        reviews.dispute_raise(incident=failure, text="Too late.", actor=world.owner)
    with time_machine.travel(CLOSED + datetime.timedelta(days=29, hours=23), tick=False):
        dispute = reviews.dispute_raise(incident=failure, text="In time.", actor=world.owner)
        reviews.dispute_decide(dispute=dispute, accept=True, note="Right.", actor=world.account_manager)
    statement.refresh_from_db()
    assert year_report(year=world.year).statement is not None
    assert year_report(year=world.year).counted == 10


def test_a_decision_after_closing_is_a_restatement(world: World, failure: Incident) -> None:
    years_close(as_of=CLOSED)
    first = Statement.objects.get(year=world.year)
    excluded(world, failure)
    assert RestatementDue.objects.get().reasons == ["exclusion_decided"]
    report = year_report(year=world.year)
    assert (report.counted, report.restatement_due) == (10, True)
    done = years_close(as_of=CLOSED)
    assert [(s.revision, s.counted, s.reason) for s in done.restated] == [(2, 9, "exclusion_decided")]
    unchanged = Statement.objects.get(pk=first.pk)
    assert (unchanged.sha256, unchanged.canonical) == (first.sha256, first.canonical)
    assert year_report(year=world.year).counted == 9
    assert not RestatementDue.objects.exists()

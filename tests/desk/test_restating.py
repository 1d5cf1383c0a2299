"""A closed year restated by hand: previewed by the code that does it, confirmed as shown, by two where money moves."""

import datetime
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.desk.test_credits import sign_in
from tests.portal.scene import NOW, Scene, accept, issue_and_approve, report
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from yoco.accounts.models import User
from yoco.core.models import AuditEntry
from yoco.core.problem import DomainError
from yoco.credits.models import Credit, CreditState, LedgerTransaction
from yoco.credits.selectors import credit_balance
from yoco.credits.services import credit_apply
from yoco.guarantee import services
from yoco.guarantee.models import Outcome, Placement, Proposal, RestatementDue, Statement
from yoco.guarantee.proposals import proposal_decide, restatement_confirm
from yoco.guarantee.restating import Restatement, restatement_preview
from yoco.guarantee.reviews import exclusion_decide, exclusion_propose
from yoco.guarantee.services import years_close
from yoco.guarantee.verify import statements_verify
from yoco.incidents.models import Incident


def url_of(scene: Scene) -> str:
    return reverse("desk:restate", args=[scene.contract.pk, scene.closed_year.pk])


def late_failure(scene: Scene, day: int = 40) -> None:
    """A report of a failure in the closed year that went back to a checkpoint."""
    late = report(
        scene.closed_year.starts_at + datetime.timedelta(days=day),
        progress={"first_step_after": 1001, "samples_after": 64064, "checkpoint_loaded": True},
        state={"source": "storage"},
        resolution="checkpoint_restart",
    )
    accept(scene.contract, [late])


def exclude_until_met(scene: Scene) -> None:
    """Two people exclude three of the four misses, so that 16 of 17 are resolved."""
    world = scene.world
    missed = Incident.objects.filter(placement__year=scene.closed_year, placement__outcome=Outcome.NOT_RESOLVED)
    for incident in missed.order_by("started_at")[:3]:
        row = exclusion_propose(
            incident=incident, reason="user_error", note="They killed it.", actor=world.account_manager
        )
        exclusion_decide(exclusion=row, accept=True, note="So it was.", actor=world.second_account_manager)


def preview(client: Client, scene: Scene, reason: str = "Logs of March arrived.") -> tuple[int, str, str]:
    """Status, text and the hash of what was shown."""
    answer = client.post(url_of(scene), {"decision": "preview", "reason": reason})
    page = answer.content.decode()
    shown = re.search(r'name="shown" value="([0-9a-f]{64})"', page)
    text = " ".join(re.sub(r"<[^>]+>", " ", page).replace("\xa0", " ").split())
    return answer.status_code, text, shown.group(1) if shown else ""


def confirm(client: Client, scene: Scene, shown: str, reason: str = "Logs of March arrived.") -> Any:
    return client.post(url_of(scene), {"decision": "confirm", "reason": reason, "shown": shown})


@pytest.fixture
def desk(client: Client, scene: Scene) -> Client:
    sign_in(client, scene.world.account_manager)
    return client


def counts() -> tuple[int, int, int, int]:
    return (
        Statement.objects.count(),
        LedgerTransaction.objects.count(),
        AuditEntry.objects.count(),
        Proposal.objects.count(),
    )


def test_a_year_is_restated_as_it_was_shown_and_says_what_happened(desk: Client, scene: Scene) -> None:
    late_failure(scene)
    before = counts()
    assert "A report arrived after the year had closed." in text_of(desk, url_of(scene))
    status, page, shown = preview(desk, scene)
    assert status == 200
    assert "1, as it stands Short 16 / 20 2, afterwards Short 16 / 21" in page
    assert "Incidents that move Incident Before Afterwards llm-7b pre-training" in page
    assert "not in this year Not resolved without loss" in page
    assert "Nothing: it moves no money." in page
    assert counts() == before

    answer = confirm(desk, scene, shown)
    assert answer.status_code == 302
    second = Statement.objects.get(year=scene.closed_year, revision=2)
    assert (second.resolved, second.counted, second.reason) == (16, 21, "Logs of March arrived.")
    page = text_of(desk, answer["Location"])
    assert "Revision 2 is written: 16 of 21 resolved without loss." in page
    assert "What changed since revision 1 Logs of March arrived." in page
    assert "Incidents that moved" in page
    year = text_of(desk, reverse("portal:year", args=[scene.contract.pk, scene.closed_year.pk]))
    assert "Logs of March arrived. What changed" in year
    assert "Revision 1 Short 16 / 20" in year
    assert AuditEntry.objects.get(action="year.restated").actor_id == scene.world.account_manager.pk
    assert not RestatementDue.objects.exists()
    status, page, shown = preview(desk, scene)
    assert (status, shown) == (409, "")
    assert "Nothing has changed since the last statement." in page
    assert statements_verify() == []


def test_what_is_shown_is_what_is_done(scene: Scene) -> None:
    """Each effect on the credit: the same code, so the same figures, moves and postings."""
    people: dict[str, User] = {"actor": scene.world.account_manager}
    issue_and_approve(scene)
    exclude_until_met(scene)
    shown = restatement_preview(year=scene.closed_year, reason="x", **people)
    assert (shown.effect, shown.minor, shown.needs_second) == ("reversed", 120_000_000, True)
    proposed = restatement_confirm(year=scene.closed_year, reason="x", shown=shown.sha256, **people)
    assert isinstance(proposed, Proposal)
    done = proposal_decide(proposal=proposed, accept=True, note="Yes.", actor=scene.world.second_account_manager)
    assert isinstance(done, Restatement)
    assert told(done) == told(shown)
    assert [entry.kind for entry in done.entries] == ["reverse"]

    late_failure(scene)
    shown = restatement_preview(year=scene.closed_year, reason="y", **people)
    assert (shown.effect, shown.after.verdict, shown.needs_second) == ("proposed", "short", False)
    done = restatement_confirm(year=scene.closed_year, reason="y", shown=shown.sha256, **people)
    assert isinstance(done, Restatement)
    assert told(done) == told(shown)
    assert Credit.objects.get(year=scene.closed_year, state=CreditState.PROPOSED).statement == done.after


def told(restatement: Restatement) -> tuple[Any, ...]:
    """Everything that a preview tells."""
    return (
        restatement.after.revision,
        (restatement.after.resolved, restatement.after.counted, restatement.after.verdict),
        restatement.differences,
        restatement.effect,
        restatement.minor,
        [
            (entry.kind, [(row.account.kind, row.minor, row.order_id) for row in entry.postings.all()])
            for entry in restatement.entries
        ],
        restatement.sha256,
    )


def test_a_credit_is_taken_away_by_two_people_only(desk: Client, scene: Scene) -> None:
    issue_and_approve(scene)
    exclude_until_met(scene)
    _, page, shown = preview(desk, scene, "Three were the customer's own.")
    assert "Short 16 / 20" in page
    assert "Met 16 / 17" in page
    assert "The credit is reversed: the year did not fall short. Amount US$1,200,000.00" in page
    assert "Available to the customer -US$1,200,000.00" in page
    assert "Propose the restatement" in page
    answer = confirm(desk, scene, shown, "Three were the customer's own.")
    proposal = Proposal.objects.get()
    url = reverse("desk:proposal", args=[proposal.pk])
    assert (answer.status_code, answer["Location"]) == (302, url)
    assert Statement.objects.filter(year=scene.closed_year).count() == 1
    assert credit_balance(credit=scene.credit).available == 120_000_000
    page = text_of(desk, url)
    assert "You proposed this, so another account manager must confirm it." in page
    assert "Confirm it" not in page
    assert desk.post(url, {"decision": "accept", "note": "Mine."}).status_code == 409
    assert confirm(desk, scene, shown).status_code == 409  # one waits already

    sign_in(desk, scene.world.second_account_manager)
    assert "Restatement of a closed year" in text_of(desk, reverse("desk:contract", args=[scene.contract.pk]))
    page = text_of(desk, url)
    assert "Three were the customer's own." in page.replace("&#x27;", "'")
    assert "Met 16 / 17" in page
    assert desk.post(url, {"decision": "accept", "note": " "}).status_code == 200
    answer = desk.post(url, {"decision": "accept", "note": "Checked."})
    assert answer.status_code == 302
    assert "Revision 2 is written: 16 of 17" in text_of(desk, answer["Location"])
    scene.credit.refresh_from_db()
    assert (scene.credit.state, credit_balance(credit=scene.credit).available) == (CreditState.REVERSED, 0)
    assert "Accepted" in text_of(desk, url)
    assert desk.post(url, {"decision": "reject", "note": "No."}).status_code == 409
    actions = AuditEntry.objects.filter(action__startswith="restatement.").values_list("action", "actor_id")
    assert set(actions) == {
        ("restatement.proposed", scene.world.account_manager.pk),
        ("restatement.accepted", scene.world.second_account_manager.pk),
    }


def test_a_used_credit_is_put_in_question_by_two_people(scene: Scene) -> None:
    issue_and_approve(scene)
    credit_apply(order_id=scene.order.pk, actor=scene.world.account_manager)
    exclude_until_met(scene)
    shown = restatement_preview(year=scene.closed_year, reason="x", actor=scene.world.account_manager)
    assert (shown.effect, shown.entries, shown.needs_second) == ("questioned", [], True)


def test_a_stale_preview_is_refused_and_shown_anew(desk: Client, scene: Scene) -> None:
    late_failure(scene)
    _, _, shown = preview(desk, scene)
    late_failure(scene, 60)
    for stale in (shown, "", "0" * 64):
        answer = confirm(desk, scene, stale)
        assert answer.status_code == 409
        page = " ".join(answer.content.decode().split())
        assert "Something has changed since this was shown." in page
        assert ">16 / 22<" in page
    assert Statement.objects.filter(year=scene.closed_year).count() == 1
    assert RestatementDue.objects.filter(year=scene.closed_year).exists()


def test_a_proposal_that_something_overtook_cannot_be_confirmed(desk: Client, scene: Scene) -> None:
    issue_and_approve(scene)
    exclude_until_met(scene)
    _, _, shown = preview(desk, scene)
    confirm(desk, scene, shown)
    proposal = Proposal.objects.get()
    credit_apply(order_id=scene.order.pk, actor=scene.world.account_manager, amount_minor=5)
    sign_in(desk, scene.world.second_account_manager)
    url = reverse("desk:proposal", args=[proposal.pk])
    page = text_of(desk, url)
    assert "It cannot be confirmed any more: Something has changed since this was shown." in page
    assert "Confirm it" not in page
    assert desk.post(url, {"decision": "accept", "note": "Yes."}).status_code == 409
    assert Proposal.objects.get().state == "pending"
    assert Statement.objects.filter(year=scene.closed_year).count() == 1
    assert desk.post(url, {"decision": "reject", "note": "Overtaken."}).status_code == 302
    assert Proposal.objects.get().state == "rejected"


def test_what_was_placed_under_older_rules_is_placed_anew(scene: Scene) -> None:
    wrong = Placement.objects.filter(year=scene.closed_year, outcome=Outcome.NOT_RESOLVED).order_by("pk")[0]
    Placement.objects.filter(pk=wrong.pk).update(outcome=Outcome.RESOLVED, rule="without_loss")
    RestatementDue.objects.create(year=scene.closed_year, reasons=["rebuilt"])
    years_close(as_of=NOW)
    assert Statement.objects.get(year=scene.closed_year, revision=2).resolved == 17
    shown = restatement_preview(year=scene.closed_year, reason="x", actor=scene.world.account_manager)
    assert (shown.after.resolved, shown.after.counted) == (16, 20)
    (move,) = shown.differences.moves
    assert move.before is not None
    assert move.after is not None
    assert (move.before.outcome, move.after.outcome) == ("resolved", "not_resolved")


def test_a_large_year_is_taken_as_placed_and_the_operator_places_it_anew(
    desk: Client, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Placement.objects.filter(year=scene.closed_year, outcome=Outcome.NOT_RESOLVED).order_by("pk")[0]
    Placement.objects.filter(pk=wrong.pk).update(outcome=Outcome.RESOLVED, rule="without_loss")
    monkeypatch.setattr(services, "LARGE", 10)
    _, page, _ = preview(desk, scene)
    assert "they are taken as they were placed" in page
    assert "2, afterwards Short 17 / 20" in page
    call_command("placements_rebuild", "ACME-7")
    assert "Nothing has changed since the last statement." in preview(desk, scene)[1]
    with pytest.raises(CommandError, match="no contract"):
        call_command("placements_rebuild", "NONE")


def test_only_a_closed_year_and_only_for_account_managers_with_the_password(client: Client, scene: Scene) -> None:
    running = reverse("desk:restate", args=[scene.contract.pk, scene.running_year.pk])
    for person in (scene.world.owner, scene.world.stranger):
        sign_in(client, person)
        assert client.post(url_of(scene), {"decision": "confirm", "reason": "x"}).status_code == 404
    client.force_login(scene.world.account_manager)
    assert "reauthenticate" in client.post(url_of(scene), {"decision": "confirm", "reason": "x"})["Location"]
    sign_in(client, scene.world.account_manager)
    assert "Only a closed year that was guaranteed can be restated." in text_of(client, running)
    answer = client.post(running, {"decision": "confirm", "reason": "x"})
    assert (answer.status_code, "Only a closed year can be restated." in answer.content.decode()) == (409, True)
    assert client.post(url_of(scene), {"decision": "preview", "reason": " "}).status_code == 200
    other = scene.world.stranger_contract.years.get()
    assert client.get(reverse("desk:restate", args=[scene.contract.pk, other.pk])).status_code == 404


def test_the_database_refuses_a_second_signature_of_the_first_hand(scene: Scene) -> None:
    row = Proposal.objects.create(
        kind="terms", contract=scene.contract, reason="x", shown_sha256="0", proposed_by=scene.world.account_manager
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        Proposal.objects.filter(pk=row.pk).update(state="accepted", decided_by=row.proposed_by, decided_at=NOW)
    with pytest.raises(DomainError, match="a second person must"):
        proposal_decide(proposal=row, accept=True, note="x", actor=scene.world.account_manager)


def test_the_queries_do_not_grow_with_what_moves(
    desk: Client, scene: Scene, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        assert desk.get(url_of(scene)).status_code == 200
    found = []
    for days in ([40], range(60, 70)):
        for day in days:
            late_failure(scene, day)
        with CaptureQueriesContext(connection) as captured:
            assert preview(desk, scene)[0] == 200
        found.append(len(captured))
    assert found[0] == found[1]

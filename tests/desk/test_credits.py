"""A credit at the desk: what is shown, previewed, confirmed and refused, against the ledger."""

import uuid

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.credits import books as make
from tests.people import PASSWORD
from tests.portal.scene import Scene, issue_and_approve
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from yoco.accounts.models import User
from yoco.core.models import AuditEntry
from yoco.credits.models import Credit, CreditState, LedgerTransaction
from yoco.credits.selectors import credit_balance
from yoco.credits.services import credit_apply, credit_restated


def sign_in(client: Client, user: User) -> None:
    """Signs in and gives the password again, as whoever moves money must."""
    client.logout()
    client.force_login(user)
    answer = client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    assert answer.status_code == 302, answer.content


def step_url(scene: Scene, step: str) -> str:
    return reverse("desk:credit_step", args=[scene.credit.pk, step])


def confirm(client: Client, url: str, **fields: str) -> int:
    return client.post(url, {"key": str(uuid.uuid4()), **fields}).status_code


def state(scene: Scene) -> str:
    return Credit.objects.get(pk=scene.credit.pk).state


def test_two_people_issue_approve_and_apply_a_credit(client: Client, scene: Scene) -> None:
    sign_in(client, scene.world.account_manager)
    assert confirm(client, step_url(scene, "issue"), reason="Checked against the statement.") == 302
    assert state(scene) == CreditState.ISSUED

    sign_in(client, scene.world.second_account_manager)
    assert "Fixed" not in text_of(client, step_url(scene, "approve"))
    assert confirm(client, step_url(scene, "approve")) == 302
    credit = Credit.objects.get(pk=scene.credit.pk)
    assert (credit.state, credit.approved_by) == (CreditState.APPROVED, scene.world.second_account_manager)

    apply = reverse("desk:order_apply", args=[scene.order.pk])
    preview = text_of(client, apply)
    assert "Order US$4,800,000.00" in preview
    assert "Applied to orders R-2027 US$1,200,000.00" in preview
    assert "Sum US$0.00" in preview
    assert confirm(client, apply) == 302
    assert credit_balance(credit=credit).applied == 120_000_000

    page = text_of(client, reverse("desk:credit", args=[scene.credit.pk]))
    assert "Checked against the statement." in page
    assert "Applied to orders R-2027 US$1,200,000.00" in page
    assert page.count("Sum US$0.00") == LedgerTransaction.objects.filter(contract=scene.contract).count()
    actions = list(AuditEntry.objects.filter(subject_id=str(credit.pk)).values_list("action", flat=True))
    assert {"credit.issued", "credit.approved"} <= set(actions)


def test_a_credit_for_an_invented_year_says_so_to_both_sides(client: Client, scene: Scene) -> None:
    sign_in(client, scene.world.account_manager)
    assert "Synthetic" in text_of(client, reverse("desk:credit", args=[scene.credit.pk]))
    sign_in(client, scene.world.owner)
    assert "Synthetic" in text_of(client, reverse("portal:credits", args=[scene.contract.pk]))


def test_a_preview_changes_nothing(client: Client, scene: Scene) -> None:
    issue_and_approve(scene)
    sign_in(client, scene.world.account_manager)
    before = (state(scene), LedgerTransaction.objects.count(), AuditEntry.objects.count())
    for url in (step_url(scene, "reverse"), reverse("desk:order_apply", args=[scene.order.pk])):
        assert "What it will post" in text_of(client, url)
    assert (state(scene), LedgerTransaction.objects.count(), AuditEntry.objects.count()) == before


def test_whoever_issued_cannot_approve(client: Client, scene: Scene) -> None:
    sign_in(client, scene.world.account_manager)
    confirm(client, step_url(scene, "issue"), reason="Checked.")
    assert "Whoever issued a credit cannot approve it" in text_of(client, step_url(scene, "approve"))
    assert confirm(client, step_url(scene, "approve")) == 409
    assert state(scene) == CreditState.ISSUED
    # The same step succeeds for the other person.
    sign_in(client, scene.world.second_account_manager)
    assert confirm(client, step_url(scene, "approve")) == 302


def test_a_step_that_moves_money_asks_for_the_password(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.account_manager)
    for url in (step_url(scene, "issue"), reverse("desk:order_apply", args=[scene.order.pk])):
        for answer in (client.get(url), client.post(url, {"key": str(uuid.uuid4()), "reason": "Checked."})):
            assert answer.status_code == 302
            assert answer["location"].startswith(reverse("account_reauthenticate"))
    assert state(scene) == CreditState.PROPOSED


def test_customers_cannot_take_a_step_even_with_the_password(client: Client, scene: Scene) -> None:
    for person in (scene.world.owner, scene.world.stranger):
        sign_in(client, person)
        assert confirm(client, step_url(scene, "issue"), reason="Give it to me.") == 404
    assert state(scene) == CreditState.PROPOSED


def test_an_issue_without_a_reason_is_refused_and_says_so(client: Client, scene: Scene) -> None:
    sign_in(client, scene.world.account_manager)
    answer = client.post(step_url(scene, "issue"), {"key": str(uuid.uuid4()), "reason": " "})
    assert answer.status_code == 200
    assert "This field is required." in answer.content.decode()
    assert state(scene) == CreditState.PROPOSED


def test_confirming_twice_applies_once(client: Client, scene: Scene) -> None:
    issue_and_approve(scene)
    sign_in(client, scene.world.account_manager)
    url = reverse("desk:order_apply", args=[scene.order.pk])
    fields = {"key": str(uuid.uuid4())}
    assert [client.post(url, fields).status_code for _ in range(2)] == [302, 302]
    assert credit_balance(credit=scene.credit).applied == 120_000_000
    assert confirm(client, url) == 409  # a new request finds nothing left to apply


def test_reversing_puts_a_new_proposal_in_its_place(client: Client, scene: Scene) -> None:
    issue_and_approve(scene)
    sign_in(client, scene.world.account_manager)
    assert confirm(client, step_url(scene, "reverse"), reason="The wrong order was recorded.") == 302
    assert state(scene) == CreditState.REVERSED
    assert Credit.objects.filter(year=scene.closed_year, state=CreditState.PROPOSED).count() == 1
    page = text_of(client, reverse("desk:credit", args=[scene.credit.pk]))
    assert "The wrong order was recorded." in page


def flag(scene: Scene) -> None:
    """A restatement finds the closed year met after its credit has paid an order."""
    issue_and_approve(scene)
    credit_apply(order_id=scene.order.pk, actor=scene.world.account_manager, amount_minor=20_000_000)
    met = make.statement(scene.closed_year, scene.credit.terms, short=False)
    credit_restated(year=scene.closed_year, statement_id=met.pk, statement_sha256=met.sha256, short=False)


def test_a_flagged_credit_is_withdrawn_after_a_look(client: Client, scene: Scene) -> None:
    flag(scene)
    sign_in(client, scene.world.account_manager)
    assert "Credits to settle 1" in text_of(client, reverse("desk:portfolio"))
    assert "ACME-7 · Year 1" in text_of(client, reverse("desk:queue", args=["credits-to-settle"]))
    assert "It pays nothing until somebody settles it." in text_of(
        client, reverse("desk:credit", args=[scene.credit.pk])
    )
    preview = text_of(client, step_url(scene, "withdraw"))
    assert "Available to the customer -US$1,000,000.00" in preview
    assert credit_balance(credit=scene.credit).available == 100_000_000
    assert confirm(client, step_url(scene, "withdraw"), reason=" ") == 200
    key = str(uuid.uuid4())
    for _ in range(2):
        answer = client.post(step_url(scene, "withdraw"), {"key": key, "reason": "Agreed by telephone."})
        assert answer.status_code == 302
    balance = credit_balance(credit=scene.credit)
    assert (balance.available, balance.applied) == (0, 20_000_000)
    assert Credit.objects.get(pk=scene.credit.pk).review_since is None
    assert "Agreed by telephone." in text_of(client, reverse("desk:credit", args=[scene.credit.pk]))
    assert confirm(client, step_url(scene, "withdraw"), reason="Again.") == 409


def test_a_flagged_credit_can_stay_the_customers(client: Client, scene: Scene) -> None:
    flag(scene)
    sign_in(client, scene.world.account_manager)
    assert "the books stay as they are" in text_of(client, step_url(scene, "keep"))
    assert confirm(client, step_url(scene, "keep"), reason="Goodwill.") == 302
    assert credit_balance(credit=scene.credit).available == 100_000_000
    assert confirm(client, reverse("desk:order_apply", args=[scene.order.pk])) == 302


def test_only_account_managers_settle_and_only_what_is_flagged(client: Client, scene: Scene) -> None:
    issue_and_approve(scene)
    sign_in(client, scene.world.account_manager)
    assert "does not await settlement" in text_of(client, step_url(scene, "keep"))
    assert confirm(client, step_url(scene, "withdraw"), reason="Mine.") == 409
    sign_in(client, scene.world.owner)
    assert confirm(client, step_url(scene, "keep"), reason="Mine.") == 404


def test_an_unknown_step_or_credit_does_not_exist(client: Client, scene: Scene) -> None:
    sign_in(client, scene.world.account_manager)
    assert client.get(f"/desk/credits/{scene.credit.pk}/erase/").status_code == 404
    assert client.get(reverse("desk:credit", args=[uuid.uuid4()])).status_code == 404


def test_the_portfolio_lists_what_waits_and_ranks_by_risk(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.account_manager)
    page = text_of(client, reverse("desk:portfolio"))
    assert "Credits to issue 1" in page
    assert "ACME-7 Acme Undecided 92.30 % 12 / 13 0" in page
    queue = text_of(client, reverse("desk:queue", args=["credits-to-issue"]))
    assert "ACME-7 · Year 1 Acme" in queue


def test_the_contract_page_has_terms_years_orders_and_credits(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.account_manager)
    page = text_of(client, reverse("desk:contract", args=[scene.contract.pk]))
    assert "Year 1 1 Sept 2026 – 31 Aug 2027 Closed Revision 1 Short Restate , Year 1 Record" in page  # noqa: RUF001
    assert "R-2027 Renewal 2 Nov 2027 US$4,800,000.00" in page
    assert "Version 1 In force from 1 Sept 2026 Threshold 90/100 · Credit 25/100" in page


@pytest.mark.parametrize("page", ["portfolio", "contract", "credit"])
def test_a_page_takes_few_queries(
    client: Client, scene: Scene, page: str, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    issue_and_approve(scene)
    client.force_login(scene.world.account_manager)
    arguments = {"portfolio": [], "contract": [scene.contract.pk], "credit": [scene.credit.pk]}
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        assert client.get(reverse(f"desk:{page}", args=arguments[page])).status_code == 200

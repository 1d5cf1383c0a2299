"""Propose, issue, approve, reverse: who may, in which order, and what the books say afterwards."""

import pytest
from django.db import IntegrityError, transaction

from tests.credits import books as make
from tests.people import World
from yoco.contracts.models import ContractYear
from yoco.core.models import AuditEntry, OutboxEvent
from yoco.core.problem import DomainError
from yoco.credits.models import Credit, CreditState, LedgerTransaction
from yoco.credits.selectors import CreditBalance, credit_amount_expected, credit_balance
from yoco.credits.services import credit_approve, credit_issue, credit_propose, credit_reverse


def test_a_year_fees_credit_is_posted_at_issue_and_available_after_approval(books: World) -> None:
    terms = make.year_fees(books.year, 1_000_010)
    credit = make.issued(books, books.year, terms)
    # 25 % of 10,000.10 € is 2,500.025 €: the tie goes to the even cent.
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=250_002, awaiting=250_002)
    credit = credit_approve(credit_id=credit.pk, actor=books.second_account_manager)
    assert credit.state == CreditState.APPROVED
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=250_002, available=250_002)
    entries = list(LedgerTransaction.objects.order_by("sequence"))
    assert [e.kind for e in entries] == ["issue", "approve"]
    assert {(e.statement_id, e.statement_sha256) for e in entries} == {(credit.statement_id, credit.statement_sha256)}
    assert [e.actor for e in entries] == [books.account_manager, books.second_account_manager]


def test_rounding_half_up_is_a_term(books: World) -> None:
    make.year_fees(books.year, 1_000_010)
    terms = make.terms_version(books.contract, credit_base="year_fees", rounding="half_up")
    assert credit_balance(credit=make.approved(books, books.year, terms)).granted == 250_003


def test_every_step_writes_audit_log_and_outbox(books: World) -> None:
    credit = make.approved(books, books.year, make.year_fees(books.year, 100))
    steps = ["credit.proposed", "credit.issued", "credit.approved"]
    assert (
        list(AuditEntry.objects.filter(subject_id=str(credit.pk)).order_by("id").values_list("action", flat=True))
        == steps
    )
    events = OutboxEvent.objects.filter(subject_id=str(credit.pk)).order_by("id")
    assert [e.kind for e in events] == steps
    assert {e.payload["statement"] for e in events} == {str(credit.statement_id)}


def test_proposing_again_changes_nothing(books: World) -> None:
    row = make.statement(books.year, books.terms)
    first, second = (
        credit_propose(year=books.year, statement_id=row.pk, statement_sha256=row.sha256) for _ in range(2)
    )
    assert first == second
    assert Credit.objects.count() == 1


@pytest.mark.parametrize(
    ("verdict_short", "hash_wrong", "code"), [(False, False, "statement_not_short"), (True, True, "statement_foreign")]
)
def test_a_proposal_needs_its_own_statement_that_says_short(
    books: World, verdict_short: bool, hash_wrong: bool, code: str
) -> None:
    row = make.statement(books.year, books.terms, short=verdict_short)
    with pytest.raises(DomainError) as refused:
        credit_propose(year=books.year, statement_id=row.pk, statement_sha256="0" * 64 if hash_wrong else row.sha256)
    assert refused.value.code == code
    assert not Credit.objects.exists()


def test_the_issuer_cannot_approve(books: World) -> None:
    credit = make.issued(books, books.year, make.year_fees(books.year, 1000))
    with pytest.raises(DomainError, match="second person"):
        credit_approve(credit_id=credit.pk, actor=books.account_manager)
    with pytest.raises(IntegrityError, match="credit_four_eyes"), transaction.atomic():
        Credit.objects.filter(pk=credit.pk).update(
            state="approved", approved_by=books.account_manager, approved_at=make.NOW
        )
    assert credit_balance(credit=credit).available == 0


def test_customers_can_neither_issue_nor_approve(books: World) -> None:
    terms = make.year_fees(books.year, 1000)
    credit = make.proposed(books.year, terms)
    with pytest.raises(DomainError, match="account manager"):
        credit_issue(credit_id=credit.pk, actor=books.owner, reason="mine")
    credit_issue(credit_id=credit.pk, actor=books.account_manager, reason="8 of 10")
    with pytest.raises(DomainError, match="account manager"):
        credit_approve(credit_id=credit.pk, actor=books.owner)


@pytest.mark.parametrize("reason", ["", "  \n", "x" * 2001, "a\0b", "\ud800"])
def test_a_reason_must_be_text(books: World, reason: str) -> None:
    credit = make.proposed(books.year, books.terms)
    with pytest.raises(DomainError, match="reason"):
        credit_issue(credit_id=credit.pk, actor=books.account_manager, reason=reason)


def test_issuing_needs_the_fees_of_the_year(books: World) -> None:
    terms = make.terms_version(books.contract, credit_base="year_fees")
    credit = make.proposed(books.year, terms)
    with pytest.raises(DomainError, match="fees"):
        credit_issue(credit_id=credit.pk, actor=books.account_manager, reason="8 of 10")
    credit.refresh_from_db()
    assert credit.state == CreditState.PROPOSED


def test_a_retry_gets_the_earlier_result_and_another_request_under_its_key_is_refused(books: World) -> None:
    credit = make.proposed(books.year, make.year_fees(books.year, 1000))
    for _ in range(2):
        credit_issue(credit_id=credit.pk, actor=books.account_manager, reason="8 of 10", key="form-1")
    assert LedgerTransaction.objects.count() == 1
    with pytest.raises(DomainError) as refused:
        credit_issue(credit_id=credit.pk, actor=books.account_manager, reason="other", key="form-1")
    assert refused.value.code == "key_reused"
    with pytest.raises(DomainError) as refused:
        credit_approve(credit_id=credit.pk, actor=books.second_account_manager, key="form-1")
    assert refused.value.code == "key_reused"
    with pytest.raises(DomainError) as refused:
        credit_issue(credit_id=credit.pk, actor=books.second_account_manager, reason="again")
    assert refused.value.code == "wrong_state"
    for _ in range(2):
        credit_approve(credit_id=credit.pk, actor=books.second_account_manager)
    assert LedgerTransaction.objects.count() == 2


def test_reversing_an_unused_credit_proposes_it_afresh(books: World) -> None:
    wrong = make.approved(books, books.year, make.year_fees(books.year, 1000))
    ContractYear.objects.filter(pk=books.year.pk).update(fees_minor=2000)
    fresh = credit_reverse(credit_id=wrong.pk, actor=books.account_manager, reason="Wrong fees")
    assert credit_reverse(credit_id=wrong.pk, actor=books.account_manager, reason="Wrong fees") == fresh
    wrong.refresh_from_db()
    assert (wrong.state, fresh.state, fresh.replaces) == ("reversed", "proposed", wrong)
    assert credit_balance(credit=wrong) == CreditBalance("EUR")
    last = LedgerTransaction.objects.order_by("sequence").last()
    assert last is not None
    assert (last.kind, last.reverses.kind, last.reason) == ("reverse", "issue", "Wrong fees")
    assert credit_amount_expected(credit=fresh) == 500
    credit_issue(credit_id=fresh.pk, actor=books.second_account_manager, reason="Right fees")
    assert credit_balance(credit=fresh).awaiting == 500


def test_an_issued_credit_sent_back_leaves_empty_books(books: World) -> None:
    credit = make.issued(books, books.year, make.year_fees(books.year, 1000))
    credit_reverse(credit_id=credit.pk, actor=books.second_account_manager, reason="Check the fees")
    assert credit_balance(credit=credit) == CreditBalance("EUR")

"""A restatement corrects a credit by new postings only; what was used is for people to settle."""

import datetime

import pytest

from tests.credits import books as make
from tests.people import World
from yoco.core.problem import DomainError
from yoco.credits.models import Credit, CreditState, LedgerTransaction
from yoco.credits.selectors import CreditBalance, credit_balance
from yoco.credits.services import (
    credit_apply,
    credit_issue,
    credit_restated,
    credit_reverse,
    credit_settle,
    credits_expire,
    credits_reinstate,
)
from yoco.guarantee.models import Statement


def restate(world: World, *, short: bool) -> tuple[Statement, Credit | None]:
    """A restatement, told to the ledger twice as a retry would."""
    row = make.statement(world.year, world.terms, short=short)
    for _ in range(2):
        credit = credit_restated(year=world.year, statement_id=row.pk, statement_sha256=row.sha256, short=short)
    return row, credit


def used(world: World) -> Credit:
    """An approved credit of 1000 of which 300 paid an order."""
    credit = make.approved(world, world.year, make.year_fees(world.year, 4000))
    credit_apply(order_id=make.order(world.contract, 300).pk, actor=world.account_manager)
    return credit


def test_met_into_short_proposes_one(books: World) -> None:
    make.statement(books.year, books.terms, short=False)
    row, credit = restate(books, short=True)
    assert credit is not None
    assert (credit.state, credit.statement, Credit.objects.count()) == (CreditState.PROPOSED, row, 1)


def test_short_into_met_withdraws_a_proposal(books: World) -> None:
    credit = make.proposed(books.year, books.terms)
    _, live = restate(books, short=False)
    credit.refresh_from_db()
    assert (live, credit.state, LedgerTransaction.objects.count()) == (None, CreditState.REVERSED, 0)


def test_short_into_met_reverses_an_unused_credit_in_the_name_of_the_restatement(books: World) -> None:
    credit = make.approved(books, books.year, make.year_fees(books.year, 4000))
    row, _ = restate(books, short=False)
    credit.refresh_from_db()
    assert credit.state == CreditState.REVERSED
    assert credit_balance(credit=credit) == CreditBalance("EUR")
    last = LedgerTransaction.objects.get(sequence=3)
    assert (last.kind, last.statement, last.statement_sha256, last.actor) == ("reverse", row, row.sha256, None)
    row, again = restate(books, short=True)
    assert again is not None
    assert (again.statement, again.state, again.pk != credit.pk) == (row, CreditState.PROPOSED, True)


def test_short_into_met_flags_a_used_credit_and_stops_it(books: World) -> None:
    credit = used(books)
    row, live = restate(books, short=False)
    assert live == credit
    credit.refresh_from_db()
    assert (credit.state, credit.review_statement) == (CreditState.APPROVED, row)
    with pytest.raises(DomainError, match="No approved credit"):
        credit_apply(order_id=make.order(books.contract, 300).pk, actor=books.account_manager)
    with pytest.raises(DomainError, match="settle it"):
        credit_reverse(credit_id=credit.pk, actor=books.account_manager, reason="x")


def test_people_withdraw_what_is_left(books: World) -> None:
    credit = used(books)
    row, _ = restate(books, short=False)
    for _ in range(2):
        credit_settle(
            credit_id=credit.pk, actor=books.account_manager, withdraw=True, reason="Agreed by phone", key="s"
        )
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=300, applied=300)
    last = LedgerTransaction.objects.order_by("sequence").last()
    assert last is not None
    assert (last.statement, last.reason) == (row, "Agreed by phone")
    with pytest.raises(DomainError, match="does not await"):
        credit_settle(credit_id=credit.pk, actor=books.account_manager, withdraw=True, reason="again")


def test_people_let_the_customer_keep_it(books: World) -> None:
    credit = used(books)
    restate(books, short=False)
    credit_settle(credit_id=credit.pk, actor=books.account_manager, withdraw=False, reason="Goodwill")
    credit_apply(order_id=make.order(books.contract, 5000).pk, actor=books.account_manager)
    assert credit_balance(credit=credit).applied == 1000


def test_withdrawing_what_came_back_entirely_reverses_the_credit(books: World) -> None:
    credit = used(books)
    restate(books, short=False)
    paid = LedgerTransaction.objects.get(kind="apply").postings.get(account__kind="applied").order
    assert paid is not None
    make.cancel(paid)
    credits_reinstate(order_id=paid.pk, actor=None)
    credit_settle(credit_id=credit.pk, actor=books.account_manager, withdraw=True, reason="Order cancelled")
    credit.refresh_from_db()
    assert credit.state == CreditState.REVERSED
    assert credit_balance(credit=credit) == CreditBalance("EUR")


def test_keeping_a_credit_whose_order_was_cancelled_makes_it_wait_for_the_next(books: World) -> None:
    credit = make.approved(books, books.year, books.terms)
    first = make.order(books.contract, 4000)
    credit_apply(order_id=first.pk, actor=books.account_manager)
    restate(books, short=False)
    make.cancel(first)
    credits_reinstate(order_id=first.pk, actor=None)
    credit_settle(credit_id=credit.pk, actor=books.account_manager, withdraw=False, reason="Goodwill")
    credit.refresh_from_db()
    assert (credit.amount_order, credit_balance(credit=credit)) == (None, CreditBalance("EUR"))


def test_met_takes_over_the_question_about_a_cancelled_order_until_short_again(books: World) -> None:
    credit = make.approved(books, books.year, books.terms)
    first, other = make.order(books.contract, 4000), make.order(books.contract, 4000, day=datetime.date(2027, 11, 3))
    credit_apply(order_id=other.pk, actor=books.account_manager, amount_minor=10)
    make.cancel(first)
    credits_reinstate(order_id=first.pk, actor=None)
    met, _ = restate(books, short=False)
    credit.refresh_from_db()
    assert (credit.review_statement, "was met" in credit.review_reason) == (met, True)
    restate(books, short=True)
    credit.refresh_from_db()
    assert (credit.review_statement, first.number in credit.review_reason) == (credit.statement, True)
    met, _ = restate(books, short=False)
    credit_settle(credit_id=credit.pk, actor=books.account_manager, withdraw=True, reason="The year was met")
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=10, applied=10)
    last = LedgerTransaction.objects.order_by("sequence").last()
    assert last is not None
    assert (last.kind, last.statement) == ("reverse", met)


def test_short_again_takes_the_flag_away(books: World) -> None:
    credit = used(books)
    restate(books, short=False)
    restate(books, short=True)
    credit.refresh_from_db()
    assert credit.review_since is None
    assert Credit.objects.count() == 1


def test_an_expired_credit_that_was_used_is_flagged_too(books: World, clock: object) -> None:
    credit = used(books)
    credits_expire(as_of=datetime.datetime(2028, 9, 1, tzinfo=datetime.UTC))
    restate(books, short=False)
    credit.refresh_from_db()
    assert (credit.state, credit.review_since is not None) == (CreditState.EXPIRED, True)
    credit_settle(credit_id=credit.pk, actor=books.account_manager, withdraw=True, reason="Nothing is left")
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=1000, applied=300, forfeited=700)


def test_an_unrelated_year_is_left_alone(books: World) -> None:
    second = make.second_year(books.contract)
    other = make.issued(books, second, make.year_fees(second, 4000))
    restate(books, short=False)
    assert credit_issue(credit_id=other.pk, actor=books.account_manager, reason="8 of 10").state == CreditState.ISSUED

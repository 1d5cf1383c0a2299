"""Amounts fixed by orders, partial payments, caps, cancellations, expiry."""

import datetime

import pytest
import time_machine

from tests.credits import books as make
from tests.people import World
from yoco.accounts.models import User
from yoco.contracts.models import Contract, GuaranteeTerms, OrderKind
from yoco.core.problem import DomainError
from yoco.credits.models import Credit, CreditState, LedgerTransaction
from yoco.credits.selectors import CreditBalance, credit_balance, credit_expires_at, order_payment
from yoco.credits.services import (
    credit_apply,
    credit_issue,
    credit_reverse,
    credit_settle,
    credits_expire,
    credits_fix,
    credits_reinstate,
    credits_sweep,
)


def cancelled(world: World, row: object) -> None:
    make.cancel(row)
    credits_reinstate(order_id=row.pk, actor=world.account_manager)


def test_the_next_order_fixes_the_amount_and_is_paid_in_part(books: World) -> None:
    credit = make.approved(books, books.year, books.terms)
    assert credit_balance(credit=credit) == CreditBalance("EUR")
    renewal = make.order(books.contract, 100_000_00)
    assert credits_fix(contract_id=books.contract.pk) == [credit]
    assert credits_fix(contract_id=books.contract.pk) == []
    assert credit_balance(credit=credit).available == 25_000_00
    (paid,) = credit_apply(order_id=renewal.pk, actor=books.account_manager)
    assert (paid.kind, paid.statement_sha256) == ("apply", credit.statement_sha256)
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=25_000_00, applied=25_000_00)
    assert order_payment(order=renewal).due == 75_000_00


def test_an_order_recorded_before_approval_counts_if_it_came_after_the_year(books: World) -> None:
    make.order(books.contract, 7777, day=datetime.date(2027, 8, 31))
    first = make.order(books.contract, 4000, day=datetime.date(2027, 9, 1))
    make.order(books.contract, 8000, day=datetime.date(2027, 9, 2))
    credit = make.approved(books, books.year, books.terms)
    assert (credit.amount_order, credit_balance(credit=credit).available) == (first, 1000)


def test_one_credit_pays_several_orders_and_an_order_is_never_below_zero(books: World) -> None:
    credit = make.approved(books, books.year, make.year_fees(books.year, 4000))
    small, large = make.order(books.contract, 300), make.order(books.contract, 5000)
    credit_apply(order_id=small.pk, actor=books.account_manager)
    assert order_payment(order=small).due == 0
    credit_apply(order_id=large.pk, actor=books.account_manager, amount_minor=200)
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=1000, applied=500, available=500)
    credit_apply(order_id=large.pk, actor=books.account_manager)
    assert order_payment(order=large).due == 4300
    with pytest.raises(DomainError, match="No approved credit"):
        credit_apply(order_id=large.pk, actor=books.account_manager)
    with pytest.raises(DomainError, match="cap is reached"):
        credit_apply(order_id=small.pk, actor=books.account_manager)


def test_the_cap_is_that_of_the_terms_on_the_orders_day(books: World) -> None:
    make.approved(books, books.year, make.year_fees(books.year, 40_000))
    GuaranteeTerms.objects.create(
        contract=books.contract,
        version=9,
        effective_on=datetime.date(2027, 11, 2),
        credit_cap_num=1,
        credit_cap_den=3,
    )
    earlier = make.order(books.contract, 1000, day=datetime.date(2027, 11, 1))
    later = make.order(books.contract, 1000, day=datetime.date(2027, 11, 2))
    for row in (earlier, later):
        credit_apply(order_id=row.pk, actor=books.account_manager)
    assert order_payment(order=earlier).paid == 1000
    assert order_payment(order=later).paid == 333


def test_several_credits_pay_one_order_by_priority_then_earlier_expiry(books: World) -> None:
    terms = make.year_fees(books.year, 400)
    second = make.second_year(books.contract)
    make.year_fees(second, 800)
    first = make.approved(books, books.year, terms)
    urgent = make.approved(books, second, terms, priority=1)
    row = make.order(books.contract, 250, day=datetime.date(2028, 9, 1))
    paid = credit_apply(order_id=row.pk, actor=books.account_manager)
    assert [(t.postings.first().credit, t.postings.first().minor) for t in paid] == [(urgent, -200), (first, -50)]


def test_applying_is_idempotent_under_its_key(books: World) -> None:
    make.approved(books, books.year, make.year_fees(books.year, 4000))
    row = make.order(books.contract, 5000)
    first, second = (
        credit_apply(order_id=row.pk, actor=books.account_manager, amount_minor=100, key="k") for _ in range(2)
    )
    assert first == second
    assert order_payment(order=row).paid == 100
    with pytest.raises(DomainError) as refused:
        credit_apply(order_id=row.pk, actor=books.account_manager, amount_minor=101, key="k")
    assert refused.value.code == "key_reused"


def test_a_cancelled_order_gives_back_what_it_used_and_fixes_nothing(books: World) -> None:
    credit = make.approved(books, books.year, books.terms)
    row = make.order(books.contract, 4000)
    credit_apply(order_id=row.pk, actor=books.account_manager)
    with pytest.raises(DomainError, match="not cancelled"):
        credits_reinstate(order_id=row.pk, actor=books.account_manager)
    for _ in range(2):
        cancelled(books, row)
    credit.refresh_from_db()
    assert (credit.state, credit.amount_order) == (CreditState.APPROVED, None)
    assert credit_balance(credit=credit) == CreditBalance("EUR")
    assert order_payment(order=row).paid == 0
    with pytest.raises(DomainError, match="is cancelled"):
        credit_apply(order_id=row.pk, actor=books.account_manager)
    following = make.order(books.contract, 400)
    credit_apply(order_id=following.pk, actor=books.account_manager)
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=100, applied=100)


def test_an_amount_used_elsewhere_stays_and_people_are_asked_when_its_order_is_cancelled(books: World) -> None:
    credit = make.approved(books, books.year, books.terms)
    first, other = make.order(books.contract, 4000), make.order(books.contract, 4000, day=datetime.date(2027, 11, 3))
    credits_fix(contract_id=books.contract.pk)
    credit_apply(order_id=other.pk, actor=books.account_manager, amount_minor=10)
    cancelled(books, first)
    credit.refresh_from_db()
    assert credit.review_since is not None
    assert first.number in credit.review_reason
    assert credit_balance(credit=credit).applied == 10
    with pytest.raises(DomainError, match="No approved credit"):
        credit_apply(order_id=other.pk, actor=books.account_manager)
    credit_settle(credit_id=credit.pk, actor=books.account_manager, withdraw=False, reason="Agreed")
    credits_sweep()
    cancelled(books, first)
    credit.refresh_from_db()
    assert credit.review_since is None, "people are asked once"
    credit_apply(order_id=other.pk, actor=books.account_manager)
    assert credit_balance(credit=credit).applied == 1000


@pytest.mark.parametrize("other_cancelled", [False, True])
def test_people_cannot_withdraw_a_credit_while_its_year_still_fell_short(books: World, other_cancelled: bool) -> None:
    credit = make.approved(books, books.year, books.terms)
    first, other = make.order(books.contract, 4000), make.order(books.contract, 4000, day=datetime.date(2027, 11, 3))
    credit_apply(order_id=other.pk, actor=books.account_manager, amount_minor=10)
    cancelled(books, first)
    if other_cancelled:
        cancelled(books, other)
    before = credit_balance(credit=credit)
    with pytest.raises(DomainError, match="still fell short") as refused:
        credit_settle(credit_id=credit.pk, actor=books.account_manager, withdraw=True, reason="Not needed")
    assert refused.value.code == "still_short"
    credit.refresh_from_db()
    assert (credit.review_since is not None, credit_balance(credit=credit)) == (True, before)
    credit_settle(credit_id=credit.pk, actor=books.account_manager, withdraw=False, reason="Owed")
    if other_cancelled:
        assert credit_reverse(credit_id=credit.pk, actor=books.account_manager, reason="Anew").state == "proposed"


@pytest.mark.parametrize(
    ("fields", "last_instant"),
    [
        ({}, datetime.datetime(2028, 8, 31, 21, 59, 59, tzinfo=datetime.UTC)),
        (
            {"credit_expiry": "date", "credit_expires_on": datetime.date(2028, 2, 29)},
            datetime.datetime(2028, 2, 29, 22, 59, 59, tzinfo=datetime.UTC),
        ),
        (
            {"credit_expiry": "months", "credit_expiry_months": 3},
            datetime.datetime(2028, 2, 2, 22, 59, 59, tzinfo=datetime.UTC),
        ),
    ],
)
def test_what_is_left_is_forfeited_when_it_runs_out(
    books: World, clock: time_machine.Traveller, fields: dict[str, object], last_instant: datetime.datetime
) -> None:
    make.year_fees(books.year, 4000)
    terms = make.terms_version(books.contract, credit_base="year_fees", **fields)
    credit = make.approved(books, books.year, terms)
    row = make.order(books.contract, 300)
    credit_apply(order_id=row.pk, actor=books.account_manager)
    clock.move_to(last_instant, tick=False)
    assert credits_expire() == []
    clock.move_to(last_instant + datetime.timedelta(seconds=1), tick=False)
    later = make.order(books.contract, 300)
    with pytest.raises(DomainError, match="No approved credit"):
        credit_apply(order_id=later.pk, actor=books.account_manager)
    clock.shift(datetime.timedelta(days=3))
    assert credits_expire() == [credit]
    assert credits_expire() == []
    credit.refresh_from_db()
    assert credit.state == CreditState.EXPIRED
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=1000, applied=300, forfeited=700)
    assert credit_balance(credit=credit, as_of=last_instant).available == 700
    assert credit_balance(credit=credit, as_of=last_instant + datetime.timedelta(seconds=1)).available == 0


def test_a_renewal_keeps_the_credit_beyond_the_contracts_end(books: World) -> None:
    credit = make.approved(books, books.year, make.year_fees(books.year, 4000))
    assert credit_expires_at(credit=credit) is not None
    renewal = make.order(books.contract, 9000, kind=OrderKind.RENEWAL)
    assert credit_expires_at(credit=credit) is None
    make.cancel(renewal)
    assert credit_expires_at(credit=credit) is not None


def credit_of_the_last_year(world: World) -> Credit:
    """An approved credit of a contract of one year, which ended two months before."""
    Contract.objects.filter(pk=world.contract.pk).update(ends_on=world.year.ends_on)
    credit = make.approved(world, world.year, world.terms)
    assert credits_expire() == []
    return credit


def test_a_renewal_signed_before_the_last_year_ended_fixes_and_takes_its_credit(books: World) -> None:
    make.order(books.contract, 7777, day=datetime.date(2027, 8, 21))
    renewal = make.order(books.contract, 4000, day=datetime.date(2027, 8, 22), kind=OrderKind.RENEWAL)
    credit = credit_of_the_last_year(books)
    assert (credit.amount_order, credit_expires_at(credit=credit)) == (renewal, None)
    credit_apply(order_id=renewal.pk, actor=books.account_manager)
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=1000, applied=1000)


def test_a_renewal_signed_after_the_last_year_was_closed_fixes_and_takes_its_credit(
    books: World, clock: time_machine.Traveller
) -> None:
    credit = credit_of_the_last_year(books)
    clock.shift(datetime.timedelta(days=20))
    assert credits_expire() == []
    renewal = make.order(books.contract, 4000, day=datetime.date(2027, 11, 22), kind=OrderKind.RENEWAL)
    credit_apply(order_id=renewal.pk, actor=books.account_manager)
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=1000, applied=1000)


def test_without_a_renewal_the_last_years_credit_runs_out_after_the_dispute_window(
    books: World, clock: time_machine.Traveller
) -> None:
    credit = credit_of_the_last_year(books)
    midnight = datetime.datetime(2027, 12, 2, 23, tzinfo=datetime.UTC)  # ends the 30th day in Madrid
    assert credits_expire(as_of=midnight - datetime.timedelta(seconds=1)) == []
    assert credits_expire(as_of=midnight) == [credit]


def test_what_comes_back_after_it_ran_out_is_forfeited_at_once(books: World, clock: time_machine.Traveller) -> None:
    make.year_fees(books.year, 4000)
    terms = make.terms_version(books.contract, credit_base="year_fees", credit_expiry="months", credit_expiry_months=1)
    credit = make.approved(books, books.year, terms)
    row, other = make.order(books.contract, 300), make.order(books.contract, 200)
    for paid in (row, other):
        credit_apply(order_id=paid.pk, actor=books.account_manager)
    clock.shift(datetime.timedelta(days=60))
    credits_expire()
    for back in (row, other):
        cancelled(books, back)
    credit.refresh_from_db()
    assert credit.state == CreditState.EXPIRED
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=1000, forfeited=1000)
    kinds = list(LedgerTransaction.objects.order_by("sequence").values_list("kind", flat=True))
    assert kinds[4:] == ["expire", "reinstate", "expire", "reinstate", "expire"]


def test_a_used_up_credit_does_not_expire(books: World, clock: time_machine.Traveller) -> None:
    credit = make.approved(books, books.year, make.year_fees(books.year, 4000))
    row = make.order(books.contract, 1000)
    credit_apply(order_id=row.pk, actor=books.account_manager)
    clock.move_to(datetime.datetime(2029, 1, 1, tzinfo=datetime.UTC))
    assert credits_expire() == []
    cancelled(books, row)
    credit.refresh_from_db()
    assert credit.state == CreditState.EXPIRED
    assert credit_balance(credit=credit).forfeited == 1000


def test_proposals_and_issued_credits_run_out_too(books: World, clock: time_machine.Traveller) -> None:
    second = make.second_year(books.contract)
    terms = make.year_fees(books.year, 4000)
    issued, proposed = make.issued(books, books.year, terms), make.proposed(second, books.terms)
    clock.move_to(datetime.datetime(2028, 9, 2, tzinfo=datetime.UTC))
    with pytest.raises(DomainError, match="ran out on Aug"):
        credit_issue(credit_id=proposed.pk, actor=books.account_manager, reason="late")
    assert set(credits_expire()) == {issued, proposed}
    assert credit_balance(credit=issued) == CreditBalance("EUR", granted=1000, forfeited=1000)


def test_a_used_credit_cannot_be_reversed(books: World) -> None:
    credit = make.approved(books, books.year, make.year_fees(books.year, 4000))
    row = make.order(books.contract, 300)
    credit_apply(order_id=row.pk, actor=books.account_manager)
    with pytest.raises(DomainError, match="Cancel that order first"):
        credit_reverse(credit_id=credit.pk, actor=books.account_manager, reason="Oops")
    cancelled(books, row)
    assert credit_reverse(credit_id=credit.pk, actor=books.account_manager, reason="Oops").state == "proposed"


def test_the_sweep_does_what_a_forgotten_call_left_undone(books: World, clock: time_machine.Traveller) -> None:
    credit = make.approved(books, books.year, books.terms)
    first = make.order(books.contract, 4000)
    assert credits_sweep() == 1
    assert credits_sweep() == 0
    assert credit_balance(credit=credit).available == 1000
    credit_apply(order_id=first.pk, actor=books.account_manager, amount_minor=10)
    make.cancel(first)
    make.order(books.contract, 400)
    for _ in range(2):
        credits_sweep()
    assert credit_balance(credit=credit) == CreditBalance("EUR", granted=100, available=100)
    clock.move_to(datetime.datetime(2028, 9, 2, tzinfo=datetime.UTC))
    credits_sweep()
    assert Credit.objects.get().state == CreditState.EXPIRED


def test_only_account_managers_apply(books: World) -> None:
    row = make.order(books.contract, 4000)
    outsider: User = books.owner
    with pytest.raises(DomainError, match="account manager"):
        credit_apply(order_id=row.pk, actor=outsider)


def test_a_credit_that_rounds_to_nothing_posts_nothing(books: World) -> None:
    credit = make.approved(books, books.year, books.terms)
    row = make.order(books.contract, 1)
    credits_fix(contract_id=books.contract.pk)
    credit.refresh_from_db()
    assert (credit.amount_order, LedgerTransaction.objects.count()) == (row, 0)

"""Statements of account, balances of any day, and an export that a stranger can check."""

import csv
import datetime
import hashlib
import io
import json
from typing import Any

import pytest
import time_machine
from pytest_django import DjangoAssertNumQueries

from tests.credits import books as make
from tests.people import World
from yoco.core.problem import DomainError
from yoco.credits.export import account_statement_csv, ledger_export
from yoco.credits.models import Credit
from yoco.credits.selectors import (
    CreditBalance,
    account_statement,
    chain_head,
    credit_amount_expected,
    credit_balance,
    credit_balances,
    transactions_of_credit,
)
from yoco.credits.services import credit_apply, credits_expire, credits_reinstate

DAY = datetime.timedelta(days=1)


@pytest.fixture
def moved(books: World, clock: time_machine.Traveller) -> Credit:
    """1000 approved on day 0, 300 applied on day 1, 200 on day 2, the 300 back on day 3, the rest forfeited later."""
    credit = make.approved(books, books.year, make.year_fees(books.year, 4000))
    first, second = make.order(books.contract, 300), make.order(books.contract, 200)
    for row in (first, second):
        clock.shift(DAY)
        credit_apply(order_id=row.pk, actor=books.account_manager)
    clock.shift(DAY)
    make.cancel(first)
    credits_reinstate(order_id=first.pk, actor=books.account_manager)
    clock.move_to(datetime.datetime(2028, 9, 5, tzinfo=datetime.UTC))
    credits_expire()
    return credit


def test_opening_movements_and_closing_add_up(books: World, moved: Credit) -> None:
    drawn = account_statement(contract=books.contract, start=make.NOW + DAY / 2, end=make.NOW + DAY * 2.5)
    assert (drawn.opening, [(x.minor, x.balance) for x in drawn.lines], drawn.closing) == (
        1000,
        [(-300, 700), (-200, 500)],
        500,
    )
    assert [x.order_number for x in drawn.lines] == ["ACME-1-O1", "ACME-1-O2"]
    assert drawn.head == chain_head(contract=books.contract)
    assert drawn.money[1].format("es") == "5,00\xa0€"
    following = account_statement(
        contract=books.contract, start=make.NOW + DAY * 2.5, end=datetime.datetime(2029, 1, 1, tzinfo=datetime.UTC)
    )
    assert (following.opening, [x.minor for x in following.lines], following.closing) == (500, [300, -800], 0)
    # It is forfeited on the day it ran out, not on the day the sweep noticed.
    assert following.lines[-1].transaction.effective_at == datetime.datetime(2028, 8, 31, 22, tzinfo=datetime.UTC)


def test_a_period_is_half_open_and_not_backwards(books: World, moved: Credit) -> None:
    at = transactions_of_credit(credit=moved)[2].effective_at
    before = account_statement(contract=books.contract, start=at - DAY, end=at)
    after = account_statement(contract=books.contract, start=at, end=at + DAY / 2)
    assert (len(before.lines), before.closing, len(after.lines), after.opening) == (0, 1000, 1, 1000)
    with pytest.raises(DomainError, match="before its start"):
        account_statement(contract=books.contract, start=at, end=at - DAY)


def test_balances_as_of_any_day_and_as_known_on_any_day(books: World, moved: Credit) -> None:
    wanted = {0.5: (1000, 0), 1.5: (700, 300), 2.5: (500, 500), 3.5: (800, 200)}
    for days, (available, applied) in wanted.items():
        balance = credit_balance(credit=moved, as_of=make.NOW + DAY * days)
        assert (balance.available, balance.applied) == (available, applied)
    ran_out = datetime.datetime(2028, 9, 1, tzinfo=datetime.UTC)
    assert credit_balance(credit=moved, as_of=ran_out).forfeited == 800
    assert credit_balance(credit=moved, as_of=ran_out, known_at=ran_out).available == 800
    assert credit_balance(credit=moved, as_of=make.NOW - DAY) == CreditBalance("EUR")


def test_an_empty_statement(books: World) -> None:
    drawn = account_statement(contract=books.contract, start=make.NOW, end=make.NOW + DAY)
    assert (drawn.opening, drawn.lines, drawn.closing, drawn.head) == (0, [], 0, "0" * 64)


def test_the_csv_has_the_same_figures(books: World, moved: Credit) -> None:
    drawn = account_statement(contract=books.contract, start=make.NOW, end=make.NOW + DAY * 2.5)
    rows = list(csv.DictReader(io.StringIO(account_statement_csv(statement=drawn))))
    assert [(r["kind"], r["amount"], r["balance"]) for r in rows] == [
        ("opening", "", "0.00"),
        ("approve", "10.00", "10.00"),
        ("apply", "-3.00", "7.00"),
        ("apply", "-2.00", "5.00"),
        ("closing", "", "5.00"),
    ]


def recompute(export: dict[str, Any]) -> str:
    """What docs/ledger.md tells a stranger to do: the head of the chain, or an AssertionError."""
    fields = [
        "id",
        "contract",
        "sequence",
        "kind",
        "idempotency_key",
        "request_hash",
        "effective_at",
        "recorded_at",
        "statement",
        "statement_sha256",
        "actor",
        "reason",
        "reverses",
        "previous_hash",
    ]
    columns = ["line", "account", "currency", "minor", "credit", "order"]
    head = "0" * 64
    for number, entry in enumerate(export["transactions"], start=1):
        assert (entry["sequence"], entry["previous_hash"]) == (number, head)
        assert sum(p["minor"] for p in entry["postings"]) == 0
        array = [entry[f] for f in fields] + [[[p[c] for c in columns] for p in entry["postings"]]]
        if entry["version"] > 1:
            array.append(entry["grounds"])
        text = json.dumps(array, ensure_ascii=False, separators=(",", ":"))
        head = hashlib.sha256(bytes([entry["version"]]) + text.encode()).hexdigest()
        assert head == entry["hash"]
    return head


def test_a_stranger_can_check_the_export(books: World, moved: Credit) -> None:
    export = json.loads(json.dumps(ledger_export(contract=books.contract)))
    assert recompute(export) == export["head"] == chain_head(contract=books.contract)
    assert len(export["transactions"]) == 6
    (credit,) = export["credits"]
    assert credit["balance"] == {
        "currency": "EUR",
        "granted": 1000,
        "awaiting": 0,
        "available": 0,
        "applied": 200,
        "forfeited": 800,
    }
    export["transactions"][2]["postings"][0]["minor"] -= 1
    export["transactions"][2]["postings"][1]["minor"] += 1
    with pytest.raises(AssertionError):
        recompute(export)


def test_reading_costs_a_constant_number_of_queries(
    books: World, moved: Credit, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(8):
        ledger_export(contract=books.contract)
    with django_assert_num_queries(3):
        account_statement(contract=books.contract, start=make.NOW, end=make.NOW + DAY * 400)
    with django_assert_num_queries(1):
        credit_balances(credits=Credit.objects.none())
        credit_balances(credits=[moved])


def test_the_expected_amount_is_known_before_anything_is_posted(books: World) -> None:
    credit = make.proposed(books.year, books.terms)
    assert credit_amount_expected(credit=credit) is None
    make.order(books.contract, 4000)
    assert credit_amount_expected(credit=credit) == 1000

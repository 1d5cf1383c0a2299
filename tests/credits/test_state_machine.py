"""Hypothesis drives every action, retries and crashes; after each step the ledger must equal the small model."""

import datetime
import random
import uuid
from collections.abc import Callable
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import pytest
import time_machine
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.credits import books as make
from tests.credits.model import Model, Refused
from tests.people import World, build_world
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms, Order, OrderKind
from yoco.core.clock import local_midnight
from yoco.core.models import AuditEntry, OutboxEvent
from yoco.core.problem import DomainError
from yoco.credits import services
from yoco.credits.models import Credit, LedgerTransaction, Posting, Seal, TransactionKind
from yoco.credits.selectors import credit_balances
from yoco.credits.verify import ledger_verify

START = datetime.datetime(2029, 9, 3, 12, tzinfo=datetime.UTC)
NUMBER = st.integers(0, 20)
PERSON = st.integers(0, 1)
AMOUNT = st.integers(1, 50_000)


class PowerCut(Exception):
    """Stands for a crash: the transaction of the action is lost."""


class Ledger(RuleBasedStateMachine):
    """One contract with three years that have ended, each under terms of its own."""

    seen: set[str] = set()

    def __init__(self) -> None:
        super().__init__()
        self.clock = time_machine.travel(START, tick=False)
        self.clock.start()
        self.database = transaction.atomic()
        self.database.__enter__()
        self.credits: list[uuid.UUID] = []
        self.orders: list[Order] = []
        self.verified = -1
        self.last: Callable[[], Any] | None = None

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.database.__exit__(None, None, None)
        self.clock.stop()

    @initialize(
        fees=st.tuples(*[st.one_of(st.none(), st.integers(0, 100_000))] * 3),
        runs_out=st.tuples(*[st.one_of(st.none(), st.integers(30, 150))] * 3),
        signed=st.tuples(*[st.sampled_from([3, 2, 1, 0])] * 3),
        amounts=st.lists(AMOUNT, min_size=1, max_size=3),
        paid=st.sampled_from([True, False]),
    )
    def contract(
        self,
        fees: tuple[int | None, ...],
        runs_out: tuple[int | None, ...],
        signed: tuple[int, ...],
        amounts: list[int],
        paid: bool,
    ) -> None:
        self.world: World = build_world()
        contract = self.world.contract
        Contract.objects.filter(pk=contract.pk).update(ends_on=datetime.date(2030, 3, 1))
        contract.refresh_from_db()
        days = tuple(None if n is None else START.date() + datetime.timedelta(days=n) for n in runs_out)
        self.years: list[ContractYear] = []
        self.terms: list[GuaranteeTerms] = []
        for number, (fee, day) in enumerate(zip(fees, days, strict=True)):
            self.years.append(self.year(contract, number, fee))
            self.terms.append(
                make.terms_version(
                    contract,
                    credit_base="next_order" if fee is None else "year_fees",
                    credit_expiry="contract_end" if day is None else "date",
                    credit_expires_on=day,
                    credit_cap_num=2,
                    credit_cap_den=3,
                )
            )
        self.model = Model(fees, days, datetime.date(2030, 2, 28), START.date())
        for year, steps in enumerate(signed):
            if steps:
                self.restate(year, True)
            for _ in range(1, steps):
                self.sign(len(self.waiting()) - 1, 1)
        for number, amount in enumerate(amounts):
            self.record_order(amount, False)
            if paid:
                self.apply(number, 1 + amount // 10)

    def year(self, contract: Contract, number: int, fees: int | None) -> ContractYear:
        if number == 0:
            ContractYear.objects.filter(pk=self.world.year.pk).update(fees_minor=fees)
            return ContractYear.objects.get(pk=self.world.year.pk)
        days = [datetime.date(2026 + number + n, 9, 1) for n in (0, 1)]
        start, end = (local_midnight(day, contract.time_zone) for day in days)
        return ContractYear.objects.create(
            contract=contract,
            number=number + 1,
            starts_on=days[0],
            ends_on=days[1],
            starts_at=start,
            ends_at=end,
            fees_minor=fees,
        )

    def step(self, action: Callable[[], Any], predict: Callable[[], None]) -> None:
        """Runs the action; it must be refused exactly when the model refuses."""
        # The clock moves on, so that what comes first is also earlier.
        self.now = getattr(self, "now", START) + datetime.timedelta(seconds=1)
        self.clock.stop()
        self.clock = time_machine.travel(self.now, tick=False)
        self.clock.start()
        before = deepcopy(self.model)
        try:
            predict()
        except Refused:
            self.model = before
            with pytest.raises(DomainError):
                action()
            return
        action()
        self.last = action
        self.seen.update(LedgerTransaction.objects.values_list("kind", flat=True))
        self.seen.update({"flagged"} if any(c.review for c in self.model.credits) else ())
        self.credits = list(Credit.objects.order_by("id").values_list("pk", flat=True))

    def credit(self, number: int) -> tuple[int, uuid.UUID]:
        number %= len(self.credits)
        return number, self.credits[number]

    @rule(number=NUMBER, priority=st.integers(0, 2))
    @precondition(lambda self: self.waiting())
    def sign(self, number: int, priority: int) -> None:
        """The right person takes a waiting credit one step further."""
        waiting = self.waiting()
        chosen = waiting[number % len(waiting)]
        if self.model.credits[chosen].state == "proposed":
            self.issue(chosen, 0, priority)
        else:
            self.approve(chosen, 1 - (self.model.credits[chosen].issuer or 0))

    def waiting(self) -> list[int]:
        """The credits that wait for a signature."""
        return [i for i, c in enumerate(self.model.credits) if c.state in ("proposed", "issued")]

    @rule(year=st.integers(0, 2))
    def restate_what_was_used(self, year: int) -> None:
        """The awkward case: a restatement finds the commitment met after its credit paid an order."""
        used = [c.year for c in self.model.credits if c.used and c.state != "reversed"]
        self.restate(used[year % len(used)] if used else year, False)

    @rule(year=st.integers(0, 2), short=st.sampled_from([True, True, False]))
    def restate(self, year: int, short: bool) -> None:
        row = make.statement(self.years[year], self.terms[year], short=short)
        self.step(
            lambda: services.credit_restated(
                year=self.years[year], statement_id=row.pk, statement_sha256=row.sha256, short=short
            ),
            lambda: self.model.restate(year, short),
        )

    @precondition(lambda self: self.credits)
    @rule(number=NUMBER, person=PERSON, action=st.sampled_from(["issue", "approve"]))
    def attempt(self, number: int, person: int, action: str) -> None:
        """Anybody tries to sign anything."""
        if action == "issue":
            self.issue(number, person, 1)
        else:
            self.approve(number, person)

    def issue(self, number: int, person: int, priority: int) -> None:
        number, pk = self.credit(number)
        key = str(uuid.uuid4())
        self.step(
            lambda: services.credit_issue(
                credit_id=pk, actor=make.actor(self.world, person), reason="8 of 10", priority=priority, key=key
            ),
            lambda: self.model.issue(number, person, priority),
        )

    def approve(self, number: int, person: int) -> None:
        number, pk = self.credit(number)
        key = str(uuid.uuid4())
        self.step(
            lambda: services.credit_approve(credit_id=pk, actor=make.actor(self.world, person), key=key),
            lambda: self.model.approve(number, person),
        )

    @precondition(lambda self: self.credits)
    @rule(number=NUMBER, person=PERSON)
    def reverse(self, number: int, person: int) -> None:
        number, pk = self.credit(number)
        key = str(uuid.uuid4())
        self.step(
            lambda: services.credit_reverse(
                credit_id=pk, actor=make.actor(self.world, person), reason="Wrong", key=key
            ),
            lambda: self.model.reverse(number),
        )

    @precondition(lambda self: self.credits)
    @rule(number=NUMBER, withdraw=st.booleans())
    def settle(self, number: int, withdraw: bool) -> None:
        flagged = [i for i, c in enumerate(self.model.credits) if c.review]
        number, pk = self.credit(flagged[number % len(flagged)] if flagged else number)
        key = str(uuid.uuid4())
        self.step(
            lambda: services.credit_settle(
                credit_id=pk, actor=self.world.account_manager, withdraw=withdraw, reason="Agreed", key=key
            ),
            lambda: self.model.settle(number, withdraw),
        )

    @rule(amount=AMOUNT, renewal=st.booleans())
    def record_order(self, amount: int, renewal: bool) -> None:
        kind = OrderKind.RENEWAL if renewal else OrderKind.EXPANSION
        self.orders.append(make.order(self.world.contract, amount, day=self.model.today, kind=kind))
        self.step(
            lambda: services.credits_fix(contract_id=self.world.contract.pk),
            lambda: self.model.record(amount, renewal),
        )

    @precondition(lambda self: self.orders)
    @rule(number=NUMBER, limit=st.one_of(st.none(), AMOUNT))
    def apply(self, number: int, limit: int | None) -> None:
        live = [i for i, o in enumerate(self.model.orders) if o.live] or [0]
        number = live[number % len(live)] if number < 18 else number % len(self.orders)
        key = str(uuid.uuid4())
        self.step(
            lambda: services.credit_apply(
                order_id=self.orders[number].pk, actor=self.world.account_manager, amount_minor=limit, key=key
            ),
            lambda: self.model.apply(number, limit),
        )

    @precondition(lambda self: self.orders)
    @rule(number=NUMBER)
    def cancel_order(self, number: int) -> None:
        number %= len(self.orders)
        if self.model.orders[number].live:
            make.cancel(self.orders[number], START)
            self.step(
                lambda: services.credits_reinstate(order_id=self.orders[number].pk, actor=None),
                lambda: self.model.cancel(number),
            )

    @rule(days=st.integers(1, 30))
    def time_passes(self, days: int) -> None:
        self.model.today += datetime.timedelta(days=days)
        self.now = datetime.datetime.combine(self.model.today, datetime.time(12), tzinfo=datetime.UTC)
        self.step(services.credits_expire, self.model.expire)

    @precondition(lambda self: self.last is not None)
    @rule()
    def retry(self) -> None:
        """The answer was lost: the same request again changes nothing."""
        before = LedgerTransaction.objects.count(), Credit.objects.count(), AuditEntry.objects.count()
        assert self.last is not None
        self.last()
        assert before == (LedgerTransaction.objects.count(), Credit.objects.count(), AuditEntry.objects.count())

    @precondition(lambda self: self.credits and self.orders)
    @rule(number=NUMBER, person=PERSON, point=st.sampled_from(["seal", "outbox"]))
    def crashes(self, number: int, person: int, point: str) -> None:
        actor = make.actor(self.world, person)
        order = self.orders[number % len(self.orders)]
        _, pk = self.credit(number)
        self.crash(point, lambda: services.credit_apply(order_id=order.pk, actor=actor, key="crash"))
        self.crash(point, lambda: services.credit_issue(credit_id=pk, actor=actor, reason="x", key="crash"))
        self.crash(point, lambda: services.credit_approve(credit_id=pk, actor=actor, key="crash"))
        self.crash(point, lambda: services.credit_reverse(credit_id=pk, actor=actor, reason="x", key="crash"))

    def crash(self, point: str, action: Callable[[], Any]) -> None:
        """The power goes at the seal or at the outbox: nothing of the action may be left; see the invariants."""
        target = Seal.objects if point == "seal" else OutboxEvent.objects

        def lost() -> None:
            with transaction.atomic():
                action()
                raise PowerCut  # some actions reach neither

        with patch.object(target, "create", side_effect=PowerCut), pytest.raises((PowerCut, DomainError)):
            lost()

    @invariant()
    def books_equal_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")
        rows = list(Credit.objects.order_by("id"))
        balances = credit_balances(credits=rows)
        for row, wanted in zip(rows, self.model.credits, strict=True):
            balance = balances[row.pk]
            awaiting = wanted.left if wanted.state == "issued" else 0
            assert (row.state, bool(row.review_since), balance.granted) == (
                wanted.state,
                bool(wanted.review),
                (wanted.granted or 0) - wanted.withdrawn,
            )
            assert (balance.awaiting, balance.available) == (awaiting, wanted.left - awaiting)
            assert (balance.applied, balance.forfeited) == (wanted.used, wanted.forfeited)
            assert balance.granted == balance.awaiting + balance.available + balance.applied + balance.forfeited
            assert min(balance.awaiting, balance.available, balance.applied, balance.forfeited) >= 0
        live = [row.year_id for row in rows if row.state != "reversed"]
        assert len(live) == len(set(live))
        assert sum(Posting.objects.values_list("minor", flat=True)) == 0
        if self.verified != (entries := LedgerTransaction.objects.count()):
            verification = ledger_verify()
            assert verification.holds, verification.broken
            self.verified = entries


@pytest.mark.django_db
@pytest.mark.timeout(600)
def test_the_ledger_equals_the_model_whatever_happens() -> None:
    run_state_machine_as_test(
        Ledger,
        settings=settings(
            max_examples=20,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


def random_rule(ledger: Ledger, dice: random.Random) -> Callable[[], None]:
    """One rule that can run now, with random arguments."""
    number, person = dice.randint(0, 20), dice.randint(0, 1)
    rules: list[Callable[[], None]] = [
        lambda: ledger.restate(dice.randint(0, 2), dice.choice([True, True, False])),
        lambda: ledger.restate_what_was_used(dice.randint(0, 2)),
        lambda: ledger.record_order(dice.randint(1, 50_000), dice.choice([True, False])),
        lambda: ledger.time_passes(dice.choice([1, 1, 10, 40])),
    ]
    if ledger.credits:
        rules += [
            lambda: ledger.attempt(number, person, dice.choice(["issue", "approve"])),
            lambda: ledger.settle(number, dice.choice([True, False])),
            lambda: ledger.reverse(number, person),
        ]
    if ledger.waiting():
        rules += [lambda: ledger.sign(number, dice.randint(0, 2))] * 3
    if ledger.orders:
        rules += [lambda: ledger.apply(number, dice.choice([None, dice.randint(1, 20_000)]))] * 3
        rules += [lambda: ledger.cancel_order(number)]
    if ledger.credits and ledger.orders:
        rules += [lambda: ledger.crashes(number, person, dice.choice(["seal", "outbox"]))]
    if ledger.last is not None:
        rules += [ledger.retry]
    return dice.choice(rules)


def walk(seed: int, steps: int) -> set[str]:
    """A long random walk through the same rules; Hypothesis prefers short ones. Returns the kinds of entry it met."""
    dice = random.Random(seed)
    ledger = Ledger()
    ledger.seen = set()
    try:
        ledger.contract(
            fees=tuple(dice.choice([None, dice.randint(0, 100_000)]) for _ in range(3)),
            runs_out=tuple(dice.choice([None, dice.randint(30, 150)]) for _ in range(3)),
            signed=tuple(dice.choice([3, 3, 2, 1]) for _ in range(3)),
            amounts=[dice.randint(1, 50_000) for _ in range(2)],
            paid=dice.choice([True, False]),
        )
        for _ in range(steps):
            random_rule(ledger, dice)()
            ledger.books_equal_the_model()
    finally:
        ledger.teardown()
    return ledger.seen


@pytest.mark.django_db
@pytest.mark.timeout(600)
def test_long_walks_reach_everything_and_equal_the_model() -> None:
    seen = set().union(*(walk(seed, 60) for seed in range(8)))
    assert seen == {*TransactionKind.values, "flagged"}

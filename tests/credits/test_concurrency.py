"""Many processes at once, and workers killed in mid-issue, on a real database with real commits."""

import datetime
import os
import random
import signal
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context

import pytest
from django.db import connections

from tests.credits import books as make
from tests.people import World, build_world, contract
from yoco.contracts.models import ContractYear, Order
from yoco.core.models import AuditEntry, OutboxEvent
from yoco.core.problem import DomainError
from yoco.credits.models import Credit, LedgerTransaction
from yoco.credits.selectors import credit_balances, order_payment
from yoco.credits.services import (
    credit_apply,
    credit_approve,
    credit_issue,
    credit_propose,
    credits_expire,
    credits_fix,
)
from yoco.credits.verify import ledger_verify
from yoco.guarantee.models import Statement

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.django_db(transaction=True)]

PROCESSES = 8
KILLS = 40
STEPS = ["credit.proposed", "credit.issued", "credit.approved", "credit.amount_fixed", "credit.applied"]


def short_years(world: World, count: int) -> list[uuid.UUID]:
    """Statements of `count` years, each of its own contract with an order, that ended short and have no credit yet."""
    ended = {
        "starts_at": datetime.datetime(2025, 8, 31, 22, tzinfo=datetime.UTC),
        "ends_at": datetime.datetime(2026, 8, 31, 22, tzinfo=datetime.UTC),
        "starts_on": datetime.date(2025, 9, 1),
        "ends_on": datetime.date(2026, 9, 1),
        "guaranteed_from": None,
        "guaranteed_until": None,
    }
    statements = []
    for number in range(count):
        row, terms, year = contract(world.organisation, f"SHORT-{number}")
        ContractYear.objects.filter(pk=year.pk).update(**ended)
        make.order(row, 4_000 + 4 * number, day=datetime.date(2026, 9, 2))
        statements.append(make.statement(year, terms).pk)
    return statements


def settle_year(world: World, statement_id: uuid.UUID) -> None:
    """Everything that becomes of one year's credit; each step may already have been done by somebody else."""
    statement = Statement.objects.select_related("year__contract").get(pk=statement_id)
    credit = credit_propose(year=statement.year, statement_id=statement.pk, statement_sha256=statement.sha256)
    order = Order.objects.get(contract_id=statement.year.contract_id)
    steps: list[Callable[[], object]] = [
        lambda: credit_issue(credit_id=credit.pk, actor=world.account_manager, reason="8 of 10"),
        lambda: credit_approve(credit_id=credit.pk, actor=world.second_account_manager),
        lambda: credits_fix(contract_id=order.contract_id),
        lambda: credit_apply(order_id=order.pk, actor=world.account_manager),
    ]
    for step in steps:
        try:
            step()
        except DomainError as refused:
            if refused.code not in ("nothing_to_apply", "wrong_state"):
                raise


def in_child(work: Callable[[], None]) -> int:
    """Runs `work` in a forked process with a database connection of its own. Returns its pid."""
    connections.close_all()
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        connections.close_all()
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)


def assert_settled_once(statements: list[uuid.UUID]) -> None:
    """One credit for each year, each step once in audit log and outbox, the right amounts, a ledger that holds."""
    credits = list(Credit.objects.all())
    assert Counter(c.statement_id for c in credits) == Counter(statements)
    for log, field in ((AuditEntry, "action"), (OutboxEvent, "kind")):
        told = Counter(log.objects.filter(subject_type="credits.credit").values_list("subject_id", field))
        assert told == Counter((str(c.pk), step) for c in credits for step in STEPS)
    balances = credit_balances(credits=credits)
    for order in Order.objects.all():
        assert order_payment(order=order).paid == order.amount_minor // 4
    assert sum(b.applied for b in balances.values()) == sum(o.amount_minor // 4 for o in Order.objects.all())
    assert all(b.available == 0 for b in balances.values())
    verification = ledger_verify()
    assert verification.holds, verification.broken
    assert verification.transactions == 2 * len(statements)


def test_eight_processes_settle_the_same_years_at_once() -> None:
    world = build_world()
    statements = short_years(world, 12)
    barrier = get_context("fork").Barrier(PROCESSES)

    def work(seed: int) -> None:
        mine = statements.copy()
        random.Random(seed // 2).shuffle(mine)  # pairs go the same way, so that they meet at every step
        barrier.wait()
        for statement in mine:
            settle_year(world, statement)
        credits_expire()

    children = [in_child(lambda seed=seed: work(seed)) for seed in range(PROCESSES)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert statuses == [0] * PROCESSES
    assert_settled_once(statements)


def test_forty_workers_killed_in_mid_issue_leave_nothing_half_done() -> None:
    world = build_world()
    statements = short_years(world, KILLS + 2)
    settle_year(world, statements[-1])
    started = time.perf_counter()
    settle_year(world, statements[-2])
    usual = time.perf_counter() - started
    dice = random.Random(40)
    stopped_at: Counter[str] = Counter()
    for number in range(KILLS):
        begun, tell = os.pipe()

        def work(number: int = number, tell: int = tell) -> None:
            Statement.objects.exists()  # the connection stands before the clock starts
            os.write(tell, b"x")
            for statement in statements[number:]:
                settle_year(world, statement)

        pid = in_child(work)
        os.close(tell)
        assert os.read(begun, 1) == b"x", "the worker died on its own"
        os.close(begun)
        time.sleep(dice.uniform(0, 1.3 * usual))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        stopped_at[last_step(statements[number])] += 1
    print(f"a year takes {usual * 1000:.0f} ms; last step that the killed workers committed: {dict(stopped_at)}")
    assert len(stopped_at) >= 3, "the kills did not fall between the steps; they prove nothing"

    def finish() -> None:
        for statement in statements:
            settle_year(world, statement)

    assert os.waitstatus_to_exitcode(os.waitpid(in_child(finish), 0)[1]) == 0
    assert_settled_once(statements)


def last_step(statement_id: uuid.UUID) -> str:
    """The last step of the year's credit that was committed. Each step of every credit must be whole."""
    credits = list(Credit.objects.select_related("statement"))
    entries = Counter(
        credit for credit, _ in LedgerTransaction.objects.values_list("postings__credit", "id").distinct().order_by()
    )
    audit, outbox = (
        Counter(log.objects.filter(subject_type="credits.credit").values_list("subject_id", field))
        for log, field in ((AuditEntry, "action"), (OutboxEvent, "kind"))
    )
    assert audit == outbox
    assert len({c.year_id for c in credits}) == len(credits)
    last = "none"
    for credit in credits:
        steps = [step for step in STEPS if (str(credit.pk), step) in outbox]
        assert steps == STEPS[: len(steps)]
        assert credit.state == ["proposed", "issued", "approved"][min(len(steps), 3) - 1]
        assert entries[credit.pk] == max(0, len(steps) - 3)
        assert credit.statement.sha256 == credit.statement_sha256
        if credit.statement_id == statement_id:
            last = steps[-1]
    return last

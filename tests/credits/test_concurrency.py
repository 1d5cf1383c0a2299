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
from typing import Any

import pytest
from django.db import connections

from tests.credits import books as make
from tests.guarantee.facts import at, incident, restart
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
    credits_expire,
    credits_fix,
)
from yoco.credits.verify import ledger_verify
from yoco.guarantee.models import Statement
from yoco.guarantee.services import years_close
from yoco.guarantee.verify import statements_verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.django_db(transaction=True)]

AFTER = datetime.datetime(2027, 11, 1, tzinfo=datetime.UTC)
PROCESSES = 8
KILLS = 40
STEPS = ["credit.proposed", "credit.issued", "credit.approved", "credit.amount_fixed", "credit.applied"]


def short_years(world: World, count: int) -> list[uuid.UUID]:
    """Years that fell short and are due for closing, each of its own contract with an order after it."""
    years = []
    for number in range(count):
        row, _terms, year = contract(world.organisation, f"SHORT-{number}")
        incident(row, **restart(at(1)))
        make.order(row, 4_000 + 4 * number, day=datetime.date(2027, 9, 2))
        years.append(year.pk)
    return years


def settle_year(world: World, year_id: uuid.UUID) -> None:
    """Everything that becomes of one year's credit; each step may already have been done by somebody else."""
    credit = Credit.objects.get(year_id=year_id)
    order = Order.objects.get(contract__years=year_id)
    steps: list[Callable[[], object]] = [
        lambda: credit_issue(credit_id=credit.pk, actor=world.account_manager, reason="0 of 1"),
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
    for name in connections:
        # What the parent used before a browser's event loop ran in its thread: not closed above, but inherited.
        connections[name].connection = None
    try:
        work()
        connections.close_all()
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)


def assert_settled_once(years: list[uuid.UUID]) -> None:
    """One statement and credit for each year, each step told once, the right amounts, a ledger that holds."""
    credits = list(Credit.objects.all())
    assert Counter(c.year_id for c in credits) == Counter(years)
    assert Counter(s.year_id for s in Statement.objects.filter(verdict="short")) == Counter(years)
    assert_whole_steps()
    assert steps_told(OutboxEvent, "kind") == Counter((c.pk, step) for c in credits for step in STEPS)
    balances = credit_balances(credits=credits)
    for order in Order.objects.all():
        assert order_payment(order=order).paid == order.amount_minor // 4
    assert sum(b.applied for b in balances.values()) == sum(o.amount_minor // 4 for o in Order.objects.all())
    assert all(b.available == 0 for b in balances.values())
    verification = ledger_verify()
    assert verification.holds, verification.broken
    assert verification.transactions == 2 * len(years)
    assert statements_verify() == []


def steps_told(log: Any, field: str) -> Counter[tuple[uuid.UUID, str]]:
    """How often each step of each credit stands in the audit log or in the outbox."""
    rows = log.objects.filter(subject_type="credits.credit").values_list("subject_id", field)
    return Counter((uuid.UUID(subject), step) for subject, step in rows)


def assert_whole_steps() -> dict[uuid.UUID, str]:
    """Every committed step is whole: state, ledger, statement, audit log and outbox. Returns each year's last step."""
    told = steps_told(OutboxEvent, "kind")
    assert told == steps_told(AuditEntry, "action")
    entries = Counter(
        credit for credit, _ in LedgerTransaction.objects.values_list("postings__credit", "id").distinct().order_by()
    )
    last = {}
    for credit in Credit.objects.select_related("statement"):
        steps = [step for step in STEPS if (credit.pk, step) in told]
        assert steps == STEPS[: len(steps)]
        assert credit.state == ["proposed", "issued", "approved"][min(len(steps), 3) - 1]
        assert entries[credit.pk] == max(0, len(steps) - 3)
        assert credit.statement.sha256 == credit.statement_sha256
        assert credit.year_id not in last
        last[credit.year_id] = steps[-1]
    closed = set(ContractYear.objects.filter(state="closed").values_list("pk", flat=True))
    assert closed == set(Statement.objects.values_list("year_id", flat=True))
    assert set(Statement.objects.filter(verdict="short").values_list("year_id", flat=True)) == set(last)
    return last


def test_eight_processes_close_and_settle_the_same_years_at_once() -> None:
    world = build_world()
    years = short_years(world, 8)
    barrier = get_context("fork").Barrier(PROCESSES)

    def work(seed: int) -> None:
        mine = years.copy()
        random.Random(seed // 2).shuffle(mine)  # pairs go the same way, so that they meet at every step
        barrier.wait()
        years_close(as_of=AFTER)
        for year in mine:
            settle_year(world, year)
        credits_expire()

    children = [in_child(lambda seed=seed: work(seed)) for seed in range(PROCESSES)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert statuses == [0] * PROCESSES
    assert_settled_once(years)


def kill(work: Callable[[], None], after: float) -> None:
    """Starts a worker and kills it so many seconds after it began to work; it may just have finished."""
    begun, tell = os.pipe()

    def telling() -> None:
        Statement.objects.exists()  # the connection stands before the clock starts
        os.write(tell, b"x")
        work()

    pid = in_child(telling)
    os.close(tell)
    assert os.read(begun, 1) == b"x", "the worker died on its own"
    os.close(begun)
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (-signal.SIGKILL, 0)


def test_forty_workers_killed_in_mid_issue_leave_nothing_half_done() -> None:
    world = build_world()
    years = short_years(world, 30)
    dice = random.Random(40)
    for _ in range(KILLS // 4):
        kill(lambda: years_close(as_of=AFTER) and None, dice.uniform(0, 0.3))
        assert_whole_steps()
    years_close(as_of=AFTER)
    settle_year(world, years[-1])
    started = time.perf_counter()
    settle_year(world, years[-2])
    usual = time.perf_counter() - started
    last = assert_whole_steps()
    stopped_at: Counter[str] = Counter()
    for _ in range(KILLS - KILLS // 4):
        waiting = [year for year in years if last[year] != STEPS[-1]] or years
        dice.shuffle(waiting)

        def work(waiting: list[uuid.UUID] = waiting) -> None:
            for year in waiting:
                settle_year(world, year)

        kill(work, dice.uniform(0, 2 * usual))
        last = assert_whole_steps()
        stopped_at[last[waiting[0]]] += 1
    print(f"a year takes {usual * 1000:.0f} ms; last step that the killed workers committed: {dict(stopped_at)}")
    assert len(stopped_at) >= 3, "the kills did not fall between the steps; they prove nothing"
    for year in years:
        settle_year(world, year)
    assert_settled_once(years)

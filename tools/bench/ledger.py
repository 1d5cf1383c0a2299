"""How fast `ledger_verify` proves the books, in postings a second."""

from __future__ import annotations

import dataclasses
import datetime
import time
import uuid
from collections.abc import Iterator, Set
from typing import Any

from tools.bench.copies import UNIQUE_TEXT, rows_copy, uuid_of_copy
from tools.bench.database import cluster, database_copy, database_name, django_connect, superuser
from tools.bench.registry import Bench, Goal, Reading

KEY = "service.ledger_verify_postings_s"
CONTRACTS = 600
ORDERS_EACH = 49
RUNS = 7

HASH = "(SELECT h.{} FROM h WHERE h.copy = n AND h.id = t.id)"
SIGNED = {name: f"t.{name}" for name in ("issued_by_id", "approved_by_id")}  # the same people everywhere
# Table, order of copying, and what else a copy has of its own.
COPIED: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("accounts_organisation", "id", {"slug": UNIQUE_TEXT.format("slug")}),
    ("contracts_contract", "id", {"number": UNIQUE_TEXT.format("number")}),
    ("contracts_guaranteeterms", "id", {}),
    ("contracts_contractyear", "id", {}),
    ("contracts_order", "id", {"number": UNIQUE_TEXT.format("number")}),
    ("guarantee_statement", "id", {}),
    ("credits_credit", "id", SIGNED),
    ("credits_ledgeraccount", "id", {}),
    (
        "credits_ledgertransaction",
        "sequence",
        {
            "actor_id": "t.actor_id",
            "idempotency_key": UNIQUE_TEXT.format("idempotency_key"),
            "previous_hash": HASH.format("previous_hash"),
            "hash": HASH.format("hash"),
        },
    ),
    ("credits_posting", "id", {"id": "100000 + t.place * 1000 + n"}),
    ("credits_seal", "transaction_id", {}),
)


def measure(_wanted: Set[str]) -> Iterator[Reading]:
    """Verifies the whole ledger again and again; what it finds must hold."""
    with cluster() as server:
        url = database_copy(server)
        django_connect(url)
        history_write()
        with superuser(server, database_name(url)) as admin:
            ledger_copy(admin)
        from yoco.credits.verify import ledger_verify

        rates, notes = [], []
        for _ in range(RUNS):
            cpu = time.process_time()
            found = ledger_verify()
            cpu = time.process_time() - cpu
            assert found.holds, f"the ledger does not hold: {found.broken[0]}"
            rates.append(found.postings / found.seconds)
            size = f"{found.postings} postings of {found.transactions} transactions in {CONTRACTS} contracts"
            notes = [f"{size}; the last run took {cpu:.1f} s of this process's CPU, {found.seconds:.1f} s in all"]
        yield Reading(KEY, rates, notes=tuple(notes))


def history_write() -> None:
    """One contract's books by the real code: a year falls short, its credit is issued, approved, and pays orders that
    are cancelled again."""
    from tools.bench.tenants import Agent, tenants_make
    from yoco.accounts.models import User
    from yoco.contracts.models import ContractYear, OrderKind
    from yoco.contracts.services import order_cancel, order_record
    from yoco.core.money import Money
    from yoco.credits.models import Credit
    from yoco.credits.services import (
        credit_apply,
        credit_approve,
        credit_issue,
        credits_reinstate,
        year_fees_record,
    )
    from yoco.guarantee.services import reports_accept, years_close

    tenant = tenants_make(1, terms={"credit_base": "year_fees"})[0]
    year = ContractYear.objects.get()
    issuer, approver = (
        User.objects.create_user(f"{name}@yoco.example", is_account_manager=True) for name in ("amanda", "boris")
    )
    year_fees_record(year=year, fees_minor=480_000_000, actor=issuer)
    report = Agent("coordinator-1", year.starts_at, datetime.timedelta(hours=1)).reports(count=1)[0]
    report |= {"resolution": "abandoned", "kind": "unplanned", "state": None, "spare": None}
    received = year.ends_at - datetime.timedelta(seconds=1)
    reports_accept(contract=tenant.contract, key=tenant.key, reports=[report], received_at=received)
    years_close(as_of=year.ends_at + datetime.timedelta(days=60))
    credit = Credit.objects.get()
    credit_issue(credit_id=credit.pk, actor=issuer, reason="The year fell short")
    credit_approve(credit_id=credit.pk, actor=approver)
    for number in range(ORDERS_EACH):
        order = order_record(
            contract=tenant.contract,
            number=f"EXPANSION-{number}",
            kind=OrderKind.EXPANSION,
            amount=Money(10_000_000, "EUR"),
            ordered_on=year.ends_on,
            actor=issuer,
        )
        credit_apply(order_id=order.pk, actor=issuer)
        order_cancel(order=order, actor=issuer, reason="Ordered twice")
        credits_reinstate(order_id=order.pk, actor=issuer)


def ledger_copy(admin: Any) -> None:
    """The same history for the other contracts, each with the hashes of its own chain."""
    admin.execute("SET session_replication_role = replica")  # the copies hold what the triggers would check
    admin.execute("CREATE TEMP TABLE h (copy int, id uuid, previous_hash text, hash text, PRIMARY KEY (copy, id))")
    with admin.cursor().copy("COPY h FROM STDIN") as copy:
        for row in _hashes():
            copy.write_row(row)
    for table, order, values in COPIED:
        rows_copy(admin, table, copies=CONTRACTS - 1, order=order, values=values)
    admin.execute("VACUUM ANALYZE")


def _hashes() -> Iterator[tuple[int, uuid.UUID, str, str]]:
    from yoco.credits.chain import GENESIS, VERSION, Line, entry_hash
    from yoco.credits.ledger import entry_of
    from yoco.credits.models import LedgerTransaction

    history = [
        (row.pk, entry_of(row), list(row.postings.select_related("account").order_by("line")))
        for row in LedgerTransaction.objects.order_by("sequence")
    ]
    for number in range(1, CONTRACTS):

        def own(original: Any, number: int = number) -> Any:
            return str(uuid_of_copy(number, original)) if original else None

        head = GENESIS
        for pk, entry, postings in history:
            copied = dataclasses.replace(
                entry,
                id=own(entry.id),
                contract=own(entry.contract),
                statement=own(entry.statement),
                reverses=own(entry.reverses),
                idempotency_key=f"{entry.idempotency_key}/{number}",
                previous_hash=head,
            )
            lines = [
                Line(p.line, p.account.kind, p.account.currency, p.minor, own(p.credit_id), own(p.order_id))
                for p in postings
            ]
            head = entry_hash(VERSION, copied, lines)
            yield number, pk, copied.previous_hash, head


BENCH = Bench((Goal(KEY, "postings that `ledger_verify` proves in a second", "postings/s", ">= 50000"),), measure)

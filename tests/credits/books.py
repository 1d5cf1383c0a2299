"""Years, statements and orders for the tests of the ledger, made as their own apps store them."""

import datetime
import hashlib
import json
from typing import Any

from tests.people import World
from yoco.accounts.models import User
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms, Order, OrderKind, OrderState
from yoco.core.clock import local_midnight
from yoco.credits.models import Credit
from yoco.credits.services import credit_approve, credit_issue, credit_propose
from yoco.guarantee.models import Statement

NOW = datetime.datetime(2027, 11, 2, 9, 30, tzinfo=datetime.UTC)  # two months after the first year of ACME-1


def statement(year: ContractYear, terms: GuaranteeTerms, *, short: bool = True) -> Statement:
    """The next revision of a year's statement: 8 of 10 resolved if short, otherwise 10 of 10."""
    revision = Statement.objects.filter(year=year).count() + 1
    resolved = 8 if short else 10
    canonical = json.dumps({"year": str(year.pk), "revision": revision, "counted": 10, "resolved": resolved})
    return Statement.objects.create(
        year=year,
        revision=revision,
        reason="" if revision == 1 else "A late report",
        terms=terms,
        counted=10,
        resolved=resolved,
        verdict="short" if short else "met",
        sha256=hashlib.sha256(canonical.encode()).hexdigest(),
        canonical=canonical,
    )


def terms_version(contract: Contract, **fields: Any) -> GuaranteeTerms:
    """Terms that differ from the first version in `fields`, in force from the contract's second day."""
    version = GuaranteeTerms.objects.filter(contract=contract).count() + 1
    effective = contract.starts_on + datetime.timedelta(days=version - 1)
    return GuaranteeTerms.objects.create(contract=contract, version=version, effective_on=effective, **fields)


def second_year(contract: Contract) -> ContractYear:
    """The year after the first of `tests.people`."""
    start, end = (local_midnight(datetime.date(y, 9, 1), contract.time_zone) for y in (2027, 2028))
    return ContractYear.objects.create(
        contract=contract,
        number=2,
        starts_on=datetime.date(2027, 9, 1),
        ends_on=datetime.date(2028, 9, 1),
        starts_at=start,
        ends_at=end,
        guaranteed_from=start,
        guaranteed_until=end,
    )


def order(
    contract: Contract,
    amount_minor: int,
    *,
    day: datetime.date = datetime.date(2027, 11, 2),
    kind: OrderKind = OrderKind.EXPANSION,
) -> Order:
    """A recorded order; an expansion unless told otherwise, because a renewal would lift the contract's end."""
    return Order.objects.create(
        contract=contract,
        number=f"{contract.number}-O{Order.objects.filter(contract=contract).count() + 1}",
        kind=kind,
        amount_minor=amount_minor,
        currency=contract.currency,
        ordered_on=day,
    )


def cancel(row: Order, at: datetime.datetime = NOW) -> None:
    """Cancels an order without telling the ledger."""
    Order.objects.filter(pk=row.pk).update(state=OrderState.CANCELLED, cancelled_at=at)


def proposed(year: ContractYear, terms: GuaranteeTerms) -> Credit:
    """A proposed credit of a year that fell short."""
    row = statement(year, terms)
    return credit_propose(year=year, statement_id=row.pk, statement_sha256=row.sha256)


def issued(world: World, year: ContractYear, terms: GuaranteeTerms, **fields: Any) -> Credit:
    """An issued credit."""
    credit = proposed(year, terms)
    return credit_issue(credit_id=credit.pk, actor=world.account_manager, reason="8 of 10", **fields)


def approved(world: World, year: ContractYear, terms: GuaranteeTerms, **fields: Any) -> Credit:
    """An approved credit."""
    credit = issued(world, year, terms, **fields)
    return credit_approve(credit_id=credit.pk, actor=world.second_account_manager)


def year_fees(year: ContractYear, minor: int) -> GuaranteeTerms:
    """Terms with base `year_fees`, and the year's fees recorded."""
    ContractYear.objects.filter(pk=year.pk).update(fees_minor=minor)
    year.fees_minor = minor
    return terms_version(year.contract, credit_base="year_fees")


def actor(world: World, number: int) -> User:
    """One of the two account managers."""
    return (world.account_manager, world.second_account_manager)[number]

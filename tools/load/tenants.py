"""Who takes part: customers with a running contract each, their people, and contracts whose year is over.

Needs Django with the environment of the service.
"""

from __future__ import annotations

import datetime
import secrets
from dataclasses import dataclass, field
from typing import Any

from django.db import Error as DatabaseError
from django.db import connection, transaction
from django.utils import timezone

from tools.load.receiver import Receiver
from tools.services import HOST
from yoco.accounts.models import Organisation, Role, Scope, User
from yoco.accounts.services import agent_key_create, member_add, organisation_create
from yoco.contracts.models import Contract
from yoco.contracts.services import contract_create
from yoco.core.money import Money
from yoco.demo.synthetic import synthetic_reports
from yoco.guarantee.orders import order_record
from yoco.guarantee.services import reports_accept, years_close
from yoco.notify.endpoints import endpoint_create

CUSTOMERS = 5
PASSWORD = secrets.token_urlsafe(16)
DAY = datetime.timedelta(days=1)


@dataclass
class Customer:
    organisation: Organisation
    owner: User
    contract: Contract
    key: str


@dataclass
class Tenants:
    customers: list[Customer]
    managers: list[User]
    over: list[str] = field(default_factory=list)
    """Numbers of the contracts whose year is over: each must get one statement and one credit that pays one order."""


def tenants_make(receiver: Receiver) -> Tenants:
    """Five customers, each with one contract that is over and closed already, so that there is something to read."""
    managers = [
        User.objects.create_user(f"{name}@yoco.example", PASSWORD, name=name.title(), is_account_manager=True)
        for name in ("amanda", "boris")
    ]
    tenants = Tenants([_customer(number, receiver) for number in range(CUSTOMERS)], managers)
    for customer in tenants.customers:
        contract_over_make(tenants, customer)
    years_close(as_of=timezone.now())
    return tenants


def _customer(number: int, receiver: Receiver) -> Customer:
    organisation = organisation_create(name=f"Customer {number}", slug=f"customer-{number}", actor=None)
    owner = User.objects.create_user(f"owner{number}@customer.example", PASSWORD, name=f"Owner {number}")
    member_add(organisation=organisation, user=owner, role=Role.OWNER, actor=None)
    today = timezone.localdate()
    contract = contract_create(
        organisation=organisation,
        starts_on=today - 30 * DAY,
        ends_on=today + 700 * DAY,
        **_agreed(f"LIVE-{number}", today - 30 * DAY),
    )
    _, key = agent_key_create(
        organisation=organisation, contract=contract, scope=Scope.INGEST, name="agents", actor=owner
    )
    path = f"/hook/{number}"
    url = f"http://{HOST}:{receiver.port}{path}"
    _, secret = endpoint_create(organisation=organisation, name="Books", url=url, kinds=[], actor=owner)
    receiver.secrets[path] = secret
    return Customer(organisation, owner, contract, key)


def _agreed(number: str, guarantee_from: datetime.date) -> dict[str, Any]:
    return {
        "number": number, "name": "Training cluster", "currency": "EUR", "time_zone": "Europe/Madrid",
        "guarantee_from": guarantee_from, "price_per_gpu_hour": "2.50", "actor": None,
    }  # fmt: skip


@transaction.atomic
def contract_over_make(tenants: Tenants, customer: Customer) -> str:
    """A contract whose year ended short of the guarantee, with its reports and the order that its credit will pay.

    One transaction: the next tick finds all of it or nothing.
    """
    number = f"OVER-{len(tenants.over)}"
    first, end = timezone.localdate() - 25 * DAY, timezone.localdate() - 2 * DAY
    contract = contract_create(
        organisation=customer.organisation,
        starts_on=first,
        ends_on=end,
        terms={"late_report_window_days": 0},
        **_agreed(number, first),
    )
    year = contract.years.get()
    reports = list(synthetic_reports(start=year.starts_at, end=year.ends_at))
    reports_accept(contract=contract, key=None, reports=reports, received_at=year.ends_at, source="synthetic")
    order_record(
        contract=contract,
        number=f"ORDER-{number}",
        kind="renewal",
        amount=Money(4_800_000, "EUR"),
        ordered_on=end,
        actor=tenants.managers[0],
    )
    transaction.on_commit(lambda: tenants.over.append(number))
    return number


def contract_over_try(tenants: Tenants, customer: Customer) -> bool:
    """As `contract_over_make`; False while the database is away. What an unanswered COMMIT did is looked up."""
    number = f"OVER-{len(tenants.over)}"
    try:
        if Contract.objects.filter(number=number).exists():
            tenants.over.append(number)
        else:
            contract_over_make(tenants, customer)
    except DatabaseError:
        return False
    else:
        return True
    finally:
        connection.close()

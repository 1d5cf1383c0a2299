"""The demo's organisation, people and contract. Running the demo again adds a contract; what stands is untouched."""

import datetime
import secrets
from dataclasses import dataclass

from django.core.management.base import CommandError
from django.db import transaction
from django.utils import timezone

from yoco.accounts.models import Organisation, Role, Scope, User
from yoco.accounts.services import agent_key_create, member_add, organisation_create
from yoco.contracts.models import OFFERED_FROM, Contract, ContractYear
from yoco.contracts.services import contract_create

TIME_ZONE = "Europe/Madrid"
CURRENCY = "USD"
# The late-report window of the default terms is 30 days; the earlier year must be past it to be closed.
DAYS_SINCE_FIRST_YEAR = 61
RENEWAL_MINOR = 480_000_000
CUSTOMER = "olivia@demo.example"
ISSUER = "amanda@yoco.example"
APPROVER = "boris@yoco.example"


@dataclass(frozen=True, slots=True)
class DemoWorld:
    contract: Contract
    earlier_year: ContractYear
    current_year: ContractYear
    agent_key: str
    issuer: User
    approver: User
    password: str


def _person(email: str, name: str, password: str, *, account_manager: bool) -> User:
    user = User.objects.filter(email=email).first()
    if user is None:
        return User.objects.create_user(email, password, name=name, is_account_manager=account_manager)
    user.set_password(password)
    user.save(update_fields=["password"])
    return user


def _years_ago(day: datetime.date, years: int) -> datetime.date:
    try:
        return day.replace(year=day.year - years)
    except ValueError:
        return day.replace(year=day.year - years, day=28)


@transaction.atomic
def demo_seed() -> DemoWorld:
    """Creates what is missing and a new contract whose first year ended 61 days ago.

    Raises CommandError on a clock at which no guaranteed year could have ended yet.
    """
    second_year_start = timezone.localdate() - datetime.timedelta(days=DAYS_SINCE_FIRST_YEAR)
    if second_year_start <= OFFERED_FROM:
        raise CommandError(
            f"This machine's clock says {timezone.localdate()}; the guarantee exists since {OFFERED_FROM}, so no year "
            "of the demo can have ended yet. Set the clock right."
        )
    starts_on = _years_ago(second_year_start, 1)
    password = secrets.token_urlsafe(9)
    organisation = Organisation.objects.filter(slug="demo").first()
    customer = _person(CUSTOMER, "Olivia Owner", password, account_manager=False)
    if organisation is None:
        organisation = organisation_create(name="Demo Research", slug="demo", actor=None)
        member_add(organisation=organisation, user=customer, role=Role.OWNER, actor=None)
    issuer = _person(ISSUER, "Amanda Ruiz", password, account_manager=True)
    approver = _person(APPROVER, "Boris Klein", password, account_manager=True)
    number = f"DEMO-{organisation.contracts.count() + 1}"
    contract = contract_create(
        organisation=organisation,
        number=number,
        name="Demo training cluster",
        currency=CURRENCY,
        time_zone=TIME_ZONE,
        starts_on=starts_on,
        ends_on=starts_on.replace(year=starts_on.year + 3),
        guarantee_from=max(starts_on, OFFERED_FROM),
        price_per_gpu_hour="2.50",
        actor=issuer,
    )
    earlier_year, current_year = contract.years.order_by("number")[:2]
    _, agent_key = agent_key_create(
        organisation=organisation, contract=contract, scope=Scope.INGEST, name="demo agent", actor=customer
    )
    return DemoWorld(
        contract=contract,
        earlier_year=earlier_year,
        current_year=current_year,
        agent_key=agent_key,
        issuer=issuer,
        approver=approver,
        password=password,
    )

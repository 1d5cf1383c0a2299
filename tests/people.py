"""The people whom every test of a tenant's object meets, and the vendor's account managers."""

import datetime
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from yoco.accounts.models import AgentKey, Organisation, Role, Scope, User
from yoco.accounts.services import agent_key_create, member_add, organisation_create
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.core.clock import local_midnight

PASSWORD = "correct horse battery staple"


@dataclass
class World:
    """Acme with its contract, and a stranger's organisation beside it."""

    organisation: Organisation
    contract: Contract
    terms: GuaranteeTerms
    year: ContractYear
    owner: User
    team_mate: User
    viewer: User
    key: AgentKey
    key_text: str
    stranger: User
    stranger_contract: Contract
    stranger_key_text: str
    account_manager: User
    second_account_manager: User


def user(email: str, **fields: Any) -> User:
    return User.objects.create_user(email, PASSWORD, name=email.split("@")[0].title(), **fields)


def contract(organisation: Organisation, number: str) -> tuple[Contract, GuaranteeTerms, ContractYear]:
    """A contract of two years from 2026-09-01 in Madrid, guaranteed from its first day, and its first year."""
    row = Contract.objects.create(
        organisation=organisation,
        number=number,
        name=f"Training cluster of {organisation.name}",
        currency="EUR",
        time_zone="Europe/Madrid",
        starts_on=datetime.date(2026, 9, 1),
        ends_on=datetime.date(2028, 9, 1),
        guarantee_from=datetime.date(2026, 9, 1),
        price_per_gpu_hour="2.50",
    )
    terms = GuaranteeTerms.objects.create(contract=row, version=1, effective_on=row.starts_on)
    start, end = (local_midnight(datetime.date(y, 9, 1), row.time_zone) for y in (2026, 2027))
    year = ContractYear.objects.create(
        contract=row,
        number=1,
        starts_on=datetime.date(2026, 9, 1),
        ends_on=datetime.date(2027, 9, 1),
        starts_at=start,
        ends_at=end,
        guaranteed_from=start,
        guaranteed_until=end,
    )
    return row, terms, year


def build_world() -> World:
    acme = organisation_create(name="Acme", slug="acme", actor=None)
    other = organisation_create(name="Other", slug="other", actor=None)
    owner, mate, viewer, stranger = (user(f"{name}@example.com") for name in ("olivia", "martin", "victor", "stranger"))
    member_add(organisation=acme, user=owner, role=Role.OWNER, actor=None)
    member_add(organisation=acme, user=mate, role=Role.MEMBER, actor=None)
    member_add(organisation=acme, user=viewer, role=Role.VIEWER, actor=None)
    member_add(organisation=other, user=stranger, role=Role.OWNER, actor=None)
    acme_contract, terms, year = contract(acme, "ACME-1")
    other_contract, _, _ = contract(other, "OTHER-1")
    key, text = agent_key_create(
        organisation=acme, contract=acme_contract, scope=Scope.INGEST, name="agent", actor=owner
    )
    _, other_text = agent_key_create(
        organisation=other, contract=other_contract, scope=Scope.INGEST, name="agent", actor=stranger
    )
    return World(
        organisation=acme,
        contract=acme_contract,
        terms=terms,
        year=year,
        owner=owner,
        team_mate=mate,
        viewer=viewer,
        key=key,
        key_text=text,
        stranger=stranger,
        stranger_contract=other_contract,
        stranger_key_text=other_text,
        account_manager=user("amanda@yoco.example", is_account_manager=True),
        second_account_manager=user("boris@yoco.example", is_account_manager=True),
    )


def sign_in_confirmed(client: Client, person: User) -> None:
    """Signed in, and the password given again a moment ago."""
    client.force_login(person)
    assert client.post(reverse("account_reauthenticate"), {"password": PASSWORD}).status_code == 302


@pytest.fixture
def world(db: None) -> World:
    return build_world()

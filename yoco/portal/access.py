"""From the ids in a URL to the contract, year or incident, if the asker may see it; 404 otherwise."""

import uuid

from django.http import Http404, HttpRequest

from yoco.accounts.access import access, visible
from yoco.accounts.models import Role, User
from yoco.contracts.models import Contract, ContractYear
from yoco.incidents.models import Incident


def reader(request: HttpRequest) -> User:
    """The signed-in person; views behind `login_required` only."""
    assert isinstance(request.user, User)
    return request.user


def contract_in_url(request: HttpRequest, contract_id: uuid.UUID, *, minimum: Role = Role.VIEWER) -> Contract:
    contracts = Contract.objects.select_related("organisation")
    return access(contracts, principal=reader(request), minimum=minimum, pk=contract_id)


def year_in_url(
    request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, *, minimum: Role = Role.VIEWER
) -> ContractYear:
    years = ContractYear.objects.select_related("contract__organisation")
    return access(
        years,
        principal=reader(request),
        organisation="contract__organisation",
        minimum=minimum,
        pk=year_id,
        contract_id=contract_id,
    )


def years_in_url(
    request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID
) -> tuple[ContractYear, list[ContractYear]]:
    """A contract year and all years of its contract, the latest first, in one query."""
    years = visible(
        ContractYear.objects.select_related("contract__organisation"),
        principal=reader(request),
        organisation="contract__organisation",
    )
    found = list(years.filter(contract_id=contract_id).order_by("-number"))
    year = next((each for each in found if each.pk == year_id), None)
    if year is None:
        raise Http404
    return year, found


def incident_in_url(
    request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID | str, *, minimum: Role = Role.VIEWER
) -> Incident:
    incidents = Incident.objects.select_related("contract__organisation", "run")
    return access(
        incidents,
        principal=reader(request),
        organisation="contract__organisation",
        minimum=minimum,
        contract_id=contract_id,
        public_id=incident_id,
    )

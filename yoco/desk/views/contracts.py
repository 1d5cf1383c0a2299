"""What is agreed with a customer: a contract, its terms, the fees of a year, the guarantee, an early end."""

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.contracts.services import contract_create, customer_contract_create, terms_create_version
from yoco.credits.selectors import local_date
from yoco.credits.services import year_fees_record
from yoco.desk.access import account_manager, desk, reauthenticated
from yoco.desk.agreement_forms import (
    ContractForm,
    EndForm,
    FeesForm,
    GuaranteeForm,
    TermsVersionForm,
    day_after,
)
from yoco.desk.views.changing import Agreement, change_confirm
from yoco.guarantee.proposals import contract_end_propose, terms_propose
from yoco.guarantee.services import contract_cut_short, contract_guarantee_add

CONTRACT_FIELDS = ["number", "name", "currency", "time_zone", "starts_on", "guarantee_from", "price_per_gpu_hour"]


def contract_in_url(contract_id: uuid.UUID) -> Contract:
    """Account managers see every contract; views call it behind `desk`."""
    return get_object_or_404(Contract.objects.select_related("organisation"), pk=contract_id)


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def contract_new(request: HttpRequest) -> HttpResponse:
    """A contract with the first version of its terms, for a customer we know or a new one."""
    actor = account_manager(request)
    form = ContractForm(
        request.POST or None,
        previous=GuaranteeTerms(),
        initial={"currency": "EUR", "time_zone": "Europe/Madrid", "starts_on": timezone.localdate()},
    )

    def run(said: dict[str, Any]) -> Contract:
        fields = {name: said[name] for name in CONTRACT_FIELDS}
        fields |= {"ends_on": day_after(said["last_day"]), "terms": form.changed, "actor": actor}
        if said["organisation"] is None:
            return customer_contract_create(customer=said["customer"], **fields)
        return contract_create(organisation=said["organisation"], **fields)

    return change_confirm(
        request,
        agreement=Agreement(
            title=_("Record a contract"),
            explanation=_("Its years and the first version of its terms are made with it."),
            button=_("Record the contract"),
            done=_("The contract is recorded, with its years and its terms."),
        ),
        contract=None,
        form=form,
        run=run,
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def terms_new(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """The next version of the terms; it starts out as the latest one."""
    contract, actor = contract_in_url(contract_id), account_manager(request)
    previous = contract.terms.order_by("-version").first() or GuaranteeTerms()
    following = contract.years.filter(starts_at__gt=timezone.now()).order_by("number").first()
    form = TermsVersionForm(
        request.POST or None, previous=previous, initial={"effective_on": following.starts_on if following else None}
    )

    def run(said: dict[str, Any]) -> Contract:
        terms_create_version(contract=contract, effective_on=said["effective_on"], actor=actor, **form.changed)
        return contract

    return change_confirm(
        request,
        agreement=Agreement(
            title=_("New version of the terms"),
            explanation=_(
                "A version is never edited. Once a second account manager has confirmed it, the new one governs the "
                "contract years that begin on its day or later; a year that has begun keeps its terms."
            ),
            button=_("Propose the version"),
            done=_("The new version of the terms is proposed. It waits for a second person."),
        ),
        contract=contract,
        form=form,
        run=run,
        propose=lambda said, shown: terms_propose(
            contract=contract,
            effective_on=said["effective_on"],
            fields=form.changed,
            reason=said["reason"],
            actor=actor,
            shown=shown,
        ),
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def guarantee_new(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """Adds the guarantee to a contract in force."""
    contract, actor = contract_in_url(contract_id), account_manager(request)
    today = local_date(timezone.now(), contract.time_zone)
    return change_confirm(
        request,
        agreement=Agreement(
            title=_("Add the guarantee"),
            explanation=_("From its first day on, failures count. The day cannot be moved afterwards."),
            button=_("Add the guarantee"),
            done=_("The contract is guaranteed. Incidents since the first guaranteed day have been placed."),
        ),
        contract=contract,
        form=GuaranteeForm(request.POST or None, initial={"guarantee_from": max(today, contract.starts_on)}),
        run=lambda said: contract_guarantee_add(contract=contract, guarantee_from=said["guarantee_from"], actor=actor),
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def contract_end(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """Ends a contract before its term."""
    contract, actor = contract_in_url(contract_id), account_manager(request)
    return change_confirm(
        request,
        agreement=Agreement(
            title=_("End the contract early"),
            explanation=_(
                "The running year ends with it and has its verdict over that part. Later years fall away. A second "
                "account manager has to confirm it."
            ),
            button=_("Propose the end"),
            done=_("The early end is proposed. It waits for a second person."),
            dangerous=True,
        ),
        contract=contract,
        form=EndForm(request.POST or None, initial={"last_day": local_date(timezone.now(), contract.time_zone)}),
        run=lambda said: contract_cut_short(
            contract=contract, ends_on=day_after(said["last_day"]), actor=actor, reason=said["reason"]
        ),
        propose=lambda said, shown: contract_end_propose(
            contract=contract, ends_on=day_after(said["last_day"]), reason=said["reason"], actor=actor, shown=shown
        ),
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def year_fees(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """Records what the customer pays for a year, which a credit may be a share of."""
    year = get_object_or_404(
        ContractYear.objects.select_related("contract__organisation"), pk=year_id, contract_id=contract_id
    )
    actor = account_manager(request)
    return change_confirm(
        request,
        agreement=Agreement(
            title=_("Fees of year %(number)s") % {"number": year.number},
            explanation=_("Where the terms say so, a credit is a share of them. Record them before the year closes."),
            button=_("Record the fees"),
            done=_("The fees are recorded."),
        ),
        contract=year.contract,
        form=FeesForm(request.POST or None, currency=year.contract.currency, initial={"amount": year.fees_minor}),
        run=lambda said: (
            year_fees_record(year=year, fees_minor=said["amount"], actor=actor, reason=said["reason"]).contract
        ),
    )

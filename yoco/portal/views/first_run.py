"""The first steps of a new organisation: five lines in the training script, one command, and the first heartbeat."""

import uuid

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from yoco.accounts.key_services import keys_live
from yoco.accounts.models import Scope
from yoco.incidents.models import AgentBoot
from yoco.portal.access import contract_in_url
from yoco.portal.managing import may_manage
from yoco.portal.selectors import year_current


@never_cache
@require_GET
@login_required
def first_run(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """What to do, and whether an agent of this contract has been heard. The page looks again by itself."""
    contract = contract_in_url(request, contract_id)
    years = list(contract.years.order_by("-number"))
    boots = AgentBoot.objects.filter(contract=contract)
    context = {
        "contract": contract,
        "year": year_current(years=years, at=timezone.now()),
        "organisation": contract.organisation,
        "site": settings.SITE_URL,
        "key": keys_live().filter(contract=contract, scope=Scope.INGEST).order_by("-created_at").first(),
        "may_manage": may_manage(request, contract.organisation),
        "boot": boots.order_by("first_seen_at").first(),
        "latest": boots.order_by("-last_seen_at").first(),
        "looked_at": timezone.now(),
    }
    return render(request, "portal/first_run.html", context)

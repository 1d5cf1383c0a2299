"""Webhooks of an organisation, for those who manage it: endpoints, their secrets, deliveries, replay."""

import datetime
import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from yoco.accounts.models import Organisation
from yoco.core.problem import DomainError
from yoco.notify.endpoints import (
    dead_replay,
    delivery_replay,
    endpoint_change,
    endpoint_create,
    endpoint_disable,
    endpoint_enable,
    endpoint_rotate,
    endpoint_test,
)
from yoco.notify.kinds import TEST, WEBHOOK_KINDS
from yoco.notify.models import DeliveryState, Endpoint
from yoco.notify.selectors import deliveries_of, endpoints_of
from yoco.portal.access import reader
from yoco.portal.managing import confirmed, managed

PAGE_SIZE = 50
REPLAY_DAYS = (1, 7, 30)


class EndpointForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=80, help_text=gettext_lazy("For instance the system that receives.")
    )
    url = forms.CharField(
        label=gettext_lazy("Address"),
        max_length=500,
        widget=forms.URLInput(attrs={"placeholder": "https://"}),
        help_text=gettext_lazy("An https:// address on the public internet that answers a POST with a 2xx status."),
    )
    kinds = forms.MultipleChoiceField(
        label=gettext_lazy("Events"),
        choices=[(kind, name) for kind, name in WEBHOOK_KINDS.items()],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=gettext_lazy("None chosen means all, also those that are added later."),
    )


@require_GET
@login_required
def webhooks(request: HttpRequest, organisation_id: uuid.UUID) -> HttpResponse:
    found = managed(request, organisation_id)
    return render(request, "portal/webhooks.html", _context(found, endpoints=endpoints_of(organisation=found)))


@never_cache
@require_http_methods(["GET", "POST"])
@confirmed
def webhook_new(request: HttpRequest, found: Organisation) -> HttpResponse:
    """The new endpoint's secret is in this one answer and nowhere else."""
    form = EndpointForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            endpoint, secret = endpoint_create(organisation=found, actor=reader(request), **form.cleaned_data)
        except DomainError as error:
            form.add_error("url" if error.code == "url_refused" else None, error.message)
        else:
            context = _context(found, endpoint=endpoint, secret=secret)
            return render(request, "portal/webhook_secret.html", context, status=201)
    return render(request, "portal/webhook_form.html", _context(found, form=form))


@require_http_methods(["GET", "POST"])
@confirmed
def webhook_edit(request: HttpRequest, found: Organisation, endpoint_id: uuid.UUID) -> HttpResponse:
    endpoint = get_object_or_404(Endpoint, organisation=found, pk=endpoint_id)
    initial = {"name": endpoint.name, "url": endpoint.url, "kinds": endpoint.kinds}
    form = EndpointForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            endpoint_change(endpoint=endpoint, actor=reader(request), **form.cleaned_data)
        except DomainError as error:
            form.add_error("url" if error.code == "url_refused" else None, error.message)
        else:
            messages.success(request, _("The change is saved."))
            return redirect("portal:webhook", found.pk, endpoint.pk)
    return render(request, "portal/webhook_form.html", _context(found, endpoint=endpoint, form=form))


@require_GET
@login_required
def webhook(request: HttpRequest, organisation_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
    """One endpoint: how it is, what it was sent, and what can be done."""
    found, endpoint = _endpoint(request, organisation_id, endpoint_id)
    state = request.GET.get("state", "")
    listed = deliveries_of(endpoint=endpoint, state=state if state in DeliveryState.values else "")
    now = timezone.now()
    context = _context(
        found,
        endpoint=endpoint,
        kinds=[WEBHOOK_KINDS.get(kind, kind) for kind in endpoint.kinds],
        page=Paginator(listed, PAGE_SIZE).get_page(request.GET.get("page")),
        kind_words={**WEBHOOK_KINDS, TEST: _("Test")},
        states=DeliveryState.choices,
        state=state,
        circuit_open=endpoint.open_until is not None and endpoint.open_until > now,
        both_secrets=endpoint.old_until is not None and endpoint.old_until > now,
        replay_days=REPLAY_DAYS,
    )
    return render(request, "portal/webhook.html", context)


@never_cache
@require_POST
@confirmed
def webhook_rotate(request: HttpRequest, found: Organisation, endpoint_id: uuid.UUID) -> HttpResponse:
    endpoint = get_object_or_404(Endpoint, organisation=found, pk=endpoint_id)
    endpoint, secret = endpoint_rotate(endpoint=endpoint, actor=reader(request))
    context = _context(found, endpoint=endpoint, secret=secret, rotated=True)
    return render(request, "portal/webhook_secret.html", context, status=201)


@require_POST
@login_required
def webhook_switch(request: HttpRequest, organisation_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
    """Disables the endpoint, or takes it into use again."""
    found, endpoint = _endpoint(request, organisation_id, endpoint_id)
    if request.POST.get("state") == "on":
        try:
            endpoint_enable(endpoint=endpoint, actor=reader(request))
        except DomainError as error:
            messages.error(request, error.message)
        else:
            messages.success(request, _("The endpoint is in use again. What was given up can be replayed."))
    else:
        endpoint_disable(endpoint=endpoint, actor=reader(request))
        messages.success(request, _("The endpoint is disabled. Nothing is sent to it any more."))
    return redirect("portal:webhook", found.pk, endpoint.pk)


@require_POST
@login_required
def webhook_test(request: HttpRequest, organisation_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
    found, endpoint = _endpoint(request, organisation_id, endpoint_id)
    try:
        endpoint_test(endpoint=endpoint, actor=reader(request))
    except DomainError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("A test event is on its way. Reload this page to see what came of it."))
    return redirect("portal:webhook", found.pk, endpoint.pk)


@require_POST
@login_required
def webhook_replay(request: HttpRequest, organisation_id: uuid.UUID, endpoint_id: uuid.UUID) -> HttpResponse:
    """Sends again all that was given up in the last days."""
    found, endpoint = _endpoint(request, organisation_id, endpoint_id)
    days = next((n for n in REPLAY_DAYS if str(n) == request.POST.get("days")), REPLAY_DAYS[0])
    try:
        number = dead_replay(
            endpoint=endpoint, since=timezone.now() - datetime.timedelta(days=days), actor=reader(request)
        )
    except DomainError as error:
        messages.error(request, error.message)
    else:
        said = ngettext("%(n)s delivery is sent again.", "%(n)s deliveries are sent again.", number) % {"n": number}
        messages.success(request, said)
    return redirect("portal:webhook", found.pk, endpoint.pk)


@require_GET
@login_required
def webhook_delivery(
    request: HttpRequest, organisation_id: uuid.UUID, endpoint_id: uuid.UUID, delivery_id: uuid.UUID
) -> HttpResponse:
    """One delivery: what was sent, every attempt and its answer."""
    found, endpoint = _endpoint(request, organisation_id, endpoint_id)
    delivery = get_object_or_404(endpoint.deliveries.select_related("event"), pk=delivery_id)
    context = _context(
        found,
        endpoint=endpoint,
        delivery=delivery,
        kind=WEBHOOK_KINDS.get(delivery.event.kind, _("Test")),
        attempts=delivery.attempts.all(),
    )
    return render(request, "portal/webhook_delivery.html", context)


@require_POST
@login_required
def webhook_delivery_replay(
    request: HttpRequest, organisation_id: uuid.UUID, endpoint_id: uuid.UUID, delivery_id: uuid.UUID
) -> HttpResponse:
    found, endpoint = _endpoint(request, organisation_id, endpoint_id)
    delivery = get_object_or_404(endpoint.deliveries.select_related("endpoint"), pk=delivery_id)
    try:
        delivery_replay(delivery=delivery, actor=reader(request))
    except DomainError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("The delivery is sent again."))
    return redirect("portal:webhook_delivery", found.pk, endpoint.pk, delivery.pk)


def _endpoint(
    request: HttpRequest, organisation_id: uuid.UUID, endpoint_id: uuid.UUID
) -> tuple[Organisation, Endpoint]:
    found = managed(request, organisation_id)
    return found, get_object_or_404(Endpoint, organisation=found, pk=endpoint_id)


def _context(organisation: Organisation, **more: Any) -> dict[str, Any]:
    return {"section": "settings", "organisation": organisation, **more}

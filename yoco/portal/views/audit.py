"""The audit log: of an organisation, for those who manage it, and of all customers, for account managers."""

import uuid

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import get_language
from django.views.decorators.http import require_GET

from yoco.accounts.access import require_account_manager
from yoco.accounts.models import Organisation, User
from yoco.core.downloads import attachment
from yoco.portal.access import reader
from yoco.portal.audit.lines import audit_csv, lines_of
from yoco.portal.audit.selectors import (
    SYSTEM,
    VENDOR,
    AuditFilter,
    Place,
    audit_all,
    audit_page,
    entries_seen,
    people_of,
)
from yoco.portal.audit.words import KINDS
from yoco.portal.managing import managed
from yoco.portal.querying import choice_in, day_in


def filter_of(query: QueryDict) -> AuditFilter:
    """The filter that an address names."""
    try:
        person = str(uuid.UUID(query.get("person", "")))
    except ValueError:
        person = choice_in(query, "person", [VENDOR, SYSTEM])
    return AuditFilter(
        person=person,
        kind=choice_in(query, "kind", [kind for kind, _name in KINDS]),
        since=day_in(query, "since"),
        until=day_in(query, "until"),
    )


@require_GET
@login_required
def of_organisation(request: HttpRequest, organisation_id: uuid.UUID) -> HttpResponse:
    """What happened in an organisation, to its contracts, and to the accounts that open its pages."""
    organisation = managed(request, organisation_id)
    people = [row.user for row in people_of(organisation=organisation)]
    return _page(request, organisation, people, {"organisation": organisation})


@require_GET
@login_required
def of_organisation_csv(request: HttpRequest, organisation_id: uuid.UUID) -> StreamingHttpResponse:
    """Exactly what the page shows under the same filter, all pages of it."""
    return _file(request, managed(request, organisation_id))


@require_GET
@login_required
def of_all(request: HttpRequest) -> HttpResponse:
    """Everything, or what one organisation's owners see."""
    require_account_manager(reader(request))
    organisations = list(Organisation.objects.order_by("name"))
    chosen = _chosen(request, organisations)
    people = list(User.objects.filter(is_account_manager=True).order_by("name", "email"))
    if chosen:
        people += [row.user for row in people_of(organisation=chosen) if not row.user.is_account_manager]
    return _page(request, chosen, people, {"organisations": organisations})


@require_GET
@login_required
def of_all_csv(request: HttpRequest) -> StreamingHttpResponse:
    """The same as a file."""
    require_account_manager(reader(request))
    return _file(request, _chosen(request, list(Organisation.objects.all())))


def _chosen(request: HttpRequest, organisations: list[Organisation]) -> Organisation | None:
    wanted = request.GET.get("organisation", "")
    return next((each for each in organisations if str(each.pk) == wanted), None)


def _page(
    request: HttpRequest, organisation: Organisation | None, people: list[User], context: dict[str, object]
) -> HttpResponse:
    wanted = filter_of(request.GET)
    page = audit_page(
        seen=entries_seen(organisation=organisation, wanted=wanted, zone=timezone.get_current_timezone_name()),
        newer_than=Place.parse(request.GET.get("newer_than", "")),
        older_than=Place.parse(request.GET.get("older_than", "")),
    )
    desk = "organisations" in context
    names = {each.pk: each.name for each in context.get("organisations", [])}  # type: ignore[attr-defined]
    lines = lines_of(entries=page.rows, people=people, desk=desk)
    context |= {
        "section": "audit" if desk else "settings",
        "chosen": organisation,
        "wanted": wanted,
        "people": people,
        "kinds": KINDS,
        "page": page,
        "lines": [(line, names.get(line.entry.organisation_id, "")) for line in lines],
        "file": f"{request.path}audit.csv",
    }
    return render(request, "portal/audit.html", context)


def _file(request: HttpRequest, organisation: Organisation | None) -> StreamingHttpResponse:
    seen = entries_seen(
        organisation=organisation, wanted=filter_of(request.GET), zone=timezone.get_current_timezone_name()
    )
    names = (
        dict(Organisation.objects.values_list("pk", "name"))
        if organisation is None
        else {organisation.pk: organisation.name}
    )
    text = audit_csv(
        audit_all(seen=seen),
        organisations=names,
        desk=reader(request).is_account_manager,
        language=get_language() or "en",
    )
    response = StreamingHttpResponse(text, content_type="text/csv; charset=utf-8")
    return attachment(response, organisation.slug if organisation else "all-customers", "audit.csv")

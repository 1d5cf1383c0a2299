"""A statement by a link: made and revoked by members, opened by whoever has it, without signing in."""

import uuid
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from yoco.accounts.models import Role
from yoco.core.links import absolute
from yoco.core.problem import DomainError
from yoco.guarantee.models import Statement
from yoco.guarantee.sharing import share_by_token, share_opened, share_revoke, statement_share
from yoco.portal.access import reader
from yoco.portal.documents import statement_pdf
from yoco.portal.managing import beyond_limit
from yoco.portal.selectors import is_member
from yoco.portal.views.statements import ShareForm, context_of, named, statement_in_url

View = Callable[..., HttpResponse]


def shareable(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, revision: int) -> Statement:
    """The statement, for members and above of its organisation; the vendor's people leave it to them."""
    statement = statement_in_url(request, contract_id, year_id, revision, minimum=Role.MEMBER)
    if not is_member(user=reader(request), contract=statement.year.contract):
        raise PermissionDenied
    return statement


@never_cache
@require_POST
@login_required
def share(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, revision: int) -> HttpResponse:
    """The link is in this one answer and nowhere else."""
    statement = shareable(request, contract_id, year_id, revision)
    form = ShareForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Choose how long the link lasts."))
        return redirect("portal:statement", contract_id, year_id, revision)
    try:
        made, token = statement_share(statement=statement, days=form.cleaned_data["days"], actor=reader(request))
    except DomainError as error:
        messages.error(request, error.message)
        return redirect("portal:statement", contract_id, year_id, revision)
    context = {
        "section": "guarantee",
        "contract": statement.year.contract,
        "year": statement.year,
        "statement": statement,
        "share": made,
        "link": absolute("portal:shared", token),
    }
    return render(request, "portal/share_created.html", context, status=201)


@require_POST
@login_required
def revoke(
    request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, revision: int, share_id: uuid.UUID
) -> HttpResponse:
    """Any member ends any link of the organisation, at once."""
    statement = shareable(request, contract_id, year_id, revision)
    row = get_object_or_404(statement.shares.select_related("statement__year__contract"), pk=share_id)
    try:
        share_revoke(share=row, actor=reader(request))
    except DomainError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("The link is revoked. Whoever opens it finds nothing."))
    return redirect("portal:statement", contract_id, year_id, revision)


def unlisted(view: View) -> View:
    """Keeps an address that is a secret out of search engines, caches and the address lines of other sites."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = view(request, *args, **kwargs)
        response.headers["X-Robots-Tag"] = "noindex, nofollow, noarchive"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    return never_cache(guarded)


@require_GET
@unlisted
def shared(request: HttpRequest, token: str) -> HttpResponse:
    """The statement as its page shows it, without a way to anything else."""
    if limited := beyond_limit(request, action="open_share", reading=True):
        return limited
    found = share_by_token(token)
    if found is None:
        return render(request, "portal/share_over.html", status=404)
    share_opened(share=found)
    return render(request, "portal/shared.html", {**context_of(found.statement), "share": found, "token": token})


@require_GET
@unlisted
def shared_pdf(request: HttpRequest, token: str) -> HttpResponse:
    """The statement as a document."""
    if limited := beyond_limit(request, action="open_share_pdf", reading=True):
        return limited
    found = share_by_token(token)
    if found is None:
        return render(request, "portal/share_over.html", status=404)
    share_opened(share=found)
    response = HttpResponse(statement_pdf(context_of(found.statement)), content_type="application/pdf")
    return named(response, found.statement, "pdf")

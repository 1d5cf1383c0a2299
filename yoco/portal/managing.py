"""Who changes an organisation: its owners and administrators, after they have confirmed that it is them."""

import uuid
from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.account.decorators import reauthentication_required
from allauth.core.ratelimit import consume_or_429
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from yoco.accounts.access import access_organisation, visible
from yoco.accounts.invitations import may_invite_owner
from yoco.accounts.models import Organisation, Role
from yoco.portal.access import reader

View = Callable[..., HttpResponse]
May = Callable[[HttpRequest, Organisation], bool]


def may_manage(request: HttpRequest, found: Organisation) -> bool:
    """An administrator or owner of this organisation. The vendor's people look, and leave it to the customer."""
    user = reader(request)
    if user.is_account_manager:
        return False
    mine = visible(Organisation.objects.all(), principal=user, organisation="self", minimum=Role.ADMIN)
    return mine.filter(pk=found.pk).exists()


def may_invite(request: HttpRequest, found: Organisation) -> bool:
    """Who manages it; and, while it has no owner, an account manager, to hand it over."""
    user = reader(request)
    if user.is_account_manager:
        return may_invite_owner(organisation=found, user=user)
    return may_manage(request, found)


def managed(request: HttpRequest, organisation_id: uuid.UUID, may: May = may_manage) -> Organisation:
    """The organisation, for those who may: 404 for strangers, 403 for the others."""
    found = access_organisation(reader(request), organisation_id)
    if not may(request, found):
        raise PermissionDenied
    return found


def beyond_limit(request: HttpRequest, *, action: str, reading: bool = False) -> HttpResponse | None:
    """Counts one try against the limit of `action` in ACCOUNT_RATE_LIMITS; the 429 page once it is used up.

    A GET counts only where `reading` itself is limited.
    """
    answer: HttpResponse | None = consume_or_429(request, action=action, limit_get=reading)
    return answer


def confirmed(view: View, may: May = may_manage) -> View:
    """Replaces the id in the URL by the organisation, for those who may and have confirmed within five minutes that
    it is them; allauth asks the others. A POST that was interrupted by the question goes on afterwards."""
    asked: View = reauthentication_required(view)

    @wraps(view)
    def guarded(request: HttpRequest, organisation_id: uuid.UUID, **kwargs: Any) -> HttpResponse:
        return asked(request, managed(request, organisation_id, may), **kwargs)

    return login_required(guarded)

"""The desk exists for account managers only; for everyone else its addresses answer 404."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.account.decorators import reauthentication_required
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from yoco.accounts.access import require_account_manager
from yoco.accounts.models import User

View = Callable[..., HttpResponse]


def desk(view: View) -> View:
    """Signed-in account managers only."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        account_manager(request)
        return view(request, *args, **kwargs)

    return login_required(guarded)


def account_manager(request: HttpRequest) -> User:
    """The person at the desk. Raises Http404 for anyone else."""
    assert isinstance(request.user, User)
    return require_account_manager(request.user)


def reauthenticated(view: View) -> View:
    """Who moves money has given the password again within the last five minutes; allauth asks for it otherwise."""
    guarded: View = reauthentication_required(view)
    return guarded

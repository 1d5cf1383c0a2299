"""Where a person is signed in, and how to end that."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET, require_POST

from yoco.accounts.middleware import NOTED_AT, session_note
from yoco.accounts.sessions import LiveSession, sessions_end, sessions_live
from yoco.portal.access import reader


@require_GET
@login_required
def sessions(request: HttpRequest) -> HttpResponse:
    """The live sessions, this one first."""
    if NOTED_AT not in request.session:
        session_note(request)
    found = sorted(_live(request), key=lambda each: not each.is_current)
    return render(request, "portal/sessions.html", {"section": "settings", "sessions": found})


@require_POST
@login_required
def session_end(request: HttpRequest, session_id: int) -> HttpResponse:
    """Ends one of the others; this one ends by signing out."""
    chosen = [each.row for each in _live(request) if each.row.pk == session_id and not each.is_current]
    if not chosen:
        raise Http404
    sessions_end(user=reader(request), rows=chosen)
    messages.success(request, _("That session has ended."))
    return redirect("portal:sessions")


@require_POST
@login_required
def sessions_end_others(request: HttpRequest) -> HttpResponse:
    """Ends all sessions but this one."""
    others = [each.row for each in _live(request) if not each.is_current]
    sessions_end(user=reader(request), rows=others)
    text = ngettext("%(count)d other session has ended.", "%(count)d other sessions have ended.", len(others))
    messages.success(request, text % {"count": len(others)})
    return redirect("portal:sessions")


def _live(request: HttpRequest) -> list[LiveSession]:
    return sessions_live(user=reader(request), current_key=request.session.session_key or "")

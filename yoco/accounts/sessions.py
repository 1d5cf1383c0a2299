"""A person's live sessions: where they are signed in, and how to end that."""

from dataclasses import dataclass

from allauth.usersessions.models import UserSession
from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import transaction
from django.utils import timezone

from yoco.accounts.models import User
from yoco.core.audit import audit_record

# The first that occurs names it: every browser also claims to be those after it.
BROWSERS = {"Edg": "Edge", "OPR": "Opera", "Firefox": "Firefox", "Chrome": "Chrome", "Safari": "Safari"}
SYSTEMS = {
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Android": "Android",
    "Windows": "Windows",
    "Mac OS": "macOS",
    "Linux": "Linux",
}


@dataclass(frozen=True, slots=True)
class LiveSession:
    """One sign-in that still opens pages."""

    row: UserSession
    is_current: bool
    browser: str  # empty where the user agent names none that is known
    system: str


def sessions_live(*, user: User, current_key: str) -> list[LiveSession]:
    """Where this person is signed in, the latest seen first. A session that the password outlived is not live."""
    rows = list(UserSession.objects.filter(user=user).order_by("-last_seen_at"))
    stored = Session.objects.filter(session_key__in=[row.session_key for row in rows], expire_date__gt=timezone.now())
    hashes = {user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()}
    live = {each.session_key for each in stored if each.get_decoded().get(HASH_SESSION_KEY) in hashes}
    return [
        LiveSession(
            row=row,
            is_current=row.session_key == current_key,
            browser=_first(BROWSERS, row.user_agent),
            system=_first(SYSTEMS, row.user_agent),
        )
        for row in rows
        if row.session_key in live
    ]


@transaction.atomic
def sessions_end(*, user: User, rows: list[UserSession]) -> None:
    """These sessions open nothing from now on."""
    Session.objects.filter(session_key__in=[row.session_key for row in rows]).delete()
    UserSession.objects.filter(user=user, pk__in=[row.pk for row in rows]).delete()
    audit_record(action="sessions.ended", actor=user, subject=user, data={"count": len(rows)})


def sessions_forget_dead(*, user: User) -> None:
    """Drops the notes of sessions that are gone: signed out, expired, or ended by a new password."""
    kept = Session.objects.filter(expire_date__gt=timezone.now()).values("session_key")
    UserSession.objects.filter(user=user).exclude(session_key__in=kept).delete()


def _first(names: dict[str, str], user_agent: str) -> str:
    return next((name for mark, name in names.items() if mark in user_agent), "")

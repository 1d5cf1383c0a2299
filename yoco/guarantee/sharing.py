"""Links to one frozen statement for people without an account, such as an auditor. They read it and nothing else.

Only a hash of the link's token is stored. A link ends on its day, which is at most 90 days away, or when it is revoked.
"""

import datetime

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.locks import contracts_lock
from yoco.core.audit import audit_record
from yoco.core.links import link_token, token_digest
from yoco.core.problem import DomainError
from yoco.guarantee.models import Statement, StatementShare

MAX_DAYS = 90
OPEN_AT_ONCE = 20  # of one statement, so that the list stays one that people read


def shares_of(*, statement: Statement) -> QuerySet[StatementShare]:
    """Every link that was made to a statement, the latest first."""
    return statement.shares.select_related("created_by", "revoked_by")


def share_by_token(token: str) -> StatementShare | None:
    """The link that this token opens now, with its statement."""
    rows = StatementShare.objects.select_related("statement__year__contract__organisation", "statement__terms")
    return rows.filter(digest=token_digest(token), revoked_at=None, expires_at__gt=timezone.now()).first()


@transaction.atomic
def statement_share(*, statement: Statement, days: int, actor: User) -> tuple[StatementShare, str]:
    """Makes a link for `days` days. Returns it and the token, which cannot be had again.

    Raises DomainError for a number of days outside 1 to MAX_DAYS, and beyond OPEN_AT_ONCE links.
    """
    if not 1 <= days <= MAX_DAYS:
        raise DomainError(_("A link lasts from 1 to %(days)d days.") % {"days": MAX_DAYS}, code="days_out_of_range")
    # Two people who share at once wait for each other here.
    contracts_lock([statement.year.contract_id])
    now = timezone.now()
    if statement.shares.filter(revoked_at=None, expires_at__gt=now).count() >= OPEN_AT_ONCE:
        raise DomainError(
            _("%(count)d links to this statement are open already. Revoke one first.") % {"count": OPEN_AT_ONCE},
            code="too_many_shares",
        )
    token, digest = link_token()
    share = StatementShare.objects.create(
        statement=statement,
        digest=digest,
        created_by=actor,
        created_at=now,
        expires_at=now + datetime.timedelta(days=days),
    )
    _record("statement.shared", share, actor)
    return share, token


@transaction.atomic
def share_revoke(*, share: StatementShare, actor: User) -> None:
    """The link is dead from now on. Raises DomainError if it has been revoked before."""
    now = timezone.now()
    if not StatementShare.objects.filter(pk=share.pk, revoked_at=None).update(revoked_at=now, revoked_by=actor):
        raise DomainError(_("This link is revoked already."), code="share_over")
    _record("statement.share_revoked", share, actor)


def share_opened(*, share: StatementShare) -> None:
    """Counts that somebody opened it, so that whoever made the link sees whether it is used."""
    StatementShare.objects.filter(pk=share.pk).update(opened=F("opened") + 1, last_opened_at=timezone.now())


def _record(action: str, share: StatementShare, actor: User) -> None:
    statement = share.statement
    audit_record(
        action=action,
        actor=actor,
        subject=share,
        organisation_id=statement.year.contract.organisation_id,
        data={
            "statement": str(statement.pk),
            "year": str(statement.year_id),
            "revision": statement.revision,
            "expires_at": share.expires_at.isoformat(),
        },
    )

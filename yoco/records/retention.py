"""What is deleted when it has been kept long enough. docs/data.md lists it; the days are settings.

Ledger, statements, raw reports, incidents, placings, audit log and outbox are never touched: nothing here names them.
"""

import datetime
import logging
from collections.abc import Callable
from typing import Any

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from yoco.accounts.models import Invitation
from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import Contract, ContractYear, YearState
from yoco.core.problem import DomainError
from yoco.guarantee.models import AnalyticsJob, JobState
from yoco.incidents.models import AgentBoot, Incident, IncidentState, Origin, StepHour
from yoco.notify.models import DeliveryState, MailDelivery, WebhookDelivery

log = logging.getLogger(__name__)

BATCH = 500  # rows of one transaction
MOST = 200_000  # rows of one kind in one call; the next call goes on
# A digest's row says that its period has had one, so it outlives the period.
DIGEST_KEPT = datetime.timedelta(days=62)

Rows = QuerySet[Any]


def retention_apply(*, as_of: datetime.datetime, dry_run: bool = False) -> dict[str, int]:
    """Deletes what has been kept longer than the settings say; rows by what they are, those that there were.

    Safe to stop, to run again and to run twice at once: each batch is a transaction of its own. Raises DomainError
    where a setting is below one day.
    """
    if short := [name for name, days in settings.RETENTION_DAYS.items() if days < 1]:
        raise DomainError(f"KEEP_{short[0].upper()}_DAYS is a number of days, 1 or more.", code="retention_too_short")
    done = {}
    for what, name, rows in PLAIN:
        found = rows(as_of, as_of - _kept(name))
        done[what] = found.count() if dry_run else _delete(found)
    cutoff = as_of - _kept("heartbeats")
    for what, of_contract in HEARTBEATS:
        done[what] = 0
        for contract in Contract.objects.order_by("pk"):
            if dry_run:
                done[what] += of_contract(contract, _frozen_until(contract, cutoff)).count()
            else:
                done[what] += _heartbeats_delete(contract, of_contract, cutoff, most=MOST - done[what])
    done = {what: number for what, number in done.items() if number}
    log.info("retention: %s", done or "nothing to delete")
    return done


def _kept(name: str) -> datetime.timedelta:
    return datetime.timedelta(days=settings.RETENTION_DAYS[name])


def _delete(rows: Rows) -> int:
    deleted = 0
    while deleted < MOST:
        with transaction.atomic():
            # Read again under the lock: a delivery may have been replayed meanwhile.
            keys = list(rows.select_for_update(skip_locked=True, of=("self",)).values_list("pk", flat=True)[:BATCH])
            rows.model._base_manager.filter(pk__in=keys).delete()
        if not keys:
            break
        deleted += len(keys)
    return deleted


def _webhooks(as_of: datetime.datetime, cutoff: datetime.datetime) -> Rows:
    return WebhookDelivery.objects.filter(ended_at__lt=cutoff).exclude(state=DeliveryState.PENDING)


def _mails(as_of: datetime.datetime, cutoff: datetime.datetime) -> Rows:
    over = Q(digest="") | Q(period_starts_on__lt=(as_of - DIGEST_KEPT).date())
    return MailDelivery.objects.filter(over, ended_at__lt=cutoff).exclude(state=DeliveryState.PENDING)


def _invitations(as_of: datetime.datetime, cutoff: datetime.datetime) -> Rows:
    ended = Q(accepted_at__lt=cutoff) | Q(revoked_at__lt=cutoff)
    return Invitation.objects.filter(ended | Q(accepted_at=None, revoked_at=None, expires_at__lt=cutoff))


def _sessions(as_of: datetime.datetime, cutoff: datetime.datetime) -> Rows:
    return Session.objects.filter(expire_date__lt=as_of)


def _session_notes(as_of: datetime.datetime, cutoff: datetime.datetime) -> Rows:
    live = Session.objects.filter(session_key=OuterRef("session_key"), expire_date__gte=as_of)
    rows: Rows = UserSession.objects.filter(~Exists(live), last_seen_at__lt=cutoff)
    return rows


def _analytics(as_of: datetime.datetime, cutoff: datetime.datetime) -> Rows:
    return AnalyticsJob.objects.filter(alive_at__lt=cutoff, state__in=[JobState.DONE, JobState.FAILED])


PLAIN: list[tuple[str, str, Callable[[datetime.datetime, datetime.datetime], Rows]]] = [
    ("webhook deliveries", "deliveries", _webhooks),
    ("e-mail deliveries", "deliveries", _mails),
    ("invitations", "invitations", _invitations),
    ("expired sessions", "sessions", _sessions),
    ("notes of ended sessions", "sessions", _session_notes),
    ("answers of the analytics", "analytics", _analytics),
]


def _frozen_until(contract: Contract, cutoff: datetime.datetime) -> datetime.datetime:
    """Up to here every contract year was closed before `cutoff` and waits for no restatement."""
    moving = ContractYear.objects.filter(contract=contract).filter(
        ~Q(state=YearState.CLOSED) | Q(closed_at__gte=cutoff) | Q(restatement_due__isnull=False)
    )
    first = moving.order_by("starts_at").values_list("starts_at", flat=True).first()
    return min(cutoff, first) if first is not None else cutoff


def _boots(contract: Contract, until: datetime.datetime) -> Rows:
    """The boots of runs that were over by then, in which nothing is open and on whose end no placing rests.

    All boots of a run go together, because each may show how another's end is to be read.
    """
    boots = AgentBoot.objects.filter(contract=contract)
    noted = Q(silence_noted_at__isnull=False, silence_noted_at__gte=F("last_seen_at"))
    awaited = Q(run_ended_at=None) & ~noted
    gaps = Q(last_seq__gt=F("accounted_seq")) | Q(gap_since__isnull=False)
    recent = Q(last_seen_at__gte=until) | Q(heard_at__gte=until)
    unsettled = boots.filter(recent | awaited | gaps, run_id=OuterRef("run_id"))
    silent = Q(origin=Origin.SILENCE, state=IncidentState.OPEN)
    # The run's end may prove that no step was left to do (guarantee.facts).
    last_step = Q(first_step_after=None, last_committed_step__isnull=False)
    needed = Incident.objects.filter(
        Q(started_at__gte=until) | silent | last_step, contract=contract, run__run_id=OuterRef("run_id")
    )
    return boots.filter(~Exists(unsettled), ~Exists(needed.order_by()), last_seen_at__lt=until).exclude(run_id="")


def _step_hours(contract: Contract, until: datetime.datetime) -> Rows:
    return StepHour.objects.filter(run__contract=contract, last_at__lt=until)


HEARTBEATS: list[tuple[str, Callable[[Contract, datetime.datetime], Rows]]] = [
    ("boots of agents", _boots),
    ("hours of step times", _step_hours),
]


def _heartbeats_delete(
    contract: Contract,
    of_contract: Callable[[Contract, datetime.datetime], Rows],
    cutoff: datetime.datetime,
    *,
    most: int,
) -> int:
    """In batches, each under the lock that everyone holds who writes heartbeats, places incidents or closes years."""
    deleted = 0
    while deleted < most:
        with transaction.atomic():
            contracts_lock([contract.pk])
            rows = of_contract(contract, _frozen_until(contract, cutoff))
            keys = list(rows.values_list("pk", flat=True)[:BATCH])
            rows.model._base_manager.filter(pk__in=keys).delete()
        if not keys:
            break
        deleted += len(keys)
    return deleted

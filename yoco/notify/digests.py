"""Digests: who is due one, and what it says. One for each member and period, held by the database."""

import datetime
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import Membership
from yoco.contracts.models import ContractYear
from yoco.core.clock import local_midnight
from yoco.core.links import absolute
from yoco.guarantee.labels import verdict_words
from yoco.guarantee.report import YearReport
from yoco.guarantee.selectors import years_report
from yoco.incidents.models import Decision, Dispute, Incident, Origin
from yoco.notify.models import Digest, MailDelivery, MailPreference

HOUR = 7  # of the reader's day


def digests_make(*, as_of: datetime.datetime) -> int:
    """Makes the digests that are due; their number. After days of downtime only the latest period's is made."""
    wanted = (
        MailPreference.objects.exclude(digest=Digest.NEVER)
        .filter(membership__revoked_at=None, membership__user__is_active=True)
        .select_related("membership__user")
    )
    made = []
    for preference in wanted:
        zone = preference.membership.user.time_zone
        day = period_day(digest=preference.digest, zone=zone, at=as_of)
        if _begins(day, zone) > preference.digest_since:
            made.append(
                MailDelivery(
                    membership=preference.membership, digest=preference.digest, period_starts_on=day, due_at=as_of
                )
            )
    known = set(
        MailDelivery.objects.filter(
            event=None,
            membership__in=[row.membership_id for row in made],
            period_starts_on__in={r.period_starts_on for r in made},
        ).values_list("membership_id", "digest", "period_starts_on")
    )
    new = [row for row in made if (row.membership_id, row.digest, row.period_starts_on) not in known]
    MailDelivery.objects.bulk_create(new, ignore_conflicts=True)
    return len(new)


def _begins(day: datetime.date, zone: str) -> datetime.datetime:
    return local_midnight(day, zone) + datetime.timedelta(hours=HOUR)


def period_day(*, digest: str, zone: str, at: datetime.datetime) -> datetime.date:
    """The latest Monday, or first of a month, whose morning has come in the reader's zone."""
    day = at.astimezone(ZoneInfo(zone)).date()
    if _begins(day, zone) > at:
        day -= datetime.timedelta(days=1)
    return day.replace(day=1) if digest == Digest.MONTHLY else day - datetime.timedelta(days=day.weekday())


def period_before(*, digest: str, day: datetime.date) -> datetime.date:
    """Where the period that a digest of `day` tells of begins."""
    if digest == Digest.WEEKLY:
        return day - datetime.timedelta(days=7)
    return (day - datetime.timedelta(days=1)).replace(day=1)


@dataclass(frozen=True, slots=True)
class Standing:
    """One contract year in a digest."""

    report: YearReport
    verdict: str
    link: str
    new_unaccounted: int
    disputes_open: int
    disputes_decided: int


def standings_of(*, membership: Membership, since: datetime.datetime) -> list[Standing]:
    """Each contract's running year, and those that are not closed yet, of the member's organisation."""
    now = timezone.now()
    years = list(
        ContractYear.objects.filter(
            contract__organisation=membership.organisation_id, starts_at__lte=now, closed_at=None
        )
        .select_related("contract")
        .order_by("contract__number", "number")
    )
    standings = []
    for year, report in zip(years, years_report(years=years, as_of=now), strict=True):
        began = {"started_at__gte": year.starts_at, "started_at__lt": year.ends_at}
        disputes = Dispute.objects.filter(
            incident__contract=year.contract_id, **{f"incident__{name}": value for name, value in began.items()}
        )
        standings.append(
            Standing(
                report=report,
                verdict=verdict_words(report.verdict, closed=False),
                link=absolute("portal:year", year.contract_id, year.pk),
                new_unaccounted=Incident.objects.filter(
                    contract=year.contract_id, origin=Origin.SILENCE, first_received_at__gte=since, **began
                ).count(),
                disputes_open=disputes.filter(state=Decision.PENDING).count(),
                disputes_decided=disputes.filter(decided_at__gte=since).exclude(state=Decision.WITHDRAWN).count(),
            )
        )
    return standings


def digest_subject(*, digest: str, organisation: str) -> str:
    if digest == Digest.WEEKLY:
        return _("The week of %(organisation)s") % {"organisation": organisation}
    return _("The month of %(organisation)s") % {"organisation": organisation}

"""Contracts, their versioned guarantee terms, contract years and orders."""

import datetime

from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from yoco.accounts.models import Organisation, User
from yoco.core.ids import uuid7

# The guarantee is offered from this day on (announcement of 1 July 2026).
OFFERED_FROM = datetime.date(2026, 8, 3)


class Contract(models.Model):
    """An agreement with one organisation. The guarantee may begin later than the contract."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="contracts")
    number = models.CharField(max_length=40, unique=True)
    name = models.CharField(max_length=200)
    currency = models.CharField(max_length=3)
    time_zone = models.CharField(max_length=64)
    starts_on = models.DateField()
    ends_on = models.DateField(help_text="First day after the contract, in its time zone.")
    guarantee_from = models.DateField(null=True, blank=True, help_text="First guaranteed day; null without guarantee.")
    price_per_gpu_hour = models.DecimalField(max_digits=10, decimal_places=4, null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(ends_on__gt=F("starts_on")), name="contract_ends_after_start"),
            models.CheckConstraint(
                condition=Q(guarantee_from=None) | Q(guarantee_from__gte=OFFERED_FROM),
                name="contract_guarantee_offered",
            ),
            models.CheckConstraint(
                condition=Q(guarantee_from=None)
                | Q(guarantee_from__gte=F("starts_on"), guarantee_from__lt=F("ends_on")),
                name="contract_guarantee_inside",
            ),
        ]

    def __str__(self) -> str:
        return self.number

    @property
    def last_day(self) -> datetime.date:
        """The last day of the contract; `ends_on` is the first day after it."""
        return self.ends_on - datetime.timedelta(days=1)


class CreditBase(models.TextChoices):
    NEXT_ORDER = "next_order", _("The next renewal or expansion order")
    YEAR_FEES = "year_fees", _("The fees of the year that fell short")


class Counted(models.TextChoices):
    ALWAYS = "always", _("Always")
    EVIDENCED = "evidenced", _("Only when its trigger is evidenced")
    NEVER = "never", _("Never")


class CountedUnit(models.TextChoices):
    ROOT_EVENT_WORKLOAD = "root_event_workload", _("One root event on one workload")
    ROOT_EVENT = "root_event", _("One root event")
    INCIDENT = "incident", _("One incident")


class Unaccounted(models.TextChoices):
    NOT_RESOLVED = "not_resolved", _("Counts as not resolved until explained")
    LISTED = "listed", _("Listed, not counted")


class OpenIncidentCutoff(models.TextChoices):
    NOT_RESOLVED = "not_resolved", _("Counts as not resolved")
    LISTED = "listed", _("Listed, not counted")


class EmptyYear(models.TextChoices):
    MET = "met", _("Met, shown as “no failures”")
    NO_VERDICT = "no_verdict", _("No verdict")


class PartialYear(models.TextChoices):
    OWN_VERDICT = "own_verdict", _("Its own verdict over the guaranteed part")
    NO_VERDICT = "no_verdict", _("No verdict")


class CreditExpiry(models.TextChoices):
    CONTRACT_END = "contract_end", _("Forfeited if the contract ends without renewal")
    DATE = "date", _("On a date")
    MONTHS = "months", _("Months after issue")


class Rounding(models.TextChoices):
    HALF_EVEN = "half_even", _("Half to even")
    HALF_UP = "half_up", _("Half up")


class LeapDay(models.TextChoices):
    FEB_28 = "feb_28", _("28 February")
    MAR_1 = "mar_1", _("1 March")


class ExclusionReason(models.TextChoices):
    USER_ERROR = "user_error", _("User error")
    UNSUPPORTED_WORKLOAD = "unsupported_workload", _("Unsupported workload")
    AGENT_DISABLED = "agent_disabled", _("Agent disabled by the customer")
    SITE_OUTAGE = "site_outage", _("Site-wide power or network loss")


def all_exclusion_reasons() -> list[str]:
    return list(ExclusionReason.values)


class GuaranteeTerms(models.Model):
    """One version of a contract's terms; a later version takes effect at a date and never changes an earlier one."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="terms")
    version = models.PositiveIntegerField()
    effective_on = models.DateField(help_text="First day under this version, in the contract's time zone.")
    threshold_num = models.PositiveIntegerField(default=90)
    threshold_den = models.PositiveIntegerField(default=100)
    credit_rate_num = models.PositiveIntegerField(default=25)
    credit_rate_den = models.PositiveIntegerField(default=100)
    credit_base = models.CharField(max_length=12, choices=CreditBase.choices, default=CreditBase.NEXT_ORDER)
    counted_unplanned = models.CharField(max_length=10, choices=Counted.choices, default=Counted.ALWAYS)
    counted_preventive = models.CharField(max_length=10, choices=Counted.choices, default=Counted.EVIDENCED)
    counted_planned = models.CharField(max_length=10, choices=Counted.choices, default=Counted.NEVER)
    path_failover_counted = models.BooleanField(default=False)
    unit = models.CharField(max_length=20, choices=CountedUnit.choices, default=CountedUnit.ROOT_EVENT_WORKLOAD)
    root_event_window_s = models.PositiveIntegerField(default=60)
    relapse_window_minutes = models.PositiveIntegerField(default=30)
    late_report_window_days = models.PositiveIntegerField(default=30)
    open_incident_cutoff = models.CharField(
        max_length=12,
        choices=OpenIncidentCutoff.choices,
        default=OpenIncidentCutoff.NOT_RESOLVED,
        help_text="What an incident that is still open when the year closes counts as.",
    )
    unaccounted = models.CharField(max_length=12, choices=Unaccounted.choices, default=Unaccounted.NOT_RESOLVED)
    silence_window_minutes = models.PositiveIntegerField(
        default=60,
        help_text="A run silent for so long without `run_ended`, or a gap so old, becomes unaccounted.",
    )
    empty_year = models.CharField(max_length=12, choices=EmptyYear.choices, default=EmptyYear.MET)
    partial_year = models.CharField(max_length=12, choices=PartialYear.choices, default=PartialYear.OWN_VERDICT)
    exclusions = models.JSONField(default=all_exclusion_reasons)
    dispute_window_days = models.PositiveIntegerField(default=30)
    credit_expiry = models.CharField(max_length=12, choices=CreditExpiry.choices, default=CreditExpiry.CONTRACT_END)
    credit_expires_on = models.DateField(null=True, blank=True)
    credit_expiry_months = models.PositiveIntegerField(null=True, blank=True)
    credit_cap_num = models.PositiveIntegerField(default=1, help_text="Largest share of an order that credits may pay.")
    credit_cap_den = models.PositiveIntegerField(default=1)
    rounding = models.CharField(max_length=10, choices=Rounding.choices, default=Rounding.HALF_EVEN)
    leap_day_anniversary = models.CharField(max_length=6, choices=LeapDay.choices, default=LeapDay.FEB_28)
    created_at = models.DateTimeField(default=timezone.now)
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["contract", "version"]
        constraints = [
            models.UniqueConstraint(fields=["contract", "version"], name="terms_version_unique"),
            models.UniqueConstraint(fields=["contract", "effective_on"], name="terms_one_version_a_day"),
            models.CheckConstraint(
                condition=Q(threshold_num__gt=0, threshold_den__gte=F("threshold_num")),
                name="terms_threshold_is_share",
            ),
            models.CheckConstraint(
                condition=Q(credit_rate_den__gte=F("credit_rate_num"), credit_rate_den__gt=0),
                name="terms_credit_rate_is_share",
            ),
            models.CheckConstraint(
                condition=Q(credit_cap_den__gte=F("credit_cap_num"), credit_cap_num__gt=0),
                name="terms_cap_is_share",
            ),
            models.CheckConstraint(
                condition=(Q(credit_expiry="contract_end", credit_expires_on=None, credit_expiry_months=None))
                | Q(credit_expiry="date", credit_expires_on__isnull=False, credit_expiry_months=None)
                | Q(credit_expiry="months", credit_expires_on=None, credit_expiry_months__gt=0),
                name="terms_expiry_complete",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.contract} v{self.version}"


class YearState(models.TextChoices):
    OPEN = "open", _("Open")
    CLOSING = "closing", _("Closing")
    CLOSED = "closed", _("Closed")


class ContractYear(models.Model):
    """From local midnight to local midnight, half-open. `guaranteed_*` is the part that the guarantee covers."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="years")
    number = models.PositiveIntegerField()
    starts_on = models.DateField()
    ends_on = models.DateField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    guaranteed_from = models.DateTimeField(null=True, blank=True)
    guaranteed_until = models.DateTimeField(null=True, blank=True)
    state = models.CharField(max_length=8, choices=YearState.choices, default=YearState.OPEN)
    fees_minor = models.BigIntegerField(null=True, blank=True, help_text="Fees of this year, in minor units.")
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["contract", "number"]
        indexes = [
            # close_years and tick look for years that are due.
            models.Index(fields=["ends_at"], condition=~Q(state="closed"), name="year_not_closed_by_end"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["contract", "number"], name="year_number_unique"),
            models.UniqueConstraint(fields=["contract", "starts_on"], name="year_start_unique"),
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="year_ends_after_start"),
            models.CheckConstraint(
                condition=Q(guaranteed_from=None, guaranteed_until=None)
                | Q(
                    guaranteed_from__gte=F("starts_at"),
                    guaranteed_until__lte=F("ends_at"),
                    guaranteed_from__lt=F("guaranteed_until"),
                ),
                name="year_guaranteed_part_inside",
            ),
            models.CheckConstraint(
                condition=Q(state="closed", closed_at__isnull=False) | (~Q(state="closed") & Q(closed_at=None)),
                name="year_closed_has_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.contract} {self.starts_on}"

    @property
    def last_day(self) -> datetime.date:
        """The last day of the year; `ends_on` is the first day after it."""
        return self.ends_on - datetime.timedelta(days=1)


class OrderKind(models.TextChoices):
    RENEWAL = "renewal", _("Renewal")
    EXPANSION = "expansion", _("Expansion")


class OrderState(models.TextChoices):
    RECORDED = "recorded", _("Recorded")
    CANCELLED = "cancelled", _("Cancelled")


class Order(models.Model):
    """A renewal or expansion that credits can pay in part."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="orders")
    number = models.CharField(max_length=40, unique=True)
    kind = models.CharField(max_length=10, choices=OrderKind.choices)
    amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    ordered_on = models.DateField()
    state = models.CharField(max_length=10, choices=OrderState.choices, default=OrderState.RECORDED)
    recorded_at = models.DateTimeField(default=timezone.now)
    cancelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["ordered_on", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(amount_minor__gt=0), name="order_amount_positive"),
            models.CheckConstraint(
                condition=Q(state="recorded", cancelled_at=None) | Q(state="cancelled", cancelled_at__isnull=False),
                name="order_cancelled_has_time",
            ),
        ]

    def __str__(self) -> str:
        return self.number

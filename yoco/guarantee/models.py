"""Where each incident was placed, and the frozen statements of closed contract years."""

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from yoco.contracts.models import ContractYear, GuaranteeTerms
from yoco.core.ids import uuid7
from yoco.incidents.models import Incident, Kind


class Outcome(models.TextChoices):
    """Every incident of a contract year is in exactly one of these."""

    RESOLVED = "resolved", _("Resolved without loss")
    NOT_RESOLVED = "not_resolved", _("Not resolved without loss")
    PENDING = "pending", _("Pending")
    UNACCOUNTED = "unaccounted", _("Unaccounted")
    EXCLUDED = "excluded", _("Excluded")
    NOT_COUNTED = "not_counted", _("Not counted")


class Placement(models.Model):
    """The current placing of one incident under the terms of its year, recomputed when a fact or a review changes."""

    incident = models.OneToOneField(Incident, primary_key=True, on_delete=models.PROTECT, related_name="placement")
    year = models.ForeignKey(
        ContractYear, null=True, on_delete=models.PROTECT, related_name="placements", db_index=False
    )
    terms = models.ForeignKey(GuaranteeTerms, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    unit_key = models.CharField(max_length=80, help_text="Incidents with the same key count once.")
    outcome = models.CharField(max_length=12, choices=Outcome.choices)
    rule = models.CharField(max_length=40, help_text="Id of the rule that decided, as in docs/guarantee.md.")
    evidence = models.JSONField(default=dict)
    incident_revision = models.PositiveIntegerField()
    placed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes = [
            # The year's tally reads nothing but this index.
            models.Index(fields=["year", "outcome", "kind", "unit_key"], name="placement_tally"),
        ]


class Verdict(models.TextChoices):
    MET = "met", _("Met")
    SHORT = "short", _("Short")
    NO_FAILURES = "no_failures", _("No failures")
    UNDECIDED = "undecided", _("Undecided")


class Statement(models.Model):
    """The frozen result of a closed year. Append-only: later facts make the next revision with its reason."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    year = models.ForeignKey(ContractYear, on_delete=models.PROTECT, related_name="statements")
    revision = models.PositiveIntegerField()
    reason = models.TextField(blank=True, help_text="Why a restatement was made; empty for revision 1.")
    terms = models.ForeignKey(GuaranteeTerms, on_delete=models.PROTECT, related_name="+")
    counted = models.PositiveIntegerField()
    resolved = models.PositiveIntegerField()
    verdict = models.CharField(max_length=12, choices=Verdict.choices)
    sha256 = models.CharField(max_length=64)
    canonical = models.TextField(help_text="The canonical JSON that the hash is of.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["year", "-revision"]
        constraints = [
            models.UniqueConstraint(fields=["year", "revision"], name="statement_revision_unique"),
            models.CheckConstraint(condition=models.Q(resolved__lte=models.F("counted")), name="statement_k_of_n"),
        ]

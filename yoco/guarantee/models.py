"""Where each incident was placed, and the frozen statements of closed contract years."""

import datetime

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from yoco.accounts.models import User
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.core.ids import uuid7
from yoco.incidents.models import Decision, Incident, Kind, Run


class Outcome(models.TextChoices):
    """Every incident of a contract year is in exactly one of these."""

    RESOLVED = "resolved", _("Resolved without loss")
    NOT_RESOLVED = "not_resolved", _("Not resolved without loss")
    PENDING = "pending", _("Pending")
    UNACCOUNTED = "unaccounted", _("Unaccounted")
    EXCLUDED = "excluded", _("Excluded")
    NOT_COUNTED = "not_counted", _("Not counted")


class Placement(models.Model):
    """The current placing of one incident under the terms of its year. Recomputed whenever a fact or a review changes.

    Narrow on purpose: a year's report reads one index of it and no incident.
    """

    incident = models.OneToOneField(Incident, primary_key=True, on_delete=models.PROTECT, related_name="placement")
    year = models.ForeignKey(
        ContractYear, null=True, on_delete=models.PROTECT, related_name="placements", db_index=False
    )
    terms = models.ForeignKey(GuaranteeTerms, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="+", db_index=False)
    # No foreign key: regrouping removes a root event before its incidents are placed anew.
    root_event_key = models.UUIDField(null=True)
    started_at = models.DateTimeField()
    stall_from = models.DateTimeField(help_text="Start, or the checkpoint that the job went back to, if earlier.")
    ended_at = models.DateTimeField(help_text="The latest phase that is known.")
    kind = models.CharField(max_length=10, choices=Kind.choices, help_text="The kind that the evidence allows.")
    unit_key = models.CharField(max_length=80, help_text="Incidents with the same key count once.")
    lead = models.BooleanField(help_text="The one member of its unit that the tally counts.")
    outcome = models.CharField(max_length=12, choices=Outcome.choices)
    rule = models.CharField(max_length=40, help_text="Id of the rule that decided, as in docs/guarantee.md.")
    without_loss = models.BooleanField(help_text="All four conditions are met, whether or not the incident counts.")
    evidence = models.JSONField(default=dict, help_text="The four conditions with reason codes and facts.")
    synthetic = models.BooleanField(default=False)
    waste_actual_ms = models.BigIntegerField(default=0, help_text="GPU-milliseconds.")
    waste_counterfactual_ms = models.BigIntegerField(default=0, help_text="GPU-milliseconds.")
    waste_potential_ms = models.BigIntegerField(default=0, help_text="GPU-milliseconds, never part of saved.")
    waste_estimated = models.BooleanField(default=False, help_text="A default stood in for a measurement.")
    waste_terms = models.JSONField(
        null=True, help_text="`actual` and `counterfactual` by term, GPU-milliseconds; null where placed before this."
    )
    incident_revision = models.PositiveIntegerField()
    placed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            # Two leads would count one failure twice.
            models.UniqueConstraint(fields=["unit_key"], condition=Q(lead=True), name="placement_one_lead"),
            models.CheckConstraint(condition=Q(outcome__in=Outcome.values), name="placement_outcome_known"),
        ]
        indexes = [
            # The year's tally reads nothing but this index.
            models.Index(
                fields=["year", "lead", "outcome", "kind"],
                include=[
                    "without_loss",
                    "synthetic",
                    "waste_actual_ms",
                    "waste_counterfactual_ms",
                    "waste_potential_ms",
                    "waste_estimated",
                ],
                name="placement_tally",
            ),
            # Whether anything of a year was placed since its analytics were computed.
            models.Index(fields=["year", "placed_at"], name="placement_by_year_placed"),
            # Neighbours of an incident: what the same workload met shortly before and after.
            models.Index(fields=["run", "ended_at"], name="placement_by_run_end"),
            # The members of a root event, where the terms count root events alone.
            models.Index(fields=["root_event_key"], name="placement_by_root_event"),
            models.Index(fields=["unit_key"], name="placement_by_unit"),
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
    # Nullable only because SQLite would rebuild the table for anything else, and lose its append-only triggers.
    summary = models.JSONField(null=True, help_text="`report` of the canonical JSON, to read without its incidents.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["year", "-revision"]
        constraints = [
            models.UniqueConstraint(fields=["year", "revision"], name="statement_revision_unique"),
            models.CheckConstraint(condition=Q(resolved__lte=F("counted")), name="statement_k_of_n"),
        ]


class Snapshot(models.Model):
    """The figures of a year up to the end of one of its months, frozen like a statement, without a verdict.

    Its text names the incidents that began in the month, and what changed of those before. Append-only.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    year = models.ForeignKey(ContractYear, on_delete=models.PROTECT, related_name="snapshots")
    number = models.PositiveIntegerField(help_text="The month of the contract year, from 1.")
    starts_on = models.DateField()
    ends_on = models.DateField(help_text="The first day after the month.")
    ends_at = models.DateTimeField()
    late = models.BooleanField(help_text="Made so long after the month's end that facts can have come in between.")
    terms = models.ForeignKey(GuaranteeTerms, on_delete=models.PROTECT, related_name="+")
    counted = models.PositiveIntegerField()
    resolved = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64)
    canonical = models.TextField(help_text="The canonical JSON that the hash is of.")
    summary = models.JSONField(help_text="`report` of the canonical JSON, to read without its incidents.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["year", "number"]
        constraints = [
            models.UniqueConstraint(fields=["year", "number"], name="snapshot_one_a_month"),
            models.CheckConstraint(condition=Q(resolved__lte=F("counted")), name="snapshot_k_of_n"),
            models.CheckConstraint(condition=Q(created_at__gte=F("ends_at")), name="snapshot_after_its_month"),
        ]

    @property
    def last_day(self) -> datetime.date:
        """The last day of the month."""
        return self.ends_on - datetime.timedelta(days=1)


class StatementShare(models.Model):
    """A link that shows one statement to whoever has it, until it expires or is revoked."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="shares")
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the link's token, which is not stored.")
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    revoked_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    revoked_at = models.DateTimeField(null=True)
    opened = models.PositiveIntegerField(default=0)
    last_opened_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(condition=Q(expires_at__gt=F("created_at")), name="share_ends_after_it_began"),
            models.CheckConstraint(
                condition=Q(revoked_at=None, revoked_by=None) | Q(revoked_at__isnull=False, revoked_by__isnull=False),
                name="share_revoked_by_someone",
            ),
        ]

    @property
    def is_open(self) -> bool:
        return self.revoked_at is None and self.expires_at > timezone.now()


class RestatementDue(models.Model):
    """A closed year whose placings changed after its statement, until the next sweep restates it."""

    year = models.OneToOneField(
        ContractYear, primary_key=True, on_delete=models.PROTECT, related_name="restatement_due"
    )
    reasons = models.JSONField(default=list, help_text="Stable codes of what changed, in the order they were seen.")
    since = models.DateTimeField(default=timezone.now)


class ProposalKind(models.TextChoices):
    RESTATEMENT = "restatement", _("Restatement of a closed year")
    TERMS = "terms", _("New version of the terms")
    END = "contract_end", _("Early end of the contract")


class Proposal(models.Model):
    """A step at the desk that takes effect once a second account manager has confirmed it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(max_length=12, choices=ProposalKind.choices)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="proposals")
    year = models.ForeignKey(ContractYear, null=True, on_delete=models.PROTECT, related_name="+")
    said = models.JSONField(default=dict, encoder=DjangoJSONEncoder, help_text="What its service is called with.")
    reason = models.TextField()
    shown_sha256 = models.CharField(
        max_length=64, help_text="Of what was shown when it was made; it is confirmed on that alone."
    )
    proposed_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    proposed_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=10, choices=Decision.choices, default=Decision.PENDING)
    decided_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    decided_at = models.DateTimeField(null=True)
    decision_note = models.TextField(blank=True)

    class Meta:
        ordering = ["-proposed_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["contract", "kind"], condition=Q(state="pending"), name="proposal_one_pending"
            ),
            models.CheckConstraint(
                condition=~Q(state="accepted") | (Q(decided_by__isnull=False) & ~Q(decided_by=F("proposed_by"))),
                name="proposal_four_eyes",
            ),
            models.CheckConstraint(
                condition=Q(state="pending", decided_at=None) | (~Q(state="pending") & Q(decided_at__isnull=False)),
                name="proposal_decided_has_time",
            ),
        ]
        indexes = [
            # The desk's queue; few ever wait.
            models.Index(fields=["proposed_at"], condition=Q(state="pending"), name="proposal_pending"),
        ]

    def __str__(self) -> str:
        return f"{ProposalKind(self.kind).label}, {self.contract}"


class ImportFile(models.Model):
    """An operator's record as it was uploaded, and how it is to be read: preview and import read these bytes."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="import_files")
    name = models.CharField(max_length=200, help_text="The file's name where it came from.")
    sha256 = models.CharField(max_length=64)
    content = models.BinaryField()
    options = models.JSONField(help_text="Arguments of guarantee.imports.import_spec.")
    uploaded_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    uploaded_at = models.DateTimeField(default=timezone.now)
    imported_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    imported_at = models.DateTimeField(null=True)
    outcome = models.JSONField(null=True, help_text="Reports created and known, lines rejected and counted.")

    class Meta:
        ordering = ["-uploaded_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(imported_at=None, imported_by=None, outcome=None)
                | Q(imported_at__isnull=False, imported_by__isnull=False, outcome__isnull=False),
                name="import_file_done_by_someone",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class JobState(models.TextChoices):
    WAITING = "waiting", _("Waiting")
    RUNNING = "running", _("Running")
    DONE = "done", _("Done")
    FAILED = "failed", _("Failed")


class AnalyticsJob(models.Model):
    """Analytics of so many incidents that a page cannot wait for them: asked once for the same data, then kept.

    `inputs_sha256` is a hash of the question and of everything that the answer rests on, so a late report makes another
    one, and an answer under the present hash is right.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    inputs_sha256 = models.CharField(max_length=64, unique=True)
    question = models.JSONField(help_text="Fields of analytics.jobs.Question.")
    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.WAITING)
    steps_done = models.PositiveIntegerField(default=0)
    steps = models.PositiveIntegerField(default=1)
    result = models.BinaryField(null=True, help_text="Of a job that is done: see analytics.codec.")
    asked_at = models.DateTimeField(default=timezone.now)
    alive_at = models.DateTimeField(default=timezone.now, help_text="When it last went on.")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state=JobState.DONE, result__isnull=False) | (~Q(state=JobState.DONE) & Q(result=None)),
                name="analytics_job_result_when_done",
            )
        ]
        indexes = [
            # The sweep looks for those that were lost; there are few or none.
            models.Index(
                fields=["alive_at"],
                condition=Q(state__in=["waiting", "running"]),
                name="analytics_job_unfinished",
            )
        ]

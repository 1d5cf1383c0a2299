"""Incidents: the facts of one failure of one workload, projected from its reports. No verdict lives here."""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from yoco.contracts.models import Contract
from yoco.core.ids import uuid7


class Kind(models.TextChoices):
    UNPLANNED = "unplanned", _("Unplanned")
    PREVENTIVE = "preventive", _("Preventive")
    PLANNED = "planned", _("Planned")


class Signal(models.TextChoices):
    PROCESS_EXIT = "process_exit", _("Process exit")
    HEARTBEAT_LOST = "heartbeat_lost", _("Heartbeat lost")
    HANG = "hang", _("Hang")
    XID = "xid", _("GPU error (XID)")
    ECC = "ecc", _("Memory errors (ECC)")
    THERMAL = "thermal", _("Temperature")
    POWER = "power", _("Power")
    LINK = "link", _("Link")
    OPERATOR = "operator", _("Operator")


class Resolution(models.TextChoices):
    LIVE_MIGRATION = "live_migration", _("Live migration")
    PATH_FAILOVER = "path_failover", _("Path failover")
    CHECKPOINT_RESTART = "checkpoint_restart", _("Checkpoint restart")
    ABANDONED = "abandoned", _("Abandoned")


class Origin(models.TextChoices):
    """Where the knowledge of an incident comes from."""

    AGENT = "agent", _("Agent")
    IMPORT = "import", _("Imported")
    SYNTHETIC = "synthetic", _("Synthetic")
    SILENCE = "silence", _("Silence")


class IncidentState(models.TextChoices):
    OPEN = "open", _("Open")
    RESOLVED = "resolved", _("Ended")


class Run(models.Model):
    """One supported workload: a training run as its agent names it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="runs")
    run_id = models.CharField(max_length=200)
    name = models.CharField(max_length=200, blank=True)
    framework = models.CharField(max_length=40, blank=True)
    agent_version = models.CharField(max_length=40, blank=True)
    strategy = models.CharField(max_length=10, blank=True)
    gpus = models.PositiveIntegerField(null=True)
    gpu_model = models.CharField(max_length=80, blank=True)
    gpus_per_node = models.PositiveIntegerField(null=True)
    first_seen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["contract", "run_id"], name="run_id_unique")]

    def __str__(self) -> str:
        return self.name or self.run_id


class RootEvent(models.Model):
    """What actually happened, once, however many ranks, agents and XIDs told of it.

    The id follows from the members, so regrouping can leave a row without any.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="root_events")
    named_id = models.UUIDField(null=True, help_text="`root_event_id` of the reports, where they name one.")
    node = models.CharField(max_length=200, blank=True)
    cause = models.CharField(max_length=40, blank=True, help_text="Signal, or `xid:79`: the root of a cascade.")
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["contract", "named_id"],
                condition=Q(named_id__isnull=False),
                name="root_event_named_once",
            )
        ]
        indexes = [models.Index(fields=["contract", "node", "first_at"], name="root_event_by_node")]


class Incident(models.Model):
    """Facts only. The GPU count is frozen at detection. `revision` grows with every report that changed a fact."""

    id = models.BigAutoField(primary_key=True)
    public_id = models.UUIDField(default=uuid7, editable=False, help_text="`incident_id` of the reports.")
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="incidents", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="incidents")
    root_event = models.ForeignKey(RootEvent, null=True, on_delete=models.PROTECT, related_name="incidents")
    root_event_named = models.UUIDField(null=True, help_text="`root_event_id` of the reports.")
    moved_to = models.UUIDField(
        null=True, editable=False, help_text="Where an account manager moved it: the key of its latest `Regrouping`."
    )
    explained_by = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.PROTECT,
        related_name="explains",
        help_text="Of a silence: the incident whose report came after all.",
    )
    origin = models.CharField(max_length=10, choices=Origin.choices, default=Origin.AGENT)
    state = models.CharField(max_length=10, choices=IncidentState.choices, default=IncidentState.OPEN)
    revision = models.PositiveIntegerField(default=1)

    kind = models.CharField(max_length=10, choices=Kind.choices)
    signal = models.CharField(max_length=20, choices=Signal.choices)
    xid = models.PositiveIntegerField(null=True)
    trigger_detail = models.JSONField(default=dict)
    node = models.CharField(max_length=200, blank=True)
    rank = models.PositiveIntegerField(null=True)
    gpu_uuid = models.CharField(max_length=80, blank=True)
    gpus = models.PositiveIntegerField()
    gpus_per_node = models.PositiveIntegerField(null=True)
    strategy = models.CharField(max_length=10, blank=True)

    started_at = models.DateTimeField()
    detected_at = models.DateTimeField(null=True)
    quiesced_at = models.DateTimeField(null=True)
    spare_ready_at = models.DateTimeField(null=True)
    state_moved_at = models.DateTimeField(null=True)
    state_verified_at = models.DateTimeField(null=True)
    resumed_at = models.DateTimeField(null=True)

    last_committed_step = models.BigIntegerField(null=True)
    first_step_after = models.BigIntegerField(null=True)
    samples_before = models.BigIntegerField(null=True)
    samples_after = models.BigIntegerField(null=True)
    samples_per_step = models.BigIntegerField(null=True)
    checkpoint_loaded = models.BooleanField(null=True)
    last_checkpoint_step = models.BigIntegerField(null=True)
    last_checkpoint_at = models.DateTimeField(null=True)
    step_ms = models.BigIntegerField(null=True, help_text="Duration of one step, milliseconds.")

    state_source = models.CharField(max_length=20, blank=True)
    state_bytes = models.BigIntegerField(null=True)
    digest_algorithm = models.CharField(max_length=40, blank=True)
    digest_sent = models.CharField(max_length=128, blank=True)
    digest_received = models.CharField(max_length=128, blank=True)

    spare_node = models.CharField(max_length=200, blank=True)
    spare_origin = models.CharField(max_length=20, blank=True)
    preempted_gpus = models.PositiveIntegerField(null=True)
    preempted_ms = models.BigIntegerField(null=True, help_text="Time that each pre-empted GPU lost, milliseconds.")
    resolution = models.CharField(max_length=20, choices=Resolution.choices, blank=True)
    attempts = models.JSONField(default=list)

    first_received_at = models.DateTimeField(default=timezone.now)
    last_received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-started_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["contract", "public_id"], name="incident_public_id_unique"),
            models.CheckConstraint(
                condition=Q(resumed_at=None) | Q(resumed_at__gte=F("started_at")),
                name="incident_resumes_after_start",
            ),
        ]
        indexes = [
            # A contract year's incidents, and the customer's list, newest first.
            models.Index(fields=["contract", "-started_at", "-id"], name="incident_by_contract_time"),
            # Grouping looks for those that name the same root event.
            models.Index(
                fields=["contract", "root_event_named"],
                condition=Q(root_event_named__isnull=False),
                name="incident_by_named_root",
            ),
            # Every ingest asks whether a silence is explained; there are few or none.
            models.Index(
                fields=["contract"], condition=Q(origin="silence", state="open"), name="incident_silence_open"
            ),
        ]

    def __str__(self) -> str:
        return str(self.public_id)

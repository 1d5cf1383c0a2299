"""What arrived: raw reports, kept as they came, and how far each agent's sequence is known."""

from django.db import models
from django.utils import timezone

from yoco.accounts.models import AgentKey
from yoco.contracts.models import Contract


class ReportSource(models.TextChoices):
    AGENT = "agent"
    IMPORT = "import"
    SYNTHETIC = "synthetic"


class RawReport(models.Model):
    """One report as received. Append-only. Same id, other content: a second row marked as conflict; neither is lost."""

    id = models.BigAutoField(primary_key=True)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="+", db_index=False)
    key = models.ForeignKey(AgentKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    source = models.CharField(max_length=10, choices=ReportSource.choices, default=ReportSource.AGENT)
    report_id = models.UUIDField()
    content_sha256 = models.CharField(max_length=64)
    conflict = models.BooleanField(default=False, help_text="Another content with this id came first.")
    agent_id = models.CharField(max_length=200)
    boot_id = models.UUIDField()
    seq = models.BigIntegerField()
    type = models.CharField(max_length=32)
    incident_id = models.UUIDField()
    sent_at = models.DateTimeField()
    received_at = models.DateTimeField(default=timezone.now)
    body = models.TextField(help_text="The report's JSON text, every field kept.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["contract", "report_id", "content_sha256"], name="report_content_once"),
            models.UniqueConstraint(
                fields=["contract", "report_id"],
                condition=models.Q(conflict=False),
                name="report_id_first_once",
            ),
        ]
        indexes = [
            # An incident is projected from all its reports.
            models.Index(fields=["contract", "incident_id"], name="report_by_incident"),
            # Which sequence numbers of an agent's boot are known.
            models.Index(fields=["contract", "agent_id", "boot_id", "seq"], name="report_by_sequence"),
        ]


class AgentBoot(models.Model):
    """One start of an agent: the last sequence number it says it issued, and its last heartbeat."""

    id = models.BigAutoField(primary_key=True)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="agent_boots")
    agent_id = models.CharField(max_length=200)
    boot_id = models.UUIDField()
    run_id = models.CharField(max_length=200, blank=True)
    last_seq = models.BigIntegerField(default=0)
    last_step = models.BigIntegerField(null=True, help_text="As the latest heartbeat that named one told.")
    step_at = models.DateTimeField(null=True, help_text="When that heartbeat was written.")
    step_since = models.DateTimeField(null=True, help_text="When a heartbeat first told of that step.")
    first_seen_at = models.DateTimeField(default=timezone.now)
    last_seen_at = models.DateTimeField(default=timezone.now)
    heard_at = models.DateTimeField(
        null=True, help_text="When its last heartbeat came, by the service's clock: the agent's own may be slow."
    )
    run_ended_at = models.DateTimeField(null=True)
    gap_since = models.DateTimeField(null=True, help_text="When the sweep first saw numbers missing.")
    gap_to = models.BigIntegerField(null=True, help_text="The highest number missing then.")
    accounted_seq = models.BigIntegerField(
        default=0, help_text="Up to here every number has arrived or is part of an unaccounted incident."
    )
    silence_noted_at = models.DateTimeField(
        null=True, help_text="`last_seen_at` of a silence that is accounted for: told, or counted as unaccounted."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["contract", "agent_id", "boot_id"], name="agent_boot_unique"),
        ]
        indexes = [
            # The sweep looks for runs that went silent.
            models.Index(
                fields=["last_seen_at"],
                condition=models.Q(run_ended_at=None),
                name="boot_running_by_last_seen",
            ),
            # The sweep looks for numbers that never arrived.
            models.Index(
                fields=["contract"],
                condition=models.Q(last_seq__gt=models.F("accounted_seq")),
                name="boot_with_numbers_open",
            ),
        ]

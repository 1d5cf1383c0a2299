"""Sentences for the stable codes that the rules write down: conditions, reasons, and the facts they looked at."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

Word = str | Promise

CONDITIONS: dict[str, Word] = {
    "live_migration": _("The state came from live memory, not from storage"),
    "no_lost_progress": _("No step was lost"),
    "no_rollback": _("No checkpoint was loaded"),
    "no_recompute": _("No committed step was computed again"),
}

REASONS: dict[str, Word] = {
    "ok_live_source": _("The state left a live worker's memory and arrived unchanged: both digests are the same."),
    "reported_checkpoint_restart": _("The agent itself reported a restart from a checkpoint."),
    "reported_abandoned": _("The agent reported that the migration was abandoned."),
    "reported_path_failover": _("A network path healed; nothing was migrated."),
    "source_missing": _("The report does not say where the state came from."),
    "source_not_live": _("The state came from storage."),
    "no_bytes_moved": _("The report does not show that any state was moved."),
    "digest_missing": _("The digests of the state are missing, so nobody can tell whether it arrived unchanged."),
    "digest_differs": _("The state that arrived differs from the state that left."),
    "phases_missing": _("The time of at least one phase is missing."),
    "phases_out_of_order": _("The phases are reported in an order that cannot be."),
    "ok_next_step": _("Training continued with the very next step."),
    "steps_missing": _("The steps before and after the failure are not both reported."),
    "steps_skipped": _("Training continued beyond the next step: steps were skipped."),
    "steps_lost": _("Training continued at an earlier step: progress was lost."),
    "ok_no_checkpoint": _("No checkpoint was loaded between the failure and the next step."),
    "checkpoint_unknown": _("The report does not say whether a checkpoint was loaded."),
    "checkpoint_loaded": _("A checkpoint was loaded."),
    "ok_same_samples": _("The samples consumed are those of a run without interruption."),
    "steps_run_again": _("Steps that were already committed ran again."),
    "samples_missing": _("The sample positions before and after are not both reported."),
    "samples_differ": _("The samples consumed are not those of a run without interruption."),
}

FACTS: dict[str, Word] = {
    "state_source": _("Source of the state"),
    "state_bytes": _("Bytes moved"),
    "digest_algorithm": _("Digest algorithm"),
    "digest_sent": _("Digest that left"),
    "digest_received": _("Digest that arrived"),
    "missing_phases": _("Phases without a time"),
    "resolution": _("Reported resolution"),
    "last_committed_step": _("Last committed step"),
    "first_step_after": _("First step afterwards"),
    "checkpoint_loaded": _("Checkpoint loaded"),
    "samples_before": _("Samples before"),
    "samples_after": _("Samples afterwards"),
    "samples_per_step": _("Samples per step"),
    "samples_expected": _("Samples expected"),
}

STATE_SOURCES: dict[str, Word] = {
    "replica": _("A healthy replica's memory"),
    "leaving_worker": _("The leaving worker's memory"),
    "redundant_shard": _("A redundant shard in memory"),
    "storage": _("Storage"),
}

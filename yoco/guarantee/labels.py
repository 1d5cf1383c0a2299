"""Translatable sentences for the stable codes of rules, reasons and verdicts."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

CONDITIONS = {
    "live_migration": _("Live migration"),
    "no_lost_progress": _("No lost progress"),
    "no_rollback": _("No rollback"),
    "no_recompute": _("No recompute"),
}

RULES = {
    "without_loss": _("All four conditions are met by evidence."),
    "run_complete": _("Nothing was lost: the run had committed its last step and ended in order after the recovery."),
    "path_healed": _("The network path healed and nothing was lost; these terms count it."),
    "no_live_migration": _("There is no evidence that the state came from a live worker."),
    "lost_progress": _("There is no evidence that training went on at the next step."),
    "rolled_back": _("There is no evidence that no checkpoint was loaded."),
    "recomputed": _("There is no evidence that no step was run again."),
    "relapse": _("The workload restarted from a checkpoint for the same cause soon afterwards."),
    "open_at_close": _("Still open when the year closed."),
    "open_at_close_listed": _("Still open when the year closed; these terms list it without counting it."),
    "dispute_upheld": _("The customer's objection was upheld."),
    "still_open": _("Not over yet."),
    "silent": _("The workload went silent without a report; it counts as not resolved until explained."),
    "silent_listed": _("The workload went silent without a report; these terms list it without counting it."),
    "explained": _("The workload's silence was explained by a report that came later, which is counted instead."),
    "excluded_with_unit": _(
        "It counts once together with an incident that failed and was excluded; the whole leaves the ratio."
    ),
    "excluded_user_error": _("Excluded: user error."),
    "excluded_unsupported_workload": _("Excluded: unsupported workload."),
    "excluded_agent_disabled": _("Excluded: the customer had disabled the agent."),
    "excluded_site_outage": _("Excluded: site-wide power or network loss."),
    "outside_contract": _("It began outside the contract."),
    "outside_guarantee": _("It began while the guarantee was not in force."),
    "kind_not_counted": _("These terms do not count this kind of incident."),
    "trigger_not_evidenced": _("The report does not carry the reading that would evidence its trigger."),
    "path_failover": _("The network path healed without a migration; listed, outside the ratio."),
}

REASONS = {
    "ok_live_source": _("The state came from a live worker and arrived as it left."),
    "ok_next_step": _("The first step committed afterwards is the next one."),
    "ok_run_complete": _("No step was left: the run ended in order at the step that was committed last."),
    "ok_no_checkpoint": _("No checkpoint was loaded."),
    "ok_same_samples": _("The samples consumed are those of an uninterrupted run."),
    "reported_checkpoint_restart": _("The report itself says that the job restarted from a checkpoint."),
    "reported_abandoned": _("The report itself says that the job was abandoned."),
    "reported_path_failover": _("The report says that a network path healed; nothing migrated."),
    "source_missing": _("The source of the state is not reported."),
    "source_not_live": _("The state came from storage, not from a live worker."),
    "no_bytes_moved": _("No amount of moved state is reported."),
    "digest_missing": _("The digests of the state that left and arrived are not both reported."),
    "digest_differs": _("The state that arrived differs from the state that left."),
    "phases_missing": _("The times of some phases are not reported."),
    "phases_out_of_order": _("The times of the phases contradict each other."),
    "steps_missing": _("The steps before and after are not both reported."),
    "steps_lost": _("Training went on at a step that was committed before."),
    "steps_skipped": _("Training went on after a gap in its steps."),
    "steps_run_again": _("Committed steps were run again."),
    "checkpoint_unknown": _("The report does not say whether a checkpoint was loaded."),
    "checkpoint_loaded": _("A checkpoint was loaded."),
    "samples_missing": _("The sample positions before and after are not all reported."),
    "samples_differ": _("The samples consumed are not those of an uninterrupted run."),
}

VERDICT_RULES = {
    "threshold_met": _("the share reaches the threshold"),
    "threshold_missed": _("the share is below the threshold"),
    "empty_year_met": _("no failure was counted, so the commitment is met"),
    "empty_year_no_verdict": _("no failure was counted, and these terms give no verdict then"),
    "partial_year_no_verdict": _("these terms give no verdict for part of a year"),
    "pending_decide": _("pending failures can still change it"),
    "no_guarantee": _("the guarantee does not cover this year"),
}

# What made a restatement necessary; a person who restates gives a reason in words instead.
RESTATED_BECAUSE: dict[str, Promise] = {
    "late_report": _("A report arrived after the year had closed."),
    "silence": _("A workload went silent."),
    "silence_explained": _("A silence was explained."),
    "run_ended": _("A workload told of its end."),
    "exclusion_decided": _("An exclusion was decided."),
    "exclusion_withdrawn": _("An exclusion was withdrawn."),
    "dispute_upheld": _("An objection was upheld."),
    "regrouped": _("Incidents were regrouped."),
    "guarantee_added": _("The guarantee was added to the contract."),
    "contract_ended_early": _("The contract ended early."),
    "rebuilt": _("The incidents were placed anew."),
    "placed_anew": _("The incidents were placed anew."),
}

# Why a snapshot names an incident.
CHANGES = {
    "new": _("Began in this month"),
    "late_report": _("Reported after the snapshot of its month"),
    "dispute_upheld": _("The customer's objection was upheld"),
    "excluded": _("Excluded"),
    "exclusion_withdrawn": _("Its exclusion was withdrawn"),
    "explained": _("Its silence was explained"),
    "decided": _("Decided; it was pending"),
    "regrouped": _("Counted with other incidents than before"),
    "amended": _("A later report amended it"),
    "placed_anew": _("Placed anew"),
    "removed": _("Belongs to another year now"),
}

INTERVALS: dict[str, Promise] = {
    "wilson": _("Wilson"),
    "clopper_pearson": _("Clopper-Pearson"),
    "jeffreys": _("Jeffreys"),
}


VERDICTS_SO_FAR = {
    "met": _("On course: so far the commitment is met."),
    "short": _("Behind: so far the year falls short of the commitment."),
    "no_failures": _("No failure has counted so far. The commitment is met as long as none does."),
    "undecided": _("Undecided: incidents that are still pending can turn the verdict either way."),
}
VERDICTS_FINAL = {
    "met": _("The commitment was met."),
    "short": _("The commitment was not met. A credit is due for this year."),
    "no_failures": _("No failure counted in this year. The commitment was met."),
    "undecided": _("This year closed without a verdict, as its terms provide."),
}


def rule_sentence(rule: str) -> str:
    """What a rule id means, in the reader's language."""
    return str(RULES[rule])


def reason_sentence(reason: str) -> str:
    """What a condition's reason code means, in the reader's language."""
    return str(REASONS[reason])


def restatement_because(reason: str) -> str:
    """Why a statement was restated: the sentences of its codes in the reader's language, or what a person wrote."""
    codes = reason.split(", ")
    if not all(code in RESTATED_BECAUSE for code in codes):
        return reason
    return " ".join(dict.fromkeys(str(RESTATED_BECAUSE[code]) for code in codes))


def verdict_sentence(rule: str) -> str:
    """Why the verdict is what it is, in the reader's language."""
    return str(VERDICT_RULES[rule])


def verdict_words(verdict: str, *, closed: bool) -> str:
    """The verdict as a sentence; only a closed year's is final."""
    return str((VERDICTS_FINAL if closed else VERDICTS_SO_FAR)[verdict])


def change_words(change: str) -> str:
    """Why a snapshot names an incident, in the reader's language."""
    return str(CHANGES[change])

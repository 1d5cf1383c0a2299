"""Words that only the pages need: verdicts as sentences, and names of facts and of waste terms."""

from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from yoco.core.templatetags.formats import number, size
from yoco.incidents.models import Resolution

Word = str | Promise

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
    "run_ended_step": _("Last step when the run ended"),
    "checkpoint_loaded": _("Checkpoint loaded"),
    "samples_before": _("Samples before"),
    "samples_after": _("Samples afterwards"),
    "samples_per_step": _("Samples per step"),
    "samples_expected": _("Samples expected"),
}

PHASE_ENDS: dict[str, Word] = {
    "started_at": _("Start"),
    "detected_at": _("Noticed"),
    "quiesced_at": _("Workers stopped"),
    "spare_ready_at": _("Spare ready"),
    "state_moved_at": _("State moved"),
    "state_verified_at": _("State checked"),
    "resumed_at": _("Resumed"),
}

STATE_SOURCES: dict[str, Word] = {
    "replica": _("A healthy replica's memory"),
    "leaving_worker": _("The leaving worker's memory"),
    "redundant_shard": _("A redundant shard in memory"),
    "storage": _("Storage"),
}

WASTE_TERMS: dict[str, Word] = {
    "detection": _("Noticing the failure"),
    "queue": _("Waiting for a replacement"),
    "restart": _("Restarting the job"),
    "recompute": _("Computing lost steps again"),
    "migration": _("Migration pause"),
    "step_redo": _("Redoing the step in flight"),
    "fail_slow": _("Running slowly before the failure"),
    "preempted": _("Work lost by pre-empted jobs"),
}


def facts_in_order(facts: dict[str, Any]) -> list[tuple[Word, str]]:
    """Facts with their names, in the order of `FACTS`: PostgreSQL keeps no order inside a JSON value."""
    order = list(FACTS)
    names = sorted(facts, key=lambda name: (order.index(name) if name in order else len(order), name))
    return [(FACTS.get(name, name), fact_value(name, facts[name])) for name in names]


def fact_value(name: str, value: object) -> str:
    """A fact as a reader sees it."""
    if value is None or value == "" or value == []:
        return gettext("not reported")
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if name == "state_bytes" and isinstance(value, int):
        return f"{size(value)} ({number(value)} B)"
    if isinstance(value, int):
        return number(value)
    if name == "state_source":
        return str(STATE_SOURCES.get(str(value), value))
    if name == "resolution" and value in Resolution.values:
        return str(Resolution(value).label)
    if isinstance(value, list):
        return ", ".join(str(PHASE_ENDS.get(member, member)) for member in value)
    return str(value)


def share_words(num: int, den: int) -> str:
    """A share of the terms in per cent, or as its fraction where per cent would be rounded."""
    return f"{num * 100 // den} %" if num * 100 % den == 0 else f"{num}/{den}"


def threshold_words(num: int, den: int) -> str:
    """The threshold in per cent, or as the fraction of the terms where per cent would be rounded."""
    if num * 100 % den == 0:
        return gettext("%(percent)s %% required") % {"percent": num * 100 // den}
    return gettext("%(num)s of %(den)s required") % {"num": num, "den": den}

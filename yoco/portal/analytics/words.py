"""Names of the analytics' columns and codes, in the reader's language."""

from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from yoco.incidents.models import Kind, Resolution, Signal
from yoco.portal.graphics import PHASES
from yoco.portal.words import WASTE_TERMS

Word = str | Promise

COLUMNS: dict[str, Word] = {
    "allowed": _("Misses still allowed at the year's end"),
    "allowed_now": _("Misses still allowed"),
    "available_share": _("Available"),
    "basis": _("Basis"),
    "best_interval_hours": _("Best checkpoint interval, hours"),
    "cause": _("Cause"),
    "chance": _("Chance"),
    "change": _("Change"),
    "class": _("Class"),
    "counted": _("Counted"),
    "cumulated_share": _("Share so far"),
    "day_chance": _("Chance of a day without failure"),
    "day_on": _("Day"),
    "estimated": _("Estimated"),
    "failures": _("Failures"),
    "goodput_share": _("Goodput, measured"),
    "gpu_ms": _("GPU-hours"),
    "gpus": _("GPUs"),
    "group": _("Group"),
    "grouping": _("By"),
    "high": _("Upper bound"),
    "high_hours": _("Upper bound, hours"),
    "incident": _("Incident"),
    "incidents": _("Incidents"),
    "input": _("Input"),
    "kind": _("Kind"),
    "line": _("Line"),
    "linear_share": _("ETTR, linear form"),
    "longest_ms": _("Longest"),
    "low": _("Lower bound"),
    "low_hours": _("Lower bound, hours"),
    "money": _("Money"),
    "mttf_hours": _("MTTF, hours"),
    "name": _("Name"),
    "node_hours": _("Node-hours watched"),
    "node_rate": _("Failures per 1,000 node-days"),
    "p50_ms": _("Median"),
    "p95_ms": _("95th percentile"),
    "part": _("Part"),
    "phase": _("Phase"),
    "potential_gpu_ms": _("Prevented, up to"),
    "renewal_share": _("ETTR, renewal form"),
    "resolved": _("Resolved"),
    "run": _("Workload"),
    "saved_estimated_gpu_ms": _("Saved, estimated"),
    "saved_gpu_ms": _("Saved"),
    "saved_money": _("Saved, money"),
    "share": _("Share"),
    "source": _("Source"),
    "started_at": _("Start"),
    "term": _("Term"),
    "to_come": _("Failures to come"),
    "to_come_node_hours": _("Node-hours to come"),
    "until_first_ms": _("Until the first failure"),
    "value_ms": _("Value"),
    "wasted_estimated_gpu_ms": _("Wasted, estimated"),
    "wasted_gpu_ms": _("Wasted"),
    "wasted_measured_gpu_ms": _("Wasted, measured"),
    "wasted_money": _("Wasted, money"),
    "watched_gpu_ms": _("GPU-hours watched"),
    "watched_ms": _("Watched"),
    "week_on": _("Week from"),
    "without_estimated_gpu_ms": _("Without migration, estimated"),
    "without_gpu_ms": _("Without migration"),
    "without_measured_gpu_ms": _("Without migration, measured"),
    "xid": _("XID"),
    "year": _("Year"),
}

CODES: dict[str, dict[str, Word]] = {
    "basis": {
        "measured_here": _("Measured here"),
        "projected_here": _("Projected from your rate"),
        "published": _("Published"),
        "measured": _("Published, measured"),
        "projected": _("Published, projected"),
        "exposure": _("Exposure in node-hours"),
        "days": _("Days"),
    },
    "cause": dict(Signal.choices),
    "change": {"up": _("More from here on"), "down": _("Fewer from here on"), "": ""},
    "class": {
        "productive": _("Productive"),
        "infrastructure_recovery": _("Noticing and replacing"),
        "start_up": _("Restarting"),
        "wasted_progress": _("Progress lost"),
        "migration_pause": _("Migration pause"),
        "step_redo": _("Redoing the step in flight"),
        "fail_slow": _("Running slowly"),
        "checkpoint_save": _("Writing checkpoints"),
        "excess": _("Beyond the watched time"),
    },
    "grouping": {"kind": _("Kind"), "resolution": _("Resolution"), "strategy": _("Strategy")},
    "group": {**dict(Kind.choices), **dict(Resolution.choices), "": _("not reported")},
    "input": {
        "interval": _("Checkpoint interval"),
        "restart": _("Restart"),
        "wait": _("Waiting for a replacement"),
        "write": _("Writing a checkpoint"),
    },
    "kind": dict(Kind.choices),
    "line": {
        "avoided": _("Stall avoided by migration"),
        "pauses": _("Migration pauses"),
        "preempted": _("Work lost by pre-empted jobs"),
        "idle": _("Spare nodes standing idle"),
        "fee": _("Fee of the year"),
        "net": _("Net benefit"),
    },
    "part": {"node": _("Node"), "gpu": _("GPU")},
    "phase": dict(PHASES),
    "term": {**WASTE_TERMS, "unsplit": _("Not split by term")},
}


def code_word(column: str, value: Any) -> str:
    """What a code of a column means; the value itself where it is no code."""
    return str(CODES.get(column, {}).get(value, value))

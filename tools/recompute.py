#!/usr/bin/env python3
"""Recompute a contract year's share and verdict from its export: `recompute.py EXPORT.json`.

For people who trust nobody. Standard library only, one file, and none of the service's code: the rules are written here
a second time, from docs/guarantee.md. Get the export from /api/v1/contract-years/{id}/export.

Exit status 0: the result is what the service claims. 1: it is not. 2: the file cannot be used.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

Json = dict[str, Any]

PHASES = [
    "started_at",
    "detected_at",
    "quiesced_at",
    "spare_ready_at",
    "state_moved_at",
    "state_verified_at",
    "resumed_at",
]
DEFAULT_TERMS = {"unit": "root_event_workload", "relapse_window_minutes": 30}
HEAVIEST_FIRST = ["not_resolved", "unaccounted", "pending", "resolved", "excluded", "not_counted"]


def instant(text: str | None) -> datetime | None:
    """An RFC 3339 time, or None."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def read_incident(row: Json) -> Json:
    """An incident's facts with times parsed, its review beside them."""
    facts = dict(row["facts"])
    for name in PHASES:
        facts[name] = instant(facts[name])
    facts["review"] = row["review"]
    facts["ended_at"] = max(facts[name] for name in PHASES if facts[name])
    facts["cause"] = f"xid:{facts['xid']}" if facts["xid"] is not None else facts["signal"]
    return facts


def read_year(row: Json) -> Json:
    """A contract year with times parsed."""
    times = ("starts_at", "ends_at", "guaranteed_from", "guaranteed_until", "closes_at")
    return {**row, **{name: instant(row[name]) for name in times}}


def year_at(at: datetime, years: list[Json]) -> Json | None:
    """The year that contains an instant; half-open."""
    for year in years:
        if year["starts_at"] <= at < year["ends_at"]:
            return year
    return None


def grouping_terms(at: datetime, years: list[Json]) -> Json:
    """The terms under which an incident of that time is grouped."""
    year = year_at(at, years)
    return year["terms"] if year and year["terms"] else DEFAULT_TERMS


def kind_of(facts: Json) -> str:
    """The kind that the trigger allows: a failure that happened was neither planned nor prevented."""
    if facts["kind"] == "unplanned" or facts["signal"] in ("process_exit", "heartbeat_lost", "hang"):
        return "unplanned"
    if facts["kind"] == "planned" and (facts["xid"] is not None or facts["signal"] == "xid"):
        return "unplanned"
    if facts["kind"] == "planned" and facts["signal"] != "operator":
        return "preventive"
    return str(facts["kind"])


def has_reading(value: Any) -> bool:
    """Whether a number stands anywhere in a trigger's detail."""
    if isinstance(value, dict):
        return any(has_reading(member) for member in value.values())
    if isinstance(value, list):
        return any(has_reading(member) for member in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def trigger_evidenced(facts: Json) -> bool:
    """An XID, or a reading; an operator's word is none."""
    return facts["signal"] != "operator" and (facts["xid"] is not None or has_reading(facts["trigger_detail"]))


def lost_progress(facts: Json) -> bool:
    before, after = facts["last_committed_step"], facts["first_step_after"]
    return before is None or after is None or after != before + 1


def rolled_back(facts: Json) -> bool:
    return facts["checkpoint_loaded"] is not False or facts["state_source"] == "storage"


def recomputed(facts: Json) -> bool:
    before, after = facts["last_committed_step"], facts["first_step_after"]
    first, last, each = facts["samples_before"], facts["samples_after"], facts["samples_per_step"]
    if before is None or after is None or after <= before:
        return True
    if first is None or last is None or not each or each < 0:
        return True
    return bool(last != first + each * (after - before))


def not_migrated(facts: Json) -> bool:
    """Condition 1 fails: the state did not come, proven, from a live worker's memory."""
    if facts["resolution"] in ("checkpoint_restart", "abandoned", "path_failover"):
        return True
    if facts["state_source"] not in ("replica", "leaving_worker", "redundant_shard") or not facts["state_bytes"]:
        return True
    if not (facts["digest_algorithm"] and facts["digest_sent"] and facts["digest_sent"] == facts["digest_received"]):
        return True
    if any(facts[name] is None for name in PHASES):
        return True
    chains = (
        ("started_at", "detected_at", "spare_ready_at", "state_moved_at", "state_verified_at", "resumed_at"),
        ("detected_at", "quiesced_at", "state_verified_at"),
    )
    return any(facts[before] > facts[after] for chain in chains for before, after in pairwise(chain))


CONDITIONS = [
    (not_migrated, "no_live_migration"),
    (lost_progress, "lost_progress"),
    (rolled_back, "rolled_back"),
    (recomputed, "recomputed"),
]


def path_healed(facts: Json) -> bool:
    """A network path healed, no state moved and nothing was lost."""
    moved = ("state_source", "state_bytes", "digest_algorithm", "digest_sent", "digest_received")
    if facts["resolution"] != "path_failover" or facts["signal"] != "link" or any(facts[name] for name in moved):
        return False
    return not (lost_progress(facts) or rolled_back(facts) or recomputed(facts))


def same_place(a: Json, b: Json) -> bool:
    """The same node or logical rank; two incidents without any are taken as one place."""
    if a["node"] and a["node"] == b["node"]:
        return True
    if a["rank"] is not None and a["rank"] == b["rank"]:
        return True
    return not a["node"] and not b["node"] and a["rank"] is None and b["rank"] is None


def fails_again(earlier: Json, later: Json, terms: Json) -> bool:
    """The same workload fails for the same cause within the relapse window."""
    return (
        earlier["run"] == later["run"]
        and (earlier["started_at"], earlier["id"]) < (later["started_at"], later["id"])
        and "planned" not in (kind_of(earlier), kind_of(later))
        and later["started_at"] - earlier["ended_at"] <= timedelta(minutes=terms["relapse_window_minutes"])
        and earlier["cause"] == later["cause"]
        and same_place(earlier, later)
    )


def group(incidents: Iterable[Json], years: list[Json]) -> list[list[Json]]:
    """The incidents that count once, by repeatedly merging every pair that belongs together."""
    incidents = sorted(incidents, key=lambda f: (f["started_at"], f["id"]))
    label = list(range(len(incidents)))
    by_run: dict[str, list[int]] = {}
    first: dict[tuple[str, str | None], int] = {}

    def merge(i: int, j: int) -> None:
        old, new = label[i], label[j]
        if old != new:
            label[:] = [new if value == old else value for value in label]

    for i, facts in enumerate(incidents):
        event = facts["root_event"]
        if event is not None:
            anchor = first.setdefault((event, facts["run"]), i)
            if grouping_terms(incidents[anchor]["started_at"], years)["unit"] != "incident":
                merge(i, anchor)
            anchor = first.setdefault((event, None), i)
            if grouping_terms(incidents[anchor]["started_at"], years)["unit"] == "root_event":
                merge(i, anchor)
        for j in by_run.setdefault(facts["run"], []):
            if fails_again(incidents[j], facts, grouping_terms(incidents[j]["started_at"], years)):
                merge(i, j)
        by_run[facts["run"]].append(i)
    units: dict[int, list[Json]] = {}
    for i, facts in enumerate(incidents):
        units.setdefault(label[i], []).append(facts)
    return list(units.values())


def place(facts: Json, unit: list[Json], year: Json | None) -> tuple[str, str]:
    """Outcome and rule of one incident; the first rule that applies decides."""
    review = facts["review"]
    if year is None:
        return "not_counted", "outside_contract"
    terms, start, end = year["terms"], year["guaranteed_from"], year["guaranteed_until"]
    if terms is None or start is None or not start <= unit[0]["started_at"] < end:
        return "not_counted", "outside_guarantee"
    if review["dispute_upheld"]:
        return "not_resolved", "dispute_upheld"
    if review["excluded_for"] in terms["exclusions"]:
        return "excluded", "excluded_" + review["excluded_for"]
    if facts["explained"]:
        return "not_counted", "explained"
    counted = terms["counted_" + kind_of(facts)]
    if counted == "never":
        return "not_counted", "kind_not_counted"
    if path_healed(facts) and not terms["path_failover_counted"]:
        return "not_counted", "path_failover"
    if facts["origin"] == "silence" and facts["open"]:
        return "unaccounted", "silent" if terms["unaccounted"] == "not_resolved" else "silent_listed"
    if counted == "evidenced" and not trigger_evidenced(facts):
        return "not_counted", "trigger_not_evidenced"
    if facts["open"] or (facts["resumed_at"] is not None and facts["resumed_at"] >= year["closes_at"]):
        if not year["closed"]:
            return "pending", "still_open"
        if terms["open_incident_cutoff"] == "listed":
            return "not_counted", "open_at_close_listed"
        return "not_resolved", "open_at_close"
    healed = path_healed(facts)
    for fails, rule in CONDITIONS:
        if not healed and fails(facts):
            return "not_resolved", rule
    for later in unit:
        restarted = later["checkpoint_loaded"] is True or later["resolution"] == "checkpoint_restart"
        excluded = later["review"]["excluded_for"] in terms["exclusions"]
        if restarted and not excluded and fails_again(facts, later, terms):
            return "not_resolved", "relapse"
    return "resolved", "path_healed" if healed else "without_loss"


def recompute(export: Json) -> tuple[Json, dict[str, tuple[str, str]]]:
    """The figures of the exported year, and where each incident stands."""
    years = [read_year(row) for row in export["years"]]
    incidents = {row["facts"]["id"]: read_incident(row) for row in export["incidents"]}
    year = next(row for row in years if row["id"] == export["year"])
    counts = dict.fromkeys(HEAVIEST_FIRST, 0)
    placed: dict[str, tuple[str, str]] = {}
    for unit in group(incidents.values(), years):
        of = year_at(unit[0]["started_at"], years)
        outcomes = []
        for facts in unit:
            outcome, rule = place(facts, unit, of)
            placed[facts["id"]] = (outcome, rule)
            outcomes.append(outcome)
        if of is not None and of["id"] == year["id"]:
            counts[min(outcomes, key=HEAVIEST_FIRST.index)] += 1
    terms = year["terms"]
    k, pending = counts["resolved"], counts["pending"]
    n = k + counts["not_resolved"]
    if terms is None or terms["unaccounted"] == "not_resolved":
        n += counts["unaccounted"]
    return {"counted": n, "resolved": k, "verdict": verdict(n, k, pending, year), **counts}, placed


def verdict(n: int, k: int, pending: int, year: Json) -> str:
    """In integers; pending failures leave it open only if they can still change it."""
    terms = year["terms"]
    if terms is None or year["guaranteed_from"] is None:
        return "undecided"
    if year["partial"] and terms["partial_year"] == "no_verdict":
        return "undecided"
    if n + pending == 0:
        return "undecided" if terms["empty_year"] == "no_verdict" else "no_failures"
    needed = (n + pending) * terms["threshold_num"]
    worst, best = k * terms["threshold_den"] >= needed, (k + pending) * terms["threshold_den"] >= needed
    if worst != best:
        return "undecided"
    return "met" if best else "short"


def differences(export: Json) -> Iterator[str]:
    """What the service claims otherwise than this recomputation."""
    result, placed = recompute(export)
    for name, value in export["claimed"].items():
        if name in result and result[name] != value:
            yield f"{name}: the service says {value}, recomputed {result[name]}"
    for row in export["incidents"]:
        claim, ours = row["placed"], placed[row["facts"]["id"]]
        if claim is not None and (claim["outcome"], claim["rule"]) != ours:
            said = f"{claim['outcome']} ({claim['rule']})"
            yield f"incident {row['facts']['id']}: the service says {said}, recomputed {ours[0]} ({ours[1]})"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(arguments[0], encoding="utf-8") as file:
            export = json.load(file)
        if export["format"] != "yoco.export/1":
            raise ValueError(f"format {export['format']} is not yoco.export/1")
        result, _placed = recompute(export)
        found = list(differences(export))
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        print(f"{arguments[0]} cannot be used as an export: {error!r}", file=sys.stderr)
        return 2
    n, k = result["counted"], result["resolved"]
    share = f"{k * 10_000 // n // 100}.{k * 10_000 // n % 100:02d} %" if n else "no failures"
    print(f"{k} of {n} resolved without loss ({share}); verdict: {result['verdict']}")
    print("; ".join(f"{name} {result[name]}" for name in ("pending", "unaccounted", "excluded", "not_counted")))
    for line in found:
        print(f"DIFFERS  {line}")
    print("The service's claim differs." if found else "The service claims the same.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

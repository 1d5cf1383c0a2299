#!/usr/bin/env python3
"""Recompute a contract year's share and verdict from its export: `recompute.py EXPORT.json`.

For people who trust nobody. Standard library only, one file, and none of the service's code: the rules are written here
a second time, from docs/guarantee.md. Get the export from /api/v1/contract-years/{id}/export.

Compared are the service's figures of today, where it placed every incident, and the frozen statement of a closed year:
its hash, its own sums, and its figures and placings.

Exit status 0: the result is what the service claims. 1: it is not. 2: the file cannot be used. 3: the service says the
same of today's facts, but some arrived after the statement was frozen: a restatement is due.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

Json = dict[str, Any]

PHASES = [
    *("started_at", "detected_at", "quiesced_at", "spare_ready_at"),
    *("state_moved_at", "state_verified_at", "resumed_at"),
]
FORMAT = "yoco.export/2"
KINDS = ("unplanned", "preventive", "planned")
LISTED = ("pending", "unaccounted", "excluded", "not_counted")
DEFAULT_TERMS = {"unit": "root_event_workload", "relapse_window_minutes": 30, "threshold_num": 90, "threshold_den": 100}
HEAVIEST_FIRST = ["not_resolved", "unaccounted", "pending", "resolved", "excluded", "not_counted"]


def instant(text: str | None) -> datetime | None:
    """An RFC 3339 time, or None."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def read_incident(row: Json) -> Json:
    """An incident's facts with times parsed, its review beside them."""
    facts = dict(row["facts"])
    for name in PHASES:
        facts[name] = instant(facts[name])
    facts["run_ended_at"] = instant(facts["run_ended_at"])
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


# XIDs that tell of a fault of the device or foretell one; the second set only where the line says fatal.
FORETELLING_XIDS = {
    *(39, 40, 41, 46, 48, 54, 62, 63, 64, 70, 71, 72, 74, 75, 76, 77, 79, 85, 92, 94, 95, 110, 140, 143),
    *(*range(119, 124), *range(126, 137), 156, 157, 158, 160, 161, 164, 165, 167, 168, 169),
}
FATAL_XIDS = set(range(144, 151))
FATAL = re.compile(r"(?<!non)(?<!non-)(?<!non )\bfatal\b", re.IGNORECASE)


def number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def positive(value: Any) -> bool:
    """A number above zero, here or further inside."""
    if isinstance(value, (dict, list)):
        return any(positive(member) for member in (value.values() if isinstance(value, dict) else value))
    return number(value) and bool(value > 0)


def reading_shown(signal: str, detail: Json) -> bool:
    """The trigger's detail holds the reading that belongs to the signal."""
    found: Json = {}
    for part in (detail.get("thresholds"), detail, detail.get("readings")):
        found.update(part if isinstance(part, dict) else {})
    said = found.get("slowdown_reasons")
    reasons = {reason for reason in said if isinstance(reason, str)} if isinstance(said, list) else set()
    if signal == "ecc":
        counters = ("ecc_volatile_corrected", "ecc_volatile_uncorrected", "new_errors_by_third_of_window")
        remap = (found.get("row_remap_pending"), found.get("row_remap_failed"))
        return any(positive(found.get(name)) for name in counters) or any(state is True for state in remap)
    if signal == "thermal":
        limits = [value for value in (found.get("hot_from"), found.get("slowdown_temperature")) if number(value)]
        if not number(found.get("temperature")):
            return False
        hot = bool(limits) and found["temperature"] >= limits[0]
        return hot or bool(reasons & {"hw_thermal_slowdown", "sw_thermal_slowdown"})
    if signal == "power":
        return "hw_power_brake" in reasons
    if signal == "link":
        down = found.get("links_down")
        switch = number(found.get("sxid")) and fatal(found)
        return (
            switch or positive(found.get("new_errors_by_link")) or (isinstance(down, list) and any(map(number, down)))
        )
    return signal == "xid" and found.get("nvml") == "GPU is lost"


def fatal(detail: Json) -> bool:
    return isinstance(detail.get("text"), str) and FATAL.search(detail["text"]) is not None


def trigger_evidenced(facts: Json) -> bool:
    """The reading that belongs to the signal, or an XID that foretells a failure. One that happened needs neither."""
    xid, detail = facts["xid"], facts["trigger_detail"]
    if facts["signal"] == "operator":
        return False
    happened = xid is not None or facts["signal"] in ("process_exit", "heartbeat_lost", "hang")
    if kind_of(facts) == "unplanned" and happened:
        return True
    foretold = xid in FORETELLING_XIDS or (xid in FATAL_XIDS and fatal(detail))
    return foretold or reading_shown(facts["signal"], detail)


def run_complete(facts: Json) -> bool:
    """No step was left: the run ended in order after the recovery, at the step committed last before the failure."""
    ended, step = facts["run_ended_at"], facts["last_committed_step"]
    if facts["first_step_after"] is not None or step is None or facts["resumed_at"] is None or ended is None:
        return False
    return bool(ended >= facts["resumed_at"] and facts["run_ended_step"] == step)


def lost_progress(facts: Json) -> bool:
    before, after = facts["last_committed_step"], facts["first_step_after"]
    if run_complete(facts):
        return False
    return before is None or after is None or after != before + 1


def rolled_back(facts: Json) -> bool:
    return facts["checkpoint_loaded"] is not False or facts["state_source"] == "storage"


def recomputed(facts: Json) -> bool:
    before, after = facts["last_committed_step"], facts["first_step_after"]
    first, last, each = facts["samples_before"], facts["samples_after"], facts["samples_per_step"]
    if run_complete(facts):
        return first is None or first != last
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
    if terms is None or start is None:
        return "not_counted", "outside_guarantee"
    if review["dispute_upheld"]:
        return "not_resolved", "dispute_upheld"
    if not start <= unit[0]["started_at"] < end:
        return "not_counted", "outside_guarantee"
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
    if healed:
        return "resolved", "path_healed"
    return "resolved", "run_complete" if run_complete(facts) else "without_loss"


def place_unit(unit: list[Json], year: Json | None) -> list[tuple[str, str]]:
    """Every member's place. Excluding a member never makes its unit resolved: then the whole unit is excluded."""
    placed = [place(facts, unit, year) for facts in unit]
    without = [{**facts, "review": {**facts["review"], "excluded_for": None}} for facts in unit]
    if heaviest(placed) == "resolved" and heaviest([place(facts, without, year) for facts in without]) != "resolved":
        return [
            ("excluded", "excluded_with_unit") if outcome == "resolved" else (outcome, rule) for outcome, rule in placed
        ]
    return placed


def heaviest(placed: list[tuple[str, str]]) -> str:
    return min((outcome for outcome, _rule in placed), key=HEAVIEST_FIRST.index)


def recompute(export: Json) -> tuple[Json, dict[str, Json]]:
    """The exported year's figures and each incident's place, under the names of the service's report and placings."""
    years = [read_year(row) for row in export["years"]]
    incidents = {row["facts"]["id"]: read_incident(row) for row in export["incidents"]}
    year = exported_year(export)
    counts = dict.fromkeys(HEAVIEST_FIRST, 0)
    kinds = {kind: dict.fromkeys(("counted", "resolved", "listed"), 0) for kind in KINDS}
    placed: dict[str, Json] = {}
    terms = year["terms"] or {**DEFAULT_TERMS, "unaccounted": "not_resolved"}
    ratio = in_ratio(terms)
    for unit in group(incidents.values(), years):
        of = year_at(unit[0]["started_at"], years)
        places = place_unit(unit, of)
        outcome = heaviest(places)
        lead = next(facts for facts, (each, _rule) in zip(unit, places, strict=True) if each == outcome)
        key = f"{unit[0]['id']}:{unit[0]['run']}"
        for facts, (each, rule) in zip(unit, places, strict=True):
            placed[facts["id"]] = {
                **{"year": of and of["id"], "unit": key, "lead": facts is lead},
                **{"kind": kind_of(facts), "outcome": each, "rule": rule},
            }
        if of is not None and of["id"] == year["id"]:
            counts[outcome] += 1
            kind = kinds[kind_of(lead)]
            kind["counted"] += outcome in ratio
            kind["resolved"] += outcome == "resolved"
            kind["listed"] += outcome not in ratio and outcome != "pending"
    n, k, sums = figures(counts, terms, year)
    return {
        **sums,
        "failures_still_allowed": n * (terms["threshold_den"] - terms["threshold_num"]) // terms["threshold_den"]
        - (n - k),
        "threshold": {"num": terms["threshold_num"], "den": terms["threshold_den"]},
        "unit": terms["unit"],
        "by_kind": {
            name: {**kind, "share_floor": share(kind["counted"], kind["resolved"])} for name, kind in kinds.items()
        },
    }, placed


def in_ratio(terms: Json) -> set[str]:
    return {"resolved", "not_resolved"} | ({"unaccounted"} if terms["unaccounted"] == "not_resolved" else set())


def figures(counts: dict[str, int], terms: Json, year: Json) -> tuple[int, int, Json]:
    """Counted, resolved, and the figures that follow from how many failures have each outcome."""
    n, k = sum(counts[outcome] for outcome in in_ratio(terms)), counts["resolved"]
    listed = {name: counts[name] for name in LISTED}
    sums = {"counted": n, "resolved": k, "share_floor": share(n, k), **listed}
    return n, k, {**sums, "verdict": verdict(n, k, counts["pending"], year)}


def exported_year(export: Json) -> Json:
    return next(read_year(row) for row in export["years"] if row["id"] == export["year"])


def share(n: int, k: int) -> str | None:
    """In per cent, floored to two decimals."""
    return f"{k * 10_000 // n // 100}.{k * 10_000 // n % 100:02d}" if n else None


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


def differences(export: Json, result: Json, placed: dict[str, Json]) -> Iterator[str]:
    """What the service claims of today's facts otherwise than this recomputation, and where its statement contradicts
    itself or, without a word that a restatement is due, the facts."""
    yield from figures_differ("", export["claimed"], result)
    for row in export["incidents"]:
        ours = placed[row["facts"]["id"]]
        if row["placed"] is not None:
            yield from placing_differs("", row["facts"]["id"], row["placed"], ours)
    if export["statement"] is not None:
        yield from statement_faults(export["statement"])
        if not export["statement"]["restatement_due"]:
            yield from statement_differs(export, result, placed)
        return
    year = exported_year(export)
    if year["closed"] and year["terms"] and year["guaranteed_from"]:
        yield "statement: the year is closed and has none"


def outdated(export: Json, result: Json, placed: dict[str, Json]) -> Iterator[str]:
    """What the frozen statement says otherwise than today's facts, where the service itself says that it is to be
    restated."""
    statement = export["statement"]
    if statement is not None and statement["restatement_due"] and not list(statement_faults(statement)):
        yield "the service says that facts arrived after the statement"
        yield from statement_differs(export, result, placed)


def figures_differ(where: str, claimed: Json, result: Json) -> Iterator[str]:
    for name, value in result.items():
        said = claimed.get(name)
        if name == "by_kind" and isinstance(said, dict):
            said = {
                kind: {field: row.get(field) for field in value[kind]} for kind, row in said.items() if kind in value
            }
        if said != value:
            yield f"{where}{name}: the service says {said}, recomputed {value}"


def placing_differs(where: str, incident: str, claimed: Json, ours: Json) -> Iterator[str]:
    said, got = (f"{place.get('outcome')} ({place.get('rule')})" for place in (claimed, ours))
    pairs = [
        (said, got),
        *((f"{name} {claimed.get(name)}", f"{name} {ours[name]}") for name in ("unit", "lead", "kind")),
    ]
    for theirs, mine in pairs:
        if theirs != mine:
            yield f"{where}incident {incident}: the service says {theirs}, recomputed {mine}"


def statement_faults(statement: Json) -> Iterator[str]:
    """The statement's hash is that of its text, and its own incidents add up to its own figures and verdict."""
    text = statement["canonical"]
    if hashlib.sha256(text.encode()).hexdigest() != statement["sha256"]:
        yield "statement: its sha256 is not that of its text"
    content = json.loads(text)
    report, terms, leads = content["report"], content["terms"], [row for row in content["incidents"] if row["lead"]]
    counts = {outcome: sum(row["outcome"] == outcome for row in leads) for outcome in HEAVIEST_FIRST}
    year = {"terms": terms, "guaranteed_from": report["year"]["guaranteed_from"], "partial": report["year"]["partial"]}
    for name, value in figures(counts, terms, year)[2].items():
        if report[name] != value:
            yield f"statement: {name}: it says {report[name]}, its own incidents give {value}"


def statement_differs(export: Json, result: Json, placed: dict[str, Json]) -> Iterator[str]:
    """Where the frozen statement differs from today's facts: its figures, and each of its incidents."""
    content = json.loads(export["statement"]["canonical"])
    yield from figures_differ("statement: ", content["report"], result)
    year = exported_year(export)
    for name, value in (year["terms"] or {}).items():
        if content["terms"].get(name) != value:
            yield f"statement: terms: {name} is {content['terms'].get(name)}, exported {value}"
    rows = {row["id"]: row for row in content["incidents"]}
    exported = {incident for incident, place in placed.items() if place["year"] == year["id"]}
    for incident in sorted(rows.keys() ^ exported):
        where = "stands in the statement alone" if incident in rows else "does not stand in the statement"
        yield f"statement: incident {incident} {where}"
    for incident in sorted(rows.keys() & exported):
        yield from placing_differs("statement: ", incident, rows[incident], placed[incident])


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(arguments[0], encoding="utf-8") as file:
            export = json.load(file)
        if export["format"] != FORMAT:
            raise ValueError(f"format {export['format']} is not {FORMAT}")
        result, placed = recompute(export)
        found, due = list(differences(export, result, placed)), list(outdated(export, result, placed))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        print(f"{arguments[0]} cannot be used as an export: {error!r}", file=sys.stderr)
        return 2
    n, k = result["counted"], result["resolved"]
    percent = f"{result['share_floor']} %" if n else "no failures"
    print(f"{k} of {n} resolved without loss ({percent}); verdict: {result['verdict']}")
    print("; ".join(f"{name} {result[name]}" for name in LISTED))
    if statement := export["statement"]:
        print(f"statement: revision {statement['revision']}, sha256 {statement['sha256']}")
    for line in found:
        print(f"DIFFERS  {line}")
    for line in due:
        print(f"RESTATEMENT DUE  {line}")
    if found:
        print("The service's claim differs.")
        return 1
    if due:
        print("The service claims the same of today's facts; its frozen statement is older, and a restatement is due.")
        return 3
    print("The service claims the same.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

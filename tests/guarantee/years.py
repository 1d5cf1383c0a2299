"""Contract years invented from a seed or by hypothesis: close together in time, so that incidents meet each other."""

import dataclasses
import datetime
import random
from typing import Any

from tests.guarantee.facts import END, START, evidence, number, restart
from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.rules import Review, Terms, Year

NOTHING: dict[str, Any] = {"state_source": "", "resolution": ""}
NO_STATE = {
    "state_source": "",
    "state_bytes": None,
    **dict.fromkeys(["digest_algorithm", "digest_sent", "digest_received"], ""),
}


DETAILS: list[dict[str, Any]] = [
    {},
    {"celsius": 94, "word": "hot", "ok": True},
    {"readings": {"temperature": 94, "slowdown_temperature": 90}, "thresholds": {"hot_from": 88}},
    {"readings": {"temperature": 60, "slowdown_temperature": 90, "slowdown_reasons": []}},
    {"temperature": 70, "slowdown_reasons": ["sw_thermal_slowdown", "hw_power_brake"]},
    {"readings": {"ecc_volatile_uncorrected": [0, 3]}},
    {"readings": {"ecc_volatile_corrected": 0, "row_remap_failed": True}},
    {"readings": {"ecc_aggregate_corrected": 7, "row_remap_pending": False}},
    {"readings": {"links_down": [0]}},
    {"readings": {"new_errors_by_link": {"3": {"crc": 5000}}}, "text": "Non-fatal"},
    {"rule": "sxid", "sxid": 20034, "text": "Fatal, Link 28 LTSSM"},
    {"readings": {"nvml": "GPU is lost"}},
]


def _last_step(rng: random.Random, told: dict[str, Any]) -> dict[str, Any]:
    """A failure after the last step; mostly the run's end proves it, sometimes not."""
    ended = {
        "run_ended_at": told["started_at"] + datetime.timedelta(hours=rng.choice([1, 1, 1, -1])),
        "run_ended_step": 1200,
    }
    changed = {"samples_after": told["samples_before"]} if rng.random() < 0.9 else {}
    return {"first_step_after": None, **changed, **rng.choice([ended, ended, {**ended, "run_ended_step": 1300}, {}])}


def terms(rng: random.Random) -> Terms:
    """Terms with every field that decides drawn from the values that it lists."""
    return Terms(
        threshold_num=rng.choice([90, 90, 60, 30, 10, 100]),
        counted_unplanned=rng.choice(["always", "always", "evidenced", "never"]),
        counted_preventive=rng.choice(["evidenced", "always", "never"]),
        counted_planned=rng.choice(["never", "never", "always"]),
        path_failover_counted=rng.random() < 0.3,
        unit=rng.choice(["root_event_workload", "root_event", "incident"]),
        relapse_window_minutes=rng.choice([0, 30, 30, 240]),
        unaccounted=rng.choice(["not_resolved", "listed"]),
        open_incident_cutoff=rng.choice(["not_resolved", "listed"]),
        empty_year=rng.choice(["met", "no_verdict"]),
        partial_year=rng.choice(["own_verdict", "no_verdict"]),
        exclusions=tuple(rng.sample(["user_error", "unsupported_workload", "agent_disabled", "site_outage"], 3)),
    )


def two_years(rng: random.Random) -> list[Year]:
    """The generated year and the next, each under its own terms."""
    partial = rng.random() < 0.2
    first = Year(
        id="year-1",
        starts_at=START,
        ends_at=END,
        guaranteed_from=START + datetime.timedelta(days=100) if partial else START,
        guaranteed_until=END,
        closes_at=END + datetime.timedelta(days=30),
        terms=terms(rng),
        partial=partial,
        closed=rng.random() < 0.5,
    )
    end = END + datetime.timedelta(days=366)
    second = Year(
        id="year-2",
        starts_at=END,
        ends_at=end,
        guaranteed_from=END,
        guaranteed_until=end,
        closes_at=end + datetime.timedelta(days=30),
        terms=terms(rng),
    )
    return [first, second]


def incidents(rng: random.Random, count: int) -> list[IncidentFacts]:
    """So many incidents, most of them in clusters of minutes, some before, after and across the year's boundaries."""
    anchors = [START + (END - START) * rng.random() for _ in range(max(1, count // 4))]
    anchors += [START, END - datetime.timedelta(minutes=5), END]
    found = [_incident(rng, n, rng.choice(anchors)) for n in range(count)]
    return found + [_again(rng, one) for one in found if rng.random() < 0.07]


def _again(rng: random.Random, one: IncidentFacts) -> IncidentFacts:
    """The same failure at the same place soon after: now the job restarts from a checkpoint."""
    later = one.ended_at + datetime.timedelta(minutes=rng.choice([1, 20, 31]))
    return dataclasses.replace(
        one, id=number(rng.randrange(10**6)), root_event=None, **{**NO_STATE, **_blank(restart(later))}
    )


def _blank(told: dict[str, Any]) -> dict[str, Any]:
    return {**dict.fromkeys(["quiesced_at", "state_moved_at", "state_verified_at"]), **told}


def _incident(rng: random.Random, n: int, anchor: datetime.datetime) -> IncidentFacts:
    started = anchor + datetime.timedelta(seconds=rng.choice([0, 30, 61, 600, 1800, 1801, 7200, -300]))
    told = rng.choice([evidence, evidence, evidence, restart])(started)
    for name in rng.sample(list(evidence(started)), rng.choice([0, 0, 0, 1, 2])):
        if name != "started_at":
            told[name] = NOTHING.get(name, "" if name.startswith("digest") else None)
    told |= rng.choice(
        [
            {},
            {},
            {},
            {"checkpoint_loaded": True},
            {"digest_received": "cd" * 16},
            {"first_step_after": 1200},
            {"samples_after": 0},
            {"resolution": "path_failover"},
            {"resolution": "path_failover", "signal": "link", "xid": None, **NO_STATE},
            {"resolution": "abandoned", "resumed_at": None},
            {"open": True, "resumed_at": None, "resolution": ""},
            {"origin": "silence", "open": True, **dict.fromkeys(["resumed_at", "state_moved_at"])},
            {"origin": "silence", "explained": True},
            {"resumed_at": END + datetime.timedelta(days=31)},
            _last_step(rng, told),
        ]
    )
    signal = rng.choice(["xid", "process_exit", "ecc", "thermal", "operator", "link"])
    return IncidentFacts(
        **{
            "id": number(rng.randrange(10**6)),
            "run": f"run-{rng.randrange(3)}",
            "root_event": rng.choice([None, f"event-{n}", f"event-{rng.randrange(max(1, n // 2 + 1))}"]),
            "kind": rng.choice(["unplanned", "unplanned", "preventive", "planned"]),
            "signal": signal,
            "xid": rng.choice([79, 79, 79, 79, 94, 94, 13, 109, 145, 31337])
            if signal == "xid" or rng.random() < 0.3
            else None,
            "trigger_detail": rng.choice(DETAILS),
            "node": rng.choice(["", "node-1", "node-2"]),
            "rank": rng.choice([None, 0, 1]),
            **told,
        }
    )


def reviews(rng: random.Random, facts: list[IncidentFacts]) -> dict[str, Review]:
    """Exclusions and upheld disputes of some incidents."""
    reasons = ["user_error", "unsupported_workload", "agent_disabled", "site_outage"]
    return {
        one.id: rng.choice([Review(excluded_for=rng.choice(reasons)), Review(dispute_upheld=True)])
        for one in facts
        if rng.random() < (0.25 if one.resolution == "checkpoint_restart" else 0.08)
    }

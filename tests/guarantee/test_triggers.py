"""A preventive move counts only with a trigger that a reading of its signal, or a known XID, evidences."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.health.policy import HealthPolicy, HealthRules
from agent.health.verdict import GpuReading, HealthVerdict, XidEvent
from agent.health.xids import triage_table
from tests.guarantee.facts import at, facts, failed, placed
from yoco.guarantee.evidence import trigger_evidenced
from yoco.guarantee.rules import Terms


def test_preventive_without_evidence_is_listed_and_not_counted() -> None:
    bare = facts(at(1), kind="preventive", signal="ecc", xid=None)
    assert placed(bare) == ("not_counted", "trigger_not_evidenced")
    measured = facts(
        at(1),
        kind="preventive",
        signal="ecc",
        xid=None,
        trigger_detail={"readings": {"ecc_volatile_uncorrected": [0, 1]}},
    )
    assert placed(measured) == ("resolved", "without_loss")


HOT = {"temperature": 94, "slowdown_temperature": 90}


@pytest.mark.parametrize(
    ("signal", "detail", "evidenced"),
    [
        ("thermal", {}, False),
        ("thermal", {"hot": True}, False),
        ("thermal", {"celsius": 94}, False),
        ("thermal", {"pid": 4711, "notice_seconds": 60}, False),
        ("thermal", {"temperature": 94}, False),
        ("thermal", {"temperature": True, "slowdown_temperature": 1}, False),
        ("thermal", {"temperature": "94", "slowdown_temperature": 90}, False),
        ("thermal", HOT, True),
        ("thermal", {"readings": HOT}, True),
        ("thermal", {"readings": {**HOT, "temperature": 88}}, False),
        ("thermal", {"readings": {**HOT, "temperature": 88}, "thresholds": {"hot_from": 88}}, True),
        ("thermal", {"temperature": 70, "slowdown_reasons": ["sw_thermal_slowdown"]}, True),
        ("thermal", {"temperature": 70, "slowdown_reasons": ["hw_power_brake"]}, False),
        ("power", {"slowdown_reasons": ["hw_power_brake"]}, True),
        ("power", {"power": 700, "power_limit": 700}, False),
        ("power", HOT, False),
        ("ecc", HOT, False),
        ("ecc", {"ecc_volatile_corrected": 0}, False),
        ("ecc", {"ecc_volatile_corrected": 12}, True),
        ("ecc", {"ecc_aggregate_corrected": 12}, False),
        ("ecc", {"new_errors_by_third_of_window": [0, 9, 80]}, True),
        ("ecc", {"row_remap_failed": False, "row_remap_pending": True}, True),
        ("ecc", {"row_remap_failed": "no"}, False),
        ("link", {"links_down": [0]}, True),
        ("link", {"links_down": []}, False),
        ("link", {"new_errors_by_link": {"2": {"recovery": 3}}}, True),
        ("link", {"new_errors_by_link": {"2": {"recovery": 0}}}, False),
        ("link", {"sxid": 20034, "text": "Fatal, Link 28"}, True),
        ("link", {"sxid": 12028, "text": "Non-fatal, Link 28"}, False),
        ("xid", {"readings": {"nvml": "GPU is lost"}}, True),
        ("xid", {"source": "kernel_log", "pci": "0000:3b:00"}, False),
    ],
)
def test_a_preventive_trigger_is_evidenced_by_the_reading_of_its_signal(
    signal: str, detail: dict[str, Any], evidenced: bool
) -> None:
    one = facts(at(1), kind="preventive", signal=signal, xid=None, trigger_detail=detail)
    assert trigger_evidenced(one) is evidenced
    assert placed(one) == (("resolved", "without_loss") if evidenced else ("not_counted", "trigger_not_evidenced"))


@pytest.mark.parametrize(
    ("xid", "detail", "evidenced"),
    [
        (63, {}, True),
        (79, {}, True),
        (95, {}, True),
        (13, {}, False),
        (45, {}, False),
        (109, {}, False),
        (154, {}, False),
        (31337, {}, False),
        (145, {"text": "Fatal, NVLink 3"}, True),
        (145, {"text": "Non-fatal, NVLink 3"}, False),
        (145, {}, False),
    ],
)
def test_a_preventive_xid_is_evidence_where_the_triage_table_says_so(
    xid: int, detail: dict[str, Any], evidenced: bool
) -> None:
    assert trigger_evidenced(facts(at(1), kind="preventive", signal="xid", xid=xid, trigger_detail=detail)) is evidenced


@pytest.mark.parametrize("signal", ["process_exit", "heartbeat_lost", "hang"])
def test_a_failure_that_has_happened_needs_no_reading(signal: str) -> None:
    one = failed(at(1), signal=signal, xid=None, trigger_detail={})
    assert placed(one, Terms(counted_unplanned="evidenced")) == ("not_resolved", "no_live_migration")
    assert placed(failed(at(1), xid=31337), Terms(counted_unplanned="evidenced"))[0] == "not_resolved"


def test_an_operators_word_evidences_nothing() -> None:
    one = facts(at(1), kind="preventive", signal="operator", xid=None, trigger_detail=HOT)
    assert placed(one) == ("not_counted", "trigger_not_evidenced")


NOW = datetime(2026, 12, 1, tzinfo=UTC)


def watched(*readings: dict[str, Any], every: float = 30.0) -> list[HealthVerdict]:
    """What the agent concludes from these readings of one GPU."""
    rules = HealthRules(HealthPolicy())
    found: list[HealthVerdict] = []
    for n, values in enumerate(readings):
        seconds = n * every
        found += rules.reading_judge(GpuReading("GPU-1", NOW + timedelta(seconds=seconds), seconds, **values))
    return found


def ramp() -> list[dict[str, Any]]:
    total, values = 0, []
    for n in range(200):
        total += n // 4
        values.append({"ecc_volatile_corrected": total})
    return values


@pytest.mark.parametrize(
    ("rule", "readings"),
    [
        ("gpu_lost", [{"lost": True}]),
        ("ecc_uncorrected", [{"ecc_volatile_uncorrected": 0}, {"ecc_volatile_uncorrected": 1}]),
        ("row_remap_failed", [{"row_remap_failed": True, "row_remap_pending": False}]),
        ("ecc_ramp", ramp()),
        ("thermal_held", [{"temperature": 90, "slowdown_temperature": 92}] * 4),
        ("thermal_held", [{"temperature": 89}] * 4),
        ("thermal_held", [{"temperature": 70, "slowdown_reasons": ("hw_thermal_slowdown",)}] * 4),
        ("power_brake_held", [{"slowdown_reasons": ("hw_power_brake",), "power": 690.0, "power_limit": 700.0}] * 4),
        ("link_down", [{"links_up": {0: True, 1: True}}, {"links_up": {0: False, 1: True}}]),
        ("link_errors", [{"link_errors": {0: {"recovery": 0}}}, {"link_errors": {0: {"recovery": 5}}}]),
    ],
)
def test_what_the_agent_reports_of_a_gpu_that_it_leaves_is_evidence(rule: str, readings: list[dict[str, Any]]) -> None:
    asked = [verdict for verdict in watched(*readings) if verdict.advice == "migrate"]
    assert [verdict.detail["rule"] for verdict in asked] == [rule]
    detail = json.loads(json.dumps({"severity": asked[0].severity, **asked[0].detail}))
    one = facts(at(1), kind="preventive", signal=asked[0].signal, xid=asked[0].xid, trigger_detail=detail)
    assert placed(one) == ("resolved", "without_loss")


@pytest.mark.parametrize("code", [*sorted(triage_table()), 20034])
def test_of_the_xids_that_the_agent_leaves_for_only_those_without_a_fault_of_their_own_are_no_evidence(
    code: int,
) -> None:
    """109, 151 and 155 count only with other evidence; 154 announces what must be done about another XID."""
    text = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)" if code == 154 else "Fatal, link 3"
    event = XidEvent(code, NOW, 0.0, "kernel_log", gpu_uuid="GPU-1", text=text, switch=code > 999)
    (verdict,) = HealthRules(HealthPolicy()).xid_judge(event)
    if verdict.advice != "migrate":
        return
    detail = json.loads(json.dumps(dict(verdict.detail)))
    one = facts(at(1), kind="preventive", signal=verdict.signal, xid=verdict.xid, trigger_detail=detail)
    assert trigger_evidenced(one) is (code not in (109, 151, 154, 155))

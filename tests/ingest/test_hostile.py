"""What a broken or hostile sender may put into a report: each is refused with its path, and nothing ends in a 500."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ingest.conftest import AgentClient
from tests.ingest.reports import after, detected, report
from yoco.incidents.models import Incident, RawReport

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"id": "not-a-uuid"}, "$.id"),
        ({"id": None}, "$.id"),
        ({"seq": 0}, "$.seq"),
        ({"seq": 2**63}, "$.seq"),
        ({"seq": 10**40}, "$.seq"),
        ({"seq": 1.5}, "$.seq"),
        ({"seq": True}, "$.seq"),
        ({"type": "incident.invented"}, "$.type"),
        ({"agent_id": ""}, "$.agent_id"),
        ({"agent_id": "x" * 201}, "$.agent_id"),
        ({"sent_at": "2026-11-02T09:00:00"}, "$.sent_at"),
        ({"sent_at": "9999-12-31T23:59:59-14:00"}, "$.sent_at"),
        ({"sent_at": "2026-11-02T09:15:06Z"}, "$.sent_at"),
        ({"sent_at": "0001-01-01T00:00:00+14:00"}, "$.sent_at"),
        ({"sent_at": 1_790_000_000}, "$.sent_at"),
        ({"phases__resumed_at": "2027-01-01T00:00:00Z"}, "$.phases.resumed_at"),
        ({"phases__detected_at": after(-6)}, "$.phases.detected_at"),
        ({"phases__resumed_at": after(99)}, "$.phases.resumed_at"),
        ({"phases__state_moved_at": after(29)}, "$.phases.state_moved_at"),
        ({"progress__last_checkpoint_at": "2126-01-01T00:00:00Z"}, "$.progress.last_checkpoint_at"),
        ({"progress__first_step_after": 1199}, "$.progress.first_step_after"),
        ({"progress__samples_after": 10}, "$.progress.samples_after"),
        ({"progress__last_committed_step": 2**63}, "$.progress.last_committed_step"),
        ({"progress__last_committed_step": -1}, "$.progress.last_committed_step"),
        ({"progress__step_seconds": 1e300}, "$.progress.step_seconds"),
        ({"workload__gpus": 1_000_000_000}, "$.workload.gpus"),
        ({"workload__gpus": 0}, "$.workload.gpus"),
        ({"workload__run_id": ""}, "$.workload.run_id"),
        ({"workload": None}, "$.workload"),
        ({"where__rank": 2**31}, "$.where.rank"),
        ({"trigger__xid": -79}, "$.trigger.xid"),
        ({"trigger__detail": [1]}, "$.trigger.detail"),
        ({"trigger__detail": {"text": "a\0b"}}, "$.trigger.detail.text"),
        ({"where__node": "no\0de"}, "$.where.node"),
        ({"state__bytes": 2**64}, "$.state.bytes"),
        ({"state__digest_sent": "f" * 129}, "$.state.digest_sent"),
        ({"attempts": [{"at": after(5), "outcome": 7}]}, "$.attempts[0].outcome"),
        (
            {"attempts": [{"at": after(5), "outcome": "ok"}, {"at": "2030-01-01T00:00:00Z", "outcome": "ok"}]},
            "$.attempts[1].at",
        ),
        ({"phases__started_at": "2026-11-01T09:00:00Z"}, "$.phases.started_at"),
        ({"phases": {"started_at": "2026-11-01T09:00:00Z"}}, "$.phases.started_at"),
        ({"schema_version": "latest"}, "$.schema_version"),
        ({"schema_version": 1}, "$.schema_version"),
        ({"root_event_id": "x"}, "$.root_event_id"),
        ({"colour": "x" * 300_000}, "$"),
    ],
)
def test_it_is_invalid_with_its_path(agent: AgentClient, changes: dict[str, Any], path: str) -> None:
    response = agent.post("reports", [report(**changes)], compress=True)
    assert response.status_code == 422, response.content
    (result,) = response.json()["results"]
    assert (result["status"], result["path"]) == ("invalid", path)
    assert result["reason"].endswith(".")
    assert not RawReport.objects.exists()


def test_losing_steps_to_a_checkpoint_is_a_fact_and_no_error(agent: AgentClient) -> None:
    body = report(
        progress__first_step_after=1001,
        progress__samples_after=64064,
        progress__checkpoint_loaded=True,
        resolution="checkpoint_restart",
    )
    assert agent.statuses(body) == ["created"]


def test_precopy_moves_state_before_training_pauses(agent: AgentClient) -> None:
    body = report(
        kind="planned", phases__spare_ready_at=after(1), phases__state_moved_at=after(2), phases__quiesced_at=after(50)
    )
    assert agent.statuses(body) == ["created"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", '"\\ud800"', '"\\udc00 half"', '{"\\ud800": 1}'])
@pytest.mark.parametrize("place", ["trigger__detail", "where__node"])
def test_text_that_is_no_json_spoils_one_report_only(agent: AgentClient, value: str, place: str) -> None:
    marked = {"trigger__detail": {"inner": "@"}, "where__node": "@"}[place]
    bad = json.dumps(report(**{place: marked})).replace('"@"', value)
    body = f"[{bad}, {json.dumps(report())}]".encode()
    response = agent.post("reports", body, raw=True)
    assert response.status_code == 200, response.content
    first, second = response.json()["results"]
    assert (first["status"], second["status"]) == ("invalid", "created")
    assert first["path"].startswith("$.trigger.detail" if place == "trigger__detail" else "$.where.node")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1,",
        b"\xff\xfe",
        b'"text"',
        b"7",
        b"null",
        b"[]",
        DEEP.encode(),
        b'{"a":' * 50_000,
        b"1e999",
        b"NaN",
    ],
    ids=["empty", "open", "comma", "latin", "text", "number", "null", "none", "deep", "deep-object", "overflow", "nan"],
)
@pytest.mark.parametrize("door", ["reports", "heartbeats"])
def test_what_is_no_report_at_all_is_422(agent: AgentClient, body: bytes, door: str) -> None:
    response = agent.post(door, body, raw=True)
    assert response.status_code == 422, response.content
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["detail"].endswith(".")


@pytest.mark.parametrize("depth", [62, 500])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_what_is_nested_deeply_is_refused_before_anything_fails_on_it(
    agent: AgentClient, depth: int, brackets: str
) -> None:
    """Deep enough for an encoder or a page to fail on, not deep enough for the parser."""
    opening = "[" if brackets == "[]" else '{"a":'
    nested = opening * depth + ("" if brackets == "[]" else "1") + brackets[1] * depth
    deep, sound = report(), report(seq=2)
    deep["trigger"]["detail"] = {"nested": "HERE"}
    body = json.dumps([deep, sound]).replace('"HERE"', nested).encode()
    refused, taken = agent.post("reports", body, raw=True).json()["results"]
    assert (refused["status"], taken["status"]) == ("invalid", "created")
    assert refused["path"].startswith("$.trigger.detail.nested")
    just = body.replace(nested.encode(), (opening * 30 + "1" + brackets[1] * 30).encode())
    assert [one["status"] for one in agent.post("reports", just, raw=True).json()["results"]] == [
        "created",
        "duplicate",
    ]


def test_a_list_of_other_things_is_answered_item_by_item(agent: AgentClient) -> None:
    response = agent.post("reports", [1, None, "x", [], {}, report()])
    assert [result["status"] for result in response.json()["results"]] == ["invalid"] * 5 + ["created"]


def test_limits_before_and_after_inflation(agent: AgentClient) -> None:
    big = report(colour="x" * 250_000)
    assert agent.post("reports", [big] * 5).status_code == 413
    assert agent.post("reports", [big] * 5, compress=True).status_code == 200
    bomb = gzip.compress(b"[" + b" " * 50_000_000 + b"]")
    assert len(bomb) < 100_000
    response = agent.post("reports", bomb, raw=True, **{"Content-Encoding": "gzip"})
    assert response.status_code == 413
    assert "10 MiB" in response.json()["detail"]
    assert agent.post("reports", [report()] * 501, compress=True).status_code == 413


def test_broken_encodings_say_so(agent: AgentClient) -> None:
    whole = gzip.compress(json.dumps(report()).encode())
    gzipped = {"Content-Encoding": "gzip"}
    assert agent.post("reports", b"not gzip", raw=True, **gzipped).status_code == 400
    assert agent.post("reports", whole[:-9], raw=True, **gzipped).status_code == 400
    assert agent.post("reports", whole + b"more", raw=True, **gzipped).status_code == 400
    assert agent.post("reports", whole, raw=True, **{"Content-Encoding": "br"}).status_code == 415
    assert not RawReport.objects.exists()


def test_reports_that_contradict_each_other_still_make_one_sound_incident(agent: AgentClient) -> None:
    first = detected(phases={"started_at": after(100)}, sent_at=after(101))
    second = report(incident_id=first["incident_id"], seq=2, phases={"resumed_at": after(50)})
    assert agent.statuses(first, second) == ["created", "created"]
    incident = Incident.objects.get()
    assert incident.resumed_at is not None
    assert incident.started_at == incident.resumed_at


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted(report())


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=3))
def test_any_value_in_any_field_is_answered(agent: AgentClient, changes: dict[str, Any]) -> None:
    response = agent.post("reports", [{**report(), **changes}])
    assert response.status_code in (200, 422), response.content
    (result,) = response.json()["results"]
    if result["status"] == "invalid":
        assert result["path"].startswith("$")

"""Mutated reports and heartbeats: whatever comes, the answer is quick, small and in the API's own words.

FUZZ_ROUNDS and FUZZ_SEED make it longer or other; a failure names seed and round, which repeat it.
"""

import copy
import gzip
import json
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from tests.ingest.conftest import AgentClient, agent, now  # noqa: F401  (fixtures)
from tests.ingest.reports import detected, heartbeat, report

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "500"))
SEED = int(os.environ.get("FUZZ_SEED", "20261201"))
ANSWERS = {200, 400, 411, 413, 415, 422}
MEBIBYTE = 1024 * 1024
# Text, numbers and shapes that parsers, databases and pages have failed on.
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**300, 0.1, -0.0, 1e308, 5e-324,
    "", " ", "\0", "\ud800", "\U0010ffff", "‮", "ß" * 300, "x" * 5000, "-", "null", "NaN", "<script>", "=1+1", "'", '"',
    "%s%n", "{{7*7}}", "../../etc/passwd", "2026-11-02", "2026-11-02T09:00:05Z", "2026-02-30T00:00:00Z",
    "0000-00-00T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2026-11-02T09:00:60Z", "2026-11-02T09:00:05+99:99",
    "00000000-0000-0000-0000-000000000000", "urn:uuid:00000000-0000-0000-0000-000000000000",
    [], {}, [[]], [None] * 50, {"": ""}, {"a": {"a": {"a": []}}}, [{}] * 20,
]  # fmt: skip
# Bytes that mean something to JSON.
TOKENS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\ud800", b"\0", b"\xff", b"\xc0\x80", b"\xef\xbb\xbf",
    b"1e999", b"-", b"0123", b"NaN", b"Infinity", b"//", b"/*", b"'", b"\n", b"\x1f", b'"id":1,', b"9" * 400,
]  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


def with_other_shape(chance: random.Random, body: Any) -> Any:
    """One change that leaves it JSON."""
    found = places(body)
    if not found:
        return chance.choice(VALUES)
    container, key = chance.choice(found)
    match chance.randrange(7):
        case 0 if isinstance(container, dict):
            del container[key]
        case 1:
            container[key] = copy.deepcopy(chance.choice(VALUES))
        case 2:
            other, name = chance.choice(found)
            container[key] = copy.deepcopy(other[name])
        case 3:
            container[key] = [container[key]] * chance.randrange(4)
        case 4 if isinstance(container, dict):
            container[str(chance.choice(VALUES))] = container[key]
        case 5 if isinstance(container[key], str):
            text = container[key]
            cut = chance.randrange(len(text) + 1)
            container[key] = text[:cut] + str(chance.choice(VALUES)) + text[cut:]
        case _ if isinstance(container[key], int):
            container[key] = container[key] * chance.choice([-1, 0, 2, 10**6, 10**18]) + chance.choice([-1, 0, 1])
        case _:
            for _ in range(chance.choice([3, 40, 90])):
                container[key] = {"deeper": container[key]} if chance.random() < 0.5 else [container[key]]
    return body


def with_other_bytes(chance: random.Random, body: bytes) -> bytes:
    at, until = sorted(chance.randrange(len(body) + 1) for _ in range(2))
    match chance.randrange(5):
        case 0:
            return body[:at]
        case 1:
            return body[:at] + chance.choice(TOKENS) + body[at:]
        case 2:
            return body[:at] + body[min(until, at + 40) :]
        case 3:
            return body[:at] + body[at : at + 60] * 2 + body[at + 60 :]
        case _:
            return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]


def fuzzed(chance: random.Random, run: str) -> tuple[str, bytes, dict[str, str]]:
    """A door, a body about this workload, and its headers."""
    door = chance.choice(["reports", "reports", "reports", "heartbeats"])
    body: Any = heartbeat(run_id=run) if door == "heartbeats" else chance.choice([report, detected])()
    if door == "reports":
        body["workload"]["run_id"] = run
        if chance.random() < 0.5:
            body = [body, *(report(seq=number, workload__run_id=run) for number in range(2, chance.randrange(2, 6)))]
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        body = with_other_shape(chance, body)
    content = json.dumps(body, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    for _ in range(chance.choice([0, 0, 1, 1, 4])):
        content = with_other_bytes(chance, content)
    headers = {}
    if chance.random() < 0.3:
        content = gzip.compress(content)
        headers["Content-Encoding"] = chance.choice(["gzip", "gzip", "gzip", "GZIP ", "gzip, gzip", "identity"])
        if chance.random() < 0.2:
            content = with_other_bytes(chance, content)
    return door, content, headers


def words(door: str, answer: Any) -> None:
    """A refusal is problem+json, says a sentence, and where in the body it lies if it lies in a report."""
    assert answer.status_code in ANSWERS, answer.content[:500]
    told = answer.json()
    if answer.status_code != 200:
        assert answer["Content-Type"] == "application/problem+json"
        assert told["status"] == answer.status_code
        assert told["detail"].strip().endswith((".", "…", "”")), told["detail"]
    for result in told.get("results", []):
        assert result["status"] in ("created", "duplicate", "conflict", "invalid")
        if result["status"] == "invalid":
            assert result["path"].startswith("$"), result
            assert result["reason"].endswith("."), result
    if door == "heartbeats" and answer.status_code == 422:
        assert all(path.startswith("$") for path in told.get("errors", {"$": ""}))


def test_whatever_is_sent_is_answered_in_the_apis_own_words(agent: AgentClient) -> None:  # noqa: F811
    statuses: dict[int, int] = {}
    slowest = 0.0
    for number in range(ROUNDS):
        chance = random.Random(f"{SEED}:{number}")
        door, content, headers = fuzzed(chance, f"run-{number}")
        began = time.perf_counter()
        answer = agent.post(door, content, raw=True, **headers)
        slowest = max(slowest, time.perf_counter() - began)
        try:
            words(door, answer)
        except (AssertionError, KeyError, ValueError) as error:
            raise AssertionError(f"FUZZ_SEED={SEED} round {number}, {door}: {content[:2000]!r}") from error
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
    # The mutations reach the doors' inside as well as their outside.
    assert statuses[200] > ROUNDS / 10, statuses
    assert statuses[422] > ROUNDS / 10, statuses
    assert slowest < 10, f"{slowest:.1f} s for one small request"


def many(item: bytes, total: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening + b",".join([item] * (total // (len(item) + 1))) + closing


def inside_detail(value: bytes) -> bytes:
    return json.dumps(report(trigger__detail={"x": "HERE"})).encode().replace(b'"HERE"', value)


HEAVY: dict[str, Callable[[], bytes]] = {
    "digits": lambda: b"9" * (10 * MEBIBYTE - 10),
    "digits in a field": lambda: inside_detail(b"9" * 900_000),
    "decimals": lambda: b"0." + b"1" * (10 * MEBIBYTE - 10),
    "exponent": lambda: b"1e" + b"9" * 1_000_000,
    "brackets": lambda: b"[" * (10 * MEBIBYTE - 10),
    "objects": lambda: b'{"a":' * (2 * MEBIBYTE - 10),
    "empty lists": lambda: many(b"[]", 10 * MEBIBYTE - 100),
    "empty objects": lambda: many(b"{}", 10 * MEBIBYTE - 100),
    "nulls": lambda: many(b"null", 10 * MEBIBYTE - 100),
    "escapes": lambda: b'"' + b"\\u0041" * (10 * MEBIBYTE // 6 - 10) + b'"',
    "quotes": lambda: b'"\\' * (5 * MEBIBYTE - 10),
    "one long string": lambda: inside_detail(b'"' + b"x" * 9_000_000 + b'"'),
    "many keys": lambda: inside_detail(
        b"{" + b",".join(b'"%d":0' % number for number in range(100_000)) + b"}",
    ),
    "the same key": lambda: many(b'"id":1', 10 * MEBIBYTE - 100, b"{", b"}"),
    "spaces": lambda: b" " * (10 * MEBIBYTE - 10),
    "500 large reports": lambda: json.dumps(
        [
            report(seq=number + 1, trigger__detail={"x": "y" * 15_000}, workload__run_id=f"run-{number}")
            for number in range(500)
        ]
    ).encode(),
    "as many values as there may be": lambda: many(b"{}", 1_500_000 - 100),
}


@pytest.mark.parametrize("heavy", HEAVY)
def test_the_largest_bodies_cost_little(agent: AgentClient, heavy: str) -> None:  # noqa: F811
    """10 MiB inflated is the limit: no shape of it takes a multiple of that in memory, or long."""
    content = gzip.compress(HEAVY[heavy](), compresslevel=1)
    assert len(content) <= MEBIBYTE
    began = time.perf_counter()
    answer = agent.post("reports", content, raw=True, **{"Content-Encoding": "gzip"})
    took = time.perf_counter() - began
    words("reports", answer)
    tracemalloc.start()
    try:
        agent.post("reports", content, raw=True, **{"Content-Encoding": "gzip"})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert took < 10, f"{took:.1f} s"
    assert peak < 64 * MEBIBYTE, f"{peak / MEBIBYTE:.0f} MiB"

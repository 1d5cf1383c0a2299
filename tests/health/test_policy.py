"""The rules alone, over long stretches of simulated time."""

import math
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.health.policy import HealthPolicy, HealthRules
from agent.health.verdict import GpuReading, XidEvent

START = datetime(2026, 11, 30, tzinfo=UTC)
POLL_S = 10.0


def readings(values, **constant):
    """One reading each ten seconds, with the corrected errors given."""
    for number, value in enumerate(values):
        seconds = number * POLL_S
        at = START + timedelta(seconds=seconds)
        yield GpuReading("GPU-1", at, seconds, ecc_volatile_corrected=value, **constant)


def verdicts(series, policy=None):
    rules = HealthRules(policy or HealthPolicy())
    return [verdict for reading in series for verdict in rules.reading_judge(reading)]


def totals(steps):
    total = 1000
    for step in steps:
        total += step
        yield total


def poisson(chance, rate):
    limit, count, product = math.exp(-rate), 0, chance.random()
    while product > limit:
        count, product = count + 1, product * chance.random()
    return count


def steady(chance, hours, *, rate, burst):
    """Errors at a steady rate that come in bursts."""
    return [poisson(chance, rate) * chance.randint(1, burst) for _ in range(int(hours * 360))]


@pytest.mark.parametrize("rate", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("burst", [1, 20, 400])
def test_a_steady_rate_asks_for_nothing_however_noisy(rate, burst):
    asked = [
        seed for seed in range(5) if verdicts(readings(totals(steady(random.Random(seed), 6, rate=rate, burst=burst))))
    ]
    assert asked == []


def test_a_steady_rate_that_begins_or_ends_asks_for_nothing():
    quiet, chance = [0] * 180, random.Random(1)
    steps = [*quiet, *steady(chance, 2, rate=5, burst=3), *quiet]
    assert verdicts(readings(totals(steps))) == []


@pytest.mark.parametrize("seed", range(12))
def test_a_rising_rate_asks_once_within_forty_minutes(seed):
    chance = random.Random(seed)
    steps = [poisson(chance, min(60.0, 0.5 * 2 ** (number / 45))) for number in range(300)]
    found = verdicts(readings(totals(steps)))
    assert [(verdict.signal, verdict.advice) for verdict in found] == [("ecc", "migrate")]
    (verdict,) = found
    assert verdict.at - START <= timedelta(minutes=40)
    first, middle, last = verdict.detail["readings"]["new_errors_by_third_of_window"]
    assert first <= middle <= last
    assert verdict.detail["thresholds"] == {"ecc_ramp_least": 50, "ecc_ramp_sigmas": 4.0}


def test_counters_that_begin_anew_with_the_driver_are_no_evidence():
    series = [*totals([5] * 100), *totals([-1000, *[0] * 100])]
    assert verdicts(readings(series, ecc_volatile_uncorrected=0)) == []


@given(st.lists(st.integers(60, 100), min_size=1, max_size=300))
@settings(max_examples=60)
def test_heat_asks_at_most_once_between_two_coolings(temperatures):
    policy = HealthPolicy()
    rules = HealthRules(policy)
    asked, cool_seconds = 0, 0.0
    for number, temperature in enumerate(temperatures):
        seconds = number * POLL_S
        reading = GpuReading("GPU-1", START, seconds, temperature=temperature, slowdown_temperature=90)
        cool_seconds = cool_seconds + POLL_S if temperature <= 80 else 0.0
        if cool_seconds > policy.clear_s:
            asked = 0
        asked += len(rules.reading_judge(reading))
        assert asked <= 1


@given(st.lists(st.sampled_from([60, 95]), min_size=10, max_size=60))
def test_heat_asks_only_when_it_has_held(temperatures):
    rules, held = HealthRules(HealthPolicy()), 0
    for number, temperature in enumerate(temperatures):
        held = held + 1 if temperature == 95 else 0
        reading = GpuReading("GPU-1", START, number * POLL_S, temperature=temperature, slowdown_temperature=90)
        if rules.reading_judge(reading):
            assert (held - 1) * POLL_S >= 60.0


def xid(code, seconds=0.0, text=None, uuid="GPU-1", switch=False):
    at = START + timedelta(seconds=seconds)
    return XidEvent(code, at, seconds, "kernel_log", uuid, "0000:3b:00", text, switch)


@pytest.mark.parametrize(
    ("code", "text", "advice"),
    [
        (79, None, "migrate"),
        (13, "Graphics Exception", "watch"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 09", "watch"),
        (145, "RLW_RXPIPE Non-fatal XC0 i0 Link 09", "watch"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08", "migrate"),
        (149, None, "watch"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "migrate"),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "watch"),
        (12345, None, "watch"),
    ],
)
def test_an_xid_is_judged_by_table_and_words(code, text, advice):
    (verdict,) = HealthRules(HealthPolicy()).xid_judge(xid(code, text=text))
    assert (verdict.advice, verdict.xid, verdict.signal) == (advice, code, "xid")
    assert verdict.trigger().xid == code


def test_the_same_xid_in_a_storm_is_told_once_a_storm():
    rules = HealthRules(HealthPolicy())
    storm = [len(rules.xid_judge(xid(31, seconds))) for seconds in (0, 1, 30, 80, 135, 300)]
    assert storm == [1, 0, 0, 0, 0, 1]
    assert len(rules.xid_judge(xid(31, 301, uuid="GPU-2"))) == 1
    assert len(rules.xid_judge(xid(48, 301))) == 1

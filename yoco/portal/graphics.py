"""Geometry of the pages' drawings, in percent of their width, so that an SVG needs neither script nor style."""

import datetime
from dataclasses import dataclass
from fractions import Fraction

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


def percent_text(share: Fraction) -> str:
    """A percentage for SVG, floored to three decimals, so that a share below the mark is never drawn on it."""
    thousandths = share.numerator * 100_000 // share.denominator
    return f"{thousandths // 1000}.{thousandths % 1000:03d}%"


@dataclass(frozen=True, slots=True)
class Gauge:
    """A bar from 0 to 100 per cent: `share` is k of n, `mark` the threshold, `low` to `high` what pending incidents can
    still make of the share (None where nothing is pending)."""

    share: str
    mark: str
    low: str | None
    high: str | None


def gauge(*, resolved: int, counted: int, pending: int, threshold_num: int, threshold_den: int) -> Gauge:
    """The gauge of a year; an empty one is not filled."""
    with_pending = counted + pending
    return Gauge(
        share=percent_text(Fraction(resolved, counted)) if counted else "0%",
        mark=percent_text(Fraction(threshold_num, threshold_den)),
        low=percent_text(Fraction(resolved, with_pending)) if pending else None,
        high=percent_text(Fraction(resolved + pending, with_pending)) if pending else None,
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """One span between two recorded instants of an incident. `x` and `width` are percent of the whole."""

    number: int
    name: str | Promise
    starts_at: datetime.datetime
    ends_at: datetime.datetime
    milliseconds: int
    x: str
    width: str


# From the instant before to this one. A span is named by what ends it.
PHASES: list[tuple[str, str | Promise]] = [
    ("detected_at", _("Noticing the failure")),
    ("quiesced_at", _("Stopping the surviving workers")),
    ("spare_ready_at", _("Getting the spare ready")),
    ("state_moved_at", _("Moving the state")),
    ("state_verified_at", _("Checking the state")),
    ("resumed_at", _("Resuming training")),
]


def phases(instants: dict[str, datetime.datetime | None]) -> list[Phase]:
    """The spans between the instants that were recorded, in order of time.

    `instants` has `started_at` and the names in PHASES. An instant that is missing, or lies before the one in
    front of it (agents prepare a spare while workers still stop), draws no span of its own.
    """
    start = instants.get("started_at")
    if start is None:
        return []
    spans: list[tuple[int, str | Promise, datetime.datetime, datetime.datetime]] = []
    previous = start
    for number, (field, name) in enumerate(PHASES, start=1):
        at = instants.get(field)
        if at is None or at < previous:
            continue
        spans.append((number, name, previous, at))
        previous = at
    whole = previous - start
    if not whole:
        return []
    return [
        Phase(
            number=number,
            name=name,
            starts_at=begin,
            ends_at=end,
            milliseconds=(end - begin) // datetime.timedelta(milliseconds=1),
            x=percent_text(_ratio(begin - start, whole)),
            width=percent_text(_ratio(end - begin, whole)),
        )
        for number, name, begin, end in spans
    ]


def _ratio(part: datetime.timedelta, whole: datetime.timedelta) -> Fraction:
    microsecond = datetime.timedelta(microseconds=1)
    return Fraction(part // microsecond, whole // microsecond)

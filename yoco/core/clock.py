"""Local midnights, where a contract year begins and ends, and spans of time."""

import datetime
from zoneinfo import ZoneInfo

FIRST_DAY, LAST_DAY = datetime.date(1970, 1, 1), datetime.date(2999, 12, 31)
"""Days that a reader may ask for: from none of them does a time zone lead out of the calendar."""


def local_midnight(day: datetime.date, time_zone: str) -> datetime.datetime:
    """The first instant of `day` in an IANA zone, in UTC.

    Where a clock change skips midnight (Beirut, Havana, Santiago), the day begins at the first instant that exists;
    where midnight comes twice, at the first of the two.
    """
    zone = ZoneInfo(time_zone)
    naive = datetime.datetime.combine(day, datetime.time(), tzinfo=zone)
    instant = naive.astimezone(datetime.UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == naive.replace(tzinfo=None):
        return instant
    # A skipped midnight: the change itself is the first instant of the day. Both offsets name it: before and after.
    before, after = (naive.replace(fold=fold).utcoffset() for fold in (0, 1))
    assert before is not None
    assert after is not None
    low = (naive.replace(tzinfo=None) - max(before, after)).replace(tzinfo=datetime.UTC)
    high = (naive.replace(tzinfo=None) - min(before, after)).replace(tzinfo=datetime.UTC)
    while high - low > datetime.timedelta(seconds=1):
        middle = low + (high - low) // 2
        if middle.astimezone(zone).date() >= day:
            high = middle
        else:
            low = middle
    return high.replace(microsecond=0)


def milliseconds_between(start: datetime.datetime | None, end: datetime.datetime | None) -> int | None:
    """Whole milliseconds from start to end; None where either was not recorded."""
    return None if start is None or end is None else (end - start) // datetime.timedelta(milliseconds=1)

"""Numbers, money and times as people of the active language and zone write them. Used by every page and document."""

import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

from babel.dates import format_date, format_datetime
from babel.numbers import format_decimal
from django import template
from django.utils import timezone, translation
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from yoco.core.money import Money

register = template.Library()

# A language says how people read; for dates and numbers a region must be chosen. These write the day before the month.
REGIONS = {"en": "en_GB", "es": "es_ES"}
NOT_RECORDED = "\N{EN DASH}"


def reader_locale() -> str:
    """The Babel locale of the active language."""
    return REGIONS.get((translation.get_language() or "en")[:2], "en_GB")


@register.filter
def number(value: int | Decimal | None, digits: int = 0) -> str:
    """A number with the locale's separators and exactly `digits` decimals."""
    if value is None:
        return NOT_RECORDED
    pattern = "#,##0" + ("." + "0" * digits if digits else "")
    return format_decimal(value, format=pattern, locale=reader_locale())


@register.simple_tag
def money(minor: int | None, currency: str) -> str:
    """An amount in minor units, written out in its currency."""
    return NOT_RECORDED if minor is None else Money(minor, currency).format(reader_locale())


@register.filter
def percent(text: str | Decimal | None) -> str:
    """A share that was floored to two decimals already, with the locale's decimal mark; never rounds."""
    if text is None:
        return NOT_RECORDED
    value = Decimal(text)
    return f"{format_decimal(value, format='#,##0.00', locale=reader_locale())} %"


@register.filter
def day(value: datetime.date | None) -> str:
    """A calendar day, such as 3 Sep 2026."""
    return NOT_RECORDED if value is None else format_date(value, format="medium", locale=reader_locale())


@register.simple_tag
def when(value: datetime.datetime | None, zone: str = "", seconds: bool = False) -> SafeString | str:
    """An instant as `<time>`, in the reader's zone, or in `zone`, which is then named."""
    if value is None:
        return NOT_RECORDED
    tz = ZoneInfo(zone) if zone else timezone.get_current_timezone()
    pattern = "d MMM y, HH:mm:ss" if seconds else "d MMM y, HH:mm"
    text = format_datetime(value, format=pattern, tzinfo=tz, locale=reader_locale())
    machine = value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
    return format_html('<time datetime="{}">{}{}</time>', machine, text, f" ({zone})" if zone else "")


@register.simple_tag
def this_moment() -> datetime.datetime:
    """When the page is made."""
    return timezone.now()


@register.simple_tag
def when_text(value: datetime.datetime | str, zone: str) -> str:
    """An instant, also as RFC 3339 text, in an IANA zone that stands beside it; for documents."""
    at = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    return format_datetime(at, format="d MMM y, HH:mm", tzinfo=ZoneInfo(zone), locale=reader_locale())


@register.filter
def duration(milliseconds: int | None) -> str:
    """A span of time in its two largest useful units: 3 min 12 s, 4.2 s, 850 ms."""
    if milliseconds is None:
        return NOT_RECORDED
    if milliseconds < 1000:
        return gettext("%(n)s ms") % {"n": number(milliseconds)}
    if milliseconds < 60_000:
        return gettext("%(n)s s") % {"n": number(Decimal(milliseconds // 100) / 10, 1)}
    seconds = milliseconds // 1000
    if seconds < 3600:
        return gettext("%(minutes)s min %(seconds)s s") % {"minutes": seconds // 60, "seconds": seconds % 60}
    hours, minutes = divmod(seconds // 60, 60)
    if hours < 48:
        return gettext("%(hours)s h %(minutes)s min") % {"hours": hours, "minutes": minutes}
    days = hours // 24
    return ngettext("%(n)s day", "%(n)s days", days) % {"n": number(days)}


@register.filter
def gpu_hours(gpu_milliseconds: int | None) -> str:
    """GPU-milliseconds as GPU-hours with three decimals, rounded once, half-even."""
    if gpu_milliseconds is None:
        return NOT_RECORDED
    return number(round(Decimal(gpu_milliseconds) / 3_600_000, 3), 3)


@register.filter
def seconds_as_gpu_hours(gpu_seconds: Decimal | str | None) -> str:
    """GPU-seconds (exact to the millisecond) as GPU-hours with three decimals."""
    return NOT_RECORDED if gpu_seconds is None else gpu_hours(int(Decimal(gpu_seconds) * 1000))


@register.filter
def size(count: int | None) -> str:
    """Bytes in binary units: 6.0 GiB."""
    if count is None:
        return NOT_RECORDED
    value, unit = Decimal(count), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{number(value, 0 if unit == 'B' else 1)} {unit}"

"""Time zones that a form offers."""

from zoneinfo import available_timezones

# Named by place, and UTC; the zones without a slash are old abbreviations.
ZONE_CHOICES = [(zone, zone) for zone in sorted(available_timezones()) if "/" in zone or zone == "UTC"]

"""What an address asks for. A value that does not exist is ignored, so that an old link still opens."""

import datetime
from collections.abc import Collection

from django.http import QueryDict
from django.utils.dateparse import parse_date

from yoco.core.clock import FIRST_DAY, LAST_DAY


def choice_in(query: QueryDict, name: str, choices: Collection[str]) -> str:
    """One of `choices`, or empty."""
    return query.get(name, "") if query.get(name, "") in choices else ""


def day_in(query: QueryDict, name: str) -> datetime.date | None:
    """A day in ISO 8601 that no time zone leads out of the calendar."""
    try:
        found = parse_date(query.get(name, ""))
    except ValueError:
        return None
    return found if found and FIRST_DAY <= found <= LAST_DAY else None

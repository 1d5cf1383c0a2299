"""`manage.py close_years`: moves due contract years on, freezes statements, writes restatements."""

import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from yoco.guarantee.services import years_close


class Command(BaseCommand):
    help = "Closes every contract year that is due; safe to run at any time, twice, or at once with another."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--as-of", help="act as at this time (date, or date and time with offset); default: now")
        parser.add_argument(
            "--allow-future", action="store_true", help="let --as-of lie ahead: years close before their time"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        as_of = _as_of(options["as_of"])
        if as_of > timezone.now() and not options["allow_future"]:
            raise CommandError(
                f"{as_of.isoformat()} lies ahead, and a year that is closed cannot be opened again. "
                "Add --allow-future if you mean it.",
                returncode=2,
            )
        try:
            done = years_close(as_of=as_of)
        except ExceptionGroup as group:
            raise CommandError("; ".join(f"{type(e).__name__}: {e}" for e in group.exceptions)) from group
        for year in done.closing:
            self.stdout.write(f"closing   {year}")
        for statement in done.closed:
            self.stdout.write(
                f"closed    {statement.year}: {statement.verdict}, {statement.resolved} of {statement.counted}, "
                f"sha256 {statement.sha256}"
            )
        for year in done.closed_unguaranteed:
            self.stdout.write(f"closed    {year}: no guarantee in this year")
        for statement in done.restated:
            self.stdout.write(f"restated  {statement.year}: revision {statement.revision}, {statement.verdict}")
        if not (done.closing or done.closed or done.closed_unguaranteed or done.restated):
            self.stdout.write("nothing due")


def _as_of(text: str | None) -> datetime.datetime:
    if text is None:
        return timezone.now()
    try:
        if day := parse_date(text):
            return datetime.datetime.combine(day, datetime.time(), tzinfo=datetime.UTC)
        at = parse_datetime(text)
    except ValueError as error:
        raise CommandError(f"--as-of {text}: {error}", returncode=2) from error
    if at is None or at.tzinfo is None:
        raise CommandError(f"--as-of {text}: give a date, or a date and time with an offset.", returncode=2)
    return at

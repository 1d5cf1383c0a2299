"""`manage.py retention_apply`: deletes what has been kept as long as the settings say. The beat does it daily."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from yoco.core.problem import DomainError
from yoco.records.retention import MOST, retention_apply


class Command(BaseCommand):
    help = "Deletes deliveries, old sessions, heartbeats of closed years … as KEEP_…_DAYS say. See docs/data.md."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="say how many rows would go and delete none")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            done = retention_apply(as_of=timezone.now(), dry_run=options["dry_run"])
        except DomainError as error:
            raise CommandError(error.message, returncode=2) from error
        verb = "would be deleted" if options["dry_run"] else "deleted"
        for what, number in done.items():
            more = " (at most so many at once; run it again)" if number >= MOST and not options["dry_run"] else ""
            self.stdout.write(f"{number:>8}  {what} {verb}{more}")
        if not done:
            self.stdout.write("Nothing has been kept longer than the settings say.")

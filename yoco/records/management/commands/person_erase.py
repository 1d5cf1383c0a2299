"""`manage.py person_erase EMAIL --reason …`: takes name, address, sign-in and settings of a person out of the database.

Exit status 0 also when there was nothing to erase; 1 when it was refused, with what to do first; 2 for a wrong call.
"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import translation

from yoco.core.problem import DomainError
from yoco.records.erasure import person_erase


class Command(BaseCommand):
    help = "Erases a person; what they did stays under “erased person N”. Cannot be undone. See docs/data.md."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("person", metavar="EMAIL", help="the person's e-mail address, or the id of their account")
        parser.add_argument("--reason", required=True, help="kept in the audit log; without name and address")
        parser.add_argument("--dry-run", action="store_true", help="say what would be erased and change nothing")
        parser.add_argument(
            "--leave-without-owner",
            action="store_true",
            help="also when they are the only owner of an organisation; an account manager can then invite another",
        )

    @translation.override("en")  # as all that the commands print
    def handle(self, *args: Any, **options: Any) -> None:
        try:
            done = person_erase(
                person=options["person"],
                reason=options["reason"],
                leave_without_owner=options["leave_without_owner"],
                dry_run=options["dry_run"],
            )
        except DomainError as error:
            raise CommandError(error.message) from error
        if done.already:
            self.stdout.write("Nothing is stored under this address, or it was erased before.")
            return
        for what, number in done.erased.items():
            self.stdout.write(f"{number:>6}  {what}")
        verb = "would be" if options["dry_run"] else "is"
        self.stdout.write(f"The person {verb} known as {done.label} from now on.")
        for line in done.remains:
            self.stdout.write(f"Look at: {line}")

"""`manage.py guarantee_report CONTRACT`: one contract year's report.

Exit status 0 when it was printed, whatever the verdict; 1 when the year's statement does not hold; 2 for bad usage.
"""

from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_date

from yoco.contracts.models import Contract
from yoco.contracts.selectors import year_at
from yoco.guarantee.report import YearReport, report_csv, report_json, report_text
from yoco.guarantee.selectors import year_report
from yoco.guarantee.verify import statements_verify

FORMATS: dict[str, Callable[[YearReport], str]] = {"text": report_text, "json": report_json, "csv": report_csv}


class Command(BaseCommand):
    help = "Prints a contract year's guarantee report."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("contract", metavar="CONTRACT", help="the contract's number")
        parser.add_argument("--year", metavar="YYYY-MM-DD", help="a day of the contract year; default: today")
        parser.add_argument("--format", choices=FORMATS, default="text")

    def handle(self, *args: Any, **options: Any) -> None:
        contract = Contract.objects.filter(number=options["contract"]).first()
        if contract is None:
            raise CommandError(f"There is no contract {options['contract']}.", returncode=2)
        try:
            day = (
                parse_date(options["year"])
                if options["year"]
                else timezone.now().astimezone(ZoneInfo(contract.time_zone)).date()
            )
        except ValueError:
            day = None
        if day is None:
            raise CommandError(f"--year {options['year']} is no date; write it as 2026-08-03.", returncode=2)
        year = year_at(contract=contract, day=day)
        if year is None:
            raise CommandError(
                f"{day} lies in no year of {contract.number}, which runs from {contract.starts_on} to "
                f"{contract.ends_on} (not included).",
                returncode=2,
            )
        self.stdout.write(FORMATS[options["format"]](year_report(year=year)))
        if broken := statements_verify(year_id=year.pk):
            raise CommandError("\n".join(str(row) for row in broken), returncode=1)

"""`manage.py guarantee_report CONTRACT`: one contract year's report.

Exit status 0 when it was printed, whatever the verdict; 1 when the year's statement does not hold; 2 for bad usage.
"""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_date

from yoco.contracts.models import Contract, ContractYear
from yoco.contracts.selectors import year_at
from yoco.guarantee.models import Statement
from yoco.guarantee.report import YearReport, report_csv, report_json, report_text
from yoco.guarantee.selectors import year_report
from yoco.guarantee.statistics import METHODS
from yoco.guarantee.tally import report_with_interval
from yoco.guarantee.verify import statements_verify

TEXTS: dict[str, Callable[[YearReport], str]] = {"text": report_text, "json": report_json, "csv": report_csv}


class Command(BaseCommand):
    help = "Prints a contract year's guarantee report."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("contract", metavar="CONTRACT", help="the contract's number")
        parser.add_argument("--year", metavar="YYYY-MM-DD", help="a day of the contract year; default: today")
        parser.add_argument("--format", choices=[*TEXTS, "pdf"], default="text")
        parser.add_argument("--interval", choices=METHODS, help="of the share, beside the verdict; default: wilson")
        parser.add_argument("--output", metavar="FILE", type=Path, help="write it there; a PDF needs one")

    def handle(self, *args: Any, **options: Any) -> None:
        year = _year(options["contract"], options["year"])
        output: Path | None = options["output"]
        if options["format"] == "pdf":
            if output is None:
                raise CommandError("A PDF does not go to a terminal; say where with --output FILE.", returncode=2)
            if options["interval"]:
                raise CommandError("A PDF is the frozen statement; --interval is for the other formats.", returncode=2)
            self._write(output, _pdf(year))
        else:
            report = year_report(year=year)
            if options["interval"]:
                report = report_with_interval(report, options["interval"])
            text = TEXTS[options["format"]](report)
            if output is None:
                self.stdout.write(text)
            else:
                self._write(output, f"{text}\n".encode())
        if broken := statements_verify(year_id=year.pk):
            raise CommandError("\n".join(str(row) for row in broken), returncode=1)

    def _write(self, output: Path, content: bytes) -> None:
        try:
            output.write_bytes(content)
        except OSError as error:
            raise CommandError(f"{output} cannot be written: {error.strerror}.", returncode=2) from error
        self.stdout.write(f"{output}: {len(content)} bytes")


def _year(number: str, day_text: str | None) -> ContractYear:
    contract = Contract.objects.filter(number=number).first()
    if contract is None:
        raise CommandError(f"There is no contract {number}.", returncode=2)
    day: datetime.date | None
    try:
        day = parse_date(day_text) if day_text else timezone.now().astimezone(ZoneInfo(contract.time_zone)).date()
    except ValueError:
        day = None
    if day is None:
        raise CommandError(f"--year {day_text} is no date; write it as 2026-08-03.", returncode=2)
    year = year_at(contract=contract, day=day)
    if year is None:
        raise CommandError(
            f"{day} lies in no year of {contract.number}, which runs from {contract.starts_on} to "
            f"{contract.ends_on} (not included).",
            returncode=2,
        )
    return year


def _pdf(year: ContractYear) -> bytes:
    """The latest statement as the portal hands it out."""
    from yoco.portal.documents import statement_pdf  # its library takes a second to load, which text need not wait for
    from yoco.portal.views.statements import context_of

    statements = Statement.objects.select_related("terms", "year__contract__organisation")
    statement = statements.filter(year=year).order_by("-revision").first()
    if statement is None:
        raise CommandError(
            f"This contract year is {year.get_state_display().lower()} and has no statement yet, so there is no PDF.",
            returncode=2,
        )
    return statement_pdf(context_of(statement))

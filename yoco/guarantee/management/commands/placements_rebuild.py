"""Places every incident of a contract anew under the rules of today. Closed years that it changes are restated by the
next `close_years`. Exit status 0 when done, 2 if there is no such contract."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from yoco.contracts.models import Contract
from yoco.guarantee.services import placements_rebuild


class Command(BaseCommand):
    help = "Places every incident of a contract anew under the rules of today."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("contract", help="the contract's number")

    def handle(self, *args: Any, **options: Any) -> None:
        contract = Contract.objects.filter(number=options["contract"]).first()
        if contract is None:
            raise CommandError(f"There is no contract {options['contract']}.", returncode=2)
        self.stdout.write(f"{placements_rebuild(contract=contract)} incidents placed anew")

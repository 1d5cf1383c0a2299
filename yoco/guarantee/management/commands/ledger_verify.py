"""`manage.py ledger_verify`: proves the ledger's chain and sums, its statements, and the monthly snapshots.

Exit status 0 when everything holds, 1 when something is broken, the first broken row in the last line, 2 for bad usage.
"""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from yoco.contracts.models import Contract
from yoco.guarantee.models import Snapshot, Statement
from yoco.guarantee.proof import books_prove


class Command(BaseCommand):
    help = "Proves ledger, statements and snapshots; status 1 and the first broken row if something does not hold."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--contract", help="only this contract, by its number")
        parser.add_argument("--format", choices=["text", "json"], default="text")

    def handle(self, *args: Any, **options: Any) -> None:
        contract_id = None
        statements, snapshots = Statement.objects.all(), Snapshot.objects.all()
        if options["contract"]:
            contract = Contract.objects.filter(number=options["contract"]).first()
            if contract is None:
                raise CommandError(f"There is no contract {options['contract']}.", returncode=2)
            contract_id = contract.pk
            statements = statements.filter(year__contract=contract)
            snapshots = snapshots.filter(year__contract=contract)
        ledger, broken = books_prove(contract_id=contract_id)
        counts = {
            "statements": statements.count(),
            "snapshots": snapshots.count(),
            "transactions": ledger.transactions,
            "postings": ledger.postings,
        }
        if options["format"] == "json":
            found = {**counts, "heads": ledger.heads, "broken": broken, "holds": not broken}
            self.stdout.write(json.dumps(found, indent=2, sort_keys=True))
        else:
            self.stdout.write(
                f"{counts['statements']} statements and {counts['snapshots']} monthly snapshots; "
                f"{ledger.transactions} transactions and {ledger.postings} postings in {ledger.seconds:.2f} s"
            )
            for row in broken:
                self.stdout.write(f"BROKEN  {row}")
        if broken:
            raise CommandError(f"First broken row: {broken[0]}", returncode=1)
        if options["format"] == "text":
            for contract_key, head in sorted(ledger.heads.items()):
                self.stdout.write(f"head of contract {contract_key}: {head}")
            self.stdout.write("Everything holds.")

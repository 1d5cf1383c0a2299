"""`manage.py ledger_verify`: proves the ledger and the statements it rests on.

Exit status 0 when everything holds, 1 when something is broken (every broken row is named, the first one first), 2 for
bad usage.
"""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from yoco.contracts.models import Contract
from yoco.credits.verify import ledger_verify
from yoco.guarantee.verify import statements_verify


class Command(BaseCommand):
    help = "Checks chain, sums and statements of every contract's ledger, or of one, and names what is broken."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("contract", nargs="?", help="number of the contract; default: all")
        parser.add_argument("--format", choices=["text", "json"], default="text")

    def handle(self, *args: Any, **options: Any) -> None:
        contract_id = None
        if options["contract"]:
            contract = Contract.objects.filter(number=options["contract"]).first()
            if contract is None:
                raise CommandError(f"There is no contract {options['contract']}.", returncode=2)
            contract_id = contract.pk
        ledger = ledger_verify(contract_id=contract_id)
        broken = [
            *({"row": b.row, "reason": b.reason} for b in statements_verify(contract_id=contract_id)),
            *({"row": b.row, "reason": b.reason} for b in ledger.broken),
        ]
        if options["format"] == "json":
            result = {
                "holds": not broken,
                "transactions": ledger.transactions,
                "postings": ledger.postings,
                "heads": ledger.heads,
                "broken": broken,
            }
            self.stdout.write(json.dumps(result, indent=2, sort_keys=True))
        else:
            for row in broken:
                self.stdout.write(f"broken    {row['row']}: {row['reason']}")
            self.stdout.write(
                f"ledger    {ledger.transactions} transactions, {ledger.postings} postings in {ledger.seconds:.2f} s"
            )
            for contract_key, head in ledger.heads.items():
                self.stdout.write(f"head      {contract_key} {head}")
        if broken:
            raise CommandError(f"{len(broken)} broken; the first: {broken[0]['row']}: {broken[0]['reason']}")
        if options["format"] == "text":
            self.stdout.write("holds     every hash, link and sum, and every statement")

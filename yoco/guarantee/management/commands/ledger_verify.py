"""`manage.py ledger_verify`: proves the ledger's chain and sums, and the statements that it rests on."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from yoco.contracts.models import Contract
from yoco.credits.verify import ledger_verify
from yoco.guarantee.models import Statement
from yoco.guarantee.verify import statements_verify


class Command(BaseCommand):
    help = "Proves the credit ledger and the statements; status 1 and the first broken row if something does not hold."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--contract", help="only this contract, by its number")

    def handle(self, *args: Any, **options: Any) -> None:
        contract_id = None
        if options["contract"]:
            contract = Contract.objects.filter(number=options["contract"]).first()
            if contract is None:
                raise CommandError(f"There is no contract {options['contract']}.", returncode=2)
            contract_id = contract.pk
        statements = Statement.objects.all()
        if contract_id is not None:
            statements = statements.filter(year__contract=contract_id)
        broken = [str(row) for row in statements_verify(contract_id=contract_id)]
        ledger = ledger_verify(contract_id=contract_id)
        broken += [str(row) for row in ledger.broken]
        self.stdout.write(
            f"{statements.count()} statements; {ledger.transactions} transactions and {ledger.postings} postings "
            f"in {ledger.seconds:.2f} s"
        )
        if broken:
            self.stdout.write("\n".join(f"BROKEN  {row}" for row in broken[1:]))
            raise CommandError(f"First broken row: {broken[0]}", returncode=1)
        for contract_key, head in sorted(ledger.heads.items()):
            self.stdout.write(f"head of contract {contract_key}: {head}")
        self.stdout.write("Everything holds.")

"""Creates a key for agents or readers and prints it once."""

import datetime
from argparse import ArgumentParser
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from yoco.accounts.models import Scope
from yoco.accounts.services import agent_key_create
from yoco.core.problem import DomainError


class Command(BaseCommand):
    help = "Creates a key of one contract and prints it; it is stored nowhere and cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("contract", help="number of the contract")
        parser.add_argument("--name", default="agent", help="what the key is for (default: agent)")
        parser.add_argument("--scope", choices=Scope.values, default=Scope.INGEST.value)
        parser.add_argument(
            "--expires-in-days", type=int, metavar="N", help="the key ends after N days (default: never)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        contract_model = apps.get_model("contracts", "Contract")
        contract = contract_model.objects.select_related("organisation").filter(number=options["contract"]).first()
        if contract is None:
            numbers = ", ".join(contract_model.objects.order_by("number").values_list("number", flat=True)[:20])
            raise CommandError(f"There is no contract {options['contract']}. Known: {numbers or 'none'}.", returncode=2)
        days = options["expires_in_days"]
        if days is not None and days < 1:
            raise CommandError("--expires-in-days takes a number of days, 1 or more.", returncode=2)
        try:
            _, text = agent_key_create(
                organisation=contract.organisation,
                contract=contract,
                scope=Scope(options["scope"]),
                name=options["name"],
                actor=None,
                expires_at=timezone.now() + datetime.timedelta(days=days) if days else None,
            )
        except DomainError as error:
            raise CommandError(error.message) from error
        self.stdout.write(text)

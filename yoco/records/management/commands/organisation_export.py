"""`manage.py organisation_export SLUG --to DIR|FILE.zip`: all that is kept of one organisation.

Exit status 0; 1 when it was refused; 2 when there is no such organisation.
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from yoco.accounts.models import Organisation
from yoco.core.problem import DomainError
from yoco.records.archive import Written
from yoco.records.export import organisation_export


class Command(BaseCommand):
    help = "Writes everything of one organisation as JSON lines with a manifest of hashes. See docs/data.md."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("slug", help="the organisation's short name")
        parser.add_argument("--to", type=Path, required=True, metavar="DIR|FILE.zip", help="must not exist yet")

    def handle(self, *args: Any, **options: Any) -> None:
        organisation = Organisation.objects.filter(slug=options["slug"]).first()
        if organisation is None:
            known = ", ".join(Organisation.objects.order_by("slug").values_list("slug", flat=True)[:20])
            raise CommandError(f"There is no organisation {options['slug']}. Known: {known or 'none'}.", returncode=2)
        try:
            manifest = organisation_export(organisation=organisation, to=options["to"], note=self._note)
        except (DomainError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{options['to']}: SHA-256 of manifest.json {manifest.sha256}")

    def _note(self, written: Written) -> None:
        if written.rows is not None:
            self.stdout.write(f"{written.rows:>10}  {written.name}")

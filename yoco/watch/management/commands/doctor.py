"""`manage.py doctor`: looks an installation over and says for each fault what to mend.

Run it where the service runs, with its environment. Exit status 0 where nothing is wrong, 1 with a fault, 2 for bad
usage.
"""

import json
import os
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from yoco.watch.findings import findings


class Command(BaseCommand):
    help = "Looks this installation over; status 1 and what to mend if something is wrong."
    requires_system_checks = ()  # what they find is told with the rest

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--format", choices=["text", "json"], default="text")
        codes = [code for code, _name in settings.LANGUAGES]
        spoken = os.environ.get("LC_ALL") or os.environ.get("LANG") or ""
        parser.add_argument("--language", choices=codes, default="es" if spoken.startswith("es") else "en")

    def handle(self, *args: Any, **options: Any) -> None:
        with translation.override(options["language"]):
            found = []
            for one in findings():
                found.append(one)
                if options["format"] == "text":
                    word = {"ok": _("ok"), "note": _("note"), "fault": _("FAULT")}[one.state]
                    self.stdout.write(f"{word:6} {one.part}: {one.said}")
                    if one.mend:
                        self.stdout.write(f"       → {one.mend}")
            if options["format"] == "json":
                self.stdout.write(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))
            faults = sum(one.state == "fault" for one in found)
            if faults:
                number = {"number": faults}
                raise CommandError(
                    ngettext("%(number)d fault to mend.", "%(number)d faults to mend.", faults) % number, returncode=1
                )
            if options["format"] == "text":
                self.stdout.write(_("Nothing is wrong."))

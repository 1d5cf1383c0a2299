"""`manage.py tick`: does everything that is due, once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from yoco.notify.due import tick_do


class Command(BaseCommand):
    help = "Does everything that is due, once: silences, years, credits, messages. For cron where no beat runs."

    def handle(self, *args: Any, **options: Any) -> None:
        done = tick_do(as_of=timezone.now())
        for line in done.lines or ["nothing was due"]:
            self.stdout.write(line)
        if done.failed:
            raise CommandError(f"Failed, see the log: {'; '.join(done.failed)}.")

"""`manage.py waste_terms_fill`: keeps the terms of waste of incidents that were placed before terms were kept.

Places them again by the same rules; safe to stop and to run again. Exit status 0.
"""

import uuid
from typing import Any

from django.core.management.base import BaseCommand

from yoco.guarantee.models import Placement
from yoco.guarantee.placements import placements_refresh

BATCH = 500


class Command(BaseCommand):
    help = "Splits the waste of old incidents by term, for the analytics; needed once after an upgrade."

    def handle(self, *args: Any, **options: Any) -> None:
        filled = 0
        old = Placement.objects.filter(waste_terms__isnull=True)
        contracts = list(old.order_by().values_list("incident__contract", flat=True).distinct())
        for contract in contracts:
            while ids := self._next(contract):
                # Near each other in time: placing loads the time between the first and the last.
                placements_refresh(incident_ids=ids)
                filled += len(ids)
        self.stdout.write(f"{filled} incidents were split by term.")

    def _next(self, contract: uuid.UUID) -> list[int]:
        rows = Placement.objects.filter(waste_terms__isnull=True, incident__contract=contract).order_by(
            "started_at", "pk"
        )
        return list(rows.values_list("pk", flat=True)[:BATCH])

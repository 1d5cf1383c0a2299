"""Operators' records uploaded at the desk: kept, previewed, then imported or discarded.

The bytes are kept from the upload on, so that what is imported is what was previewed. They stay after the import, as
the source of its incidents; what nobody confirms is removed after a day, at the next upload.
"""

import csv
import datetime
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.models import Contract
from yoco.core.audit import audit_record
from yoco.core.downloads import cell
from yoco.core.problem import DomainError
from yoco.guarantee.imports import REJECT_COLUMNS, ImportOutcome, import_spec, incidents_import
from yoco.guarantee.models import ImportFile
from yoco.incidents.importers import Imported, Rejected, SpecError, records_read

MAX_BYTES = 10 * 1024 * 1024
KEPT_UNCONFIRMED = datetime.timedelta(days=1)
SHOWN = 20


@transaction.atomic
def import_file_keep(
    *, contract: Contract, name: str, content: bytes, options: dict[str, Any], actor: User
) -> ImportFile:
    """Keeps an upload until somebody confirms it. `options` are those of `imports.import_spec`.

    Raises DomainError if the file as a whole cannot be read under these options.
    """
    _account_manager(actor)
    file = ImportFile(
        contract=contract,
        name=name[:200],
        sha256=hashlib.sha256(content).hexdigest(),
        content=content,
        options=options,
        uploaded_by=actor,
    )
    try:
        next(iter(records_read(_lines(file), import_spec(contract=contract, **options))), None)
    except SpecError as error:
        raise DomainError(str(error), code="unreadable_file") from error
    abandoned = ImportFile.objects.filter(imported_at=None, uploaded_at__lt=timezone.now() - KEPT_UNCONFIRMED)
    abandoned.delete()
    file.save(force_insert=True)
    return file


@dataclass(frozen=True, slots=True)
class ImportPreview:
    """What importing a file would do: the answers by number, and the first of the reports and of the rejected lines."""

    outcome: ImportOutcome
    reports: list[tuple[Imported, str]] = field(default_factory=list)
    rejects: list[Rejected] = field(default_factory=list)


def import_file_preview(*, file: ImportFile) -> ImportPreview:
    """Reads the kept bytes as an import would and writes nothing. Raises DomainError if they cannot be read."""
    reports: list[tuple[Imported, str]] = []
    rejects: list[Rejected] = []

    def show(imported: Imported, answer: str) -> None:
        if len(reports) < SHOWN:
            reports.append((imported, answer))

    def reject(rejected: Rejected) -> None:
        if len(rejects) < SHOWN:
            rejects.append(rejected)

    try:
        outcome = incidents_import(
            contract=file.contract,
            lines=_lines(file),
            spec=import_spec(contract=file.contract, **file.options),
            dry_run=True,
            reject=reject,
            show=show,
        )
    except SpecError as error:
        raise DomainError(str(error), code="unreadable_file") from error
    return ImportPreview(outcome, reports, rejects)


def import_file_rejects(*, file: ImportFile) -> str:
    """Every rejected line with its number and the reason, as CSV."""
    out = StringIO(newline="")
    rows = csv.writer(out)
    rows.writerow(REJECT_COLUMNS)
    incidents_import(
        contract=file.contract,
        lines=_lines(file),
        spec=import_spec(contract=file.contract, **file.options),
        dry_run=True,
        reject=lambda rejected: rows.writerow([rejected.line, cell(rejected.reason), cell(rejected.text)]),
    )
    return out.getvalue()


def import_file_confirm(*, file: ImportFile, actor: User) -> ImportFile:
    """Imports the kept bytes, in batches, and notes who did it and what came of it.

    A file that is imported already stays as it is. If it ends half-way, confirming again does the rest. Raises
    DomainError if the file cannot be read.
    """
    _account_manager(actor)
    if file.imported_at is not None:
        return file
    try:
        with translation.override("en"):  # What is kept does not depend on who pressed the button.
            outcome = incidents_import(
                contract=file.contract,
                lines=_lines(file),
                spec=import_spec(contract=file.contract, **file.options),
            )
    except SpecError as error:
        raise DomainError(str(error), code="unreadable_file") from error
    told = {
        "created": outcome.results["created"],
        "known": outcome.results["duplicate"],
        "rejected": outcome.rejected,
        "counted": dict(outcome.counted),
    }
    with transaction.atomic():
        done = ImportFile.objects.filter(pk=file.pk, imported_at=None).update(
            imported_at=timezone.now(), imported_by=actor, outcome=told
        )
        if done:
            audit_record(
                action="incidents.imported",
                actor=actor,
                subject=file,
                organisation_id=file.contract.organisation_id,
                data={"name": file.name, "sha256": file.sha256, **told},
            )
    file.refresh_from_db(fields=["imported_at", "imported_by", "outcome"])
    return file


def import_file_discard(*, file: ImportFile, actor: User) -> None:
    """Forgets an upload. Raises DomainError if it is imported: its incidents have it as their source."""
    _account_manager(actor)
    if not ImportFile.objects.filter(pk=file.pk, imported_at=None).delete()[0]:
        raise DomainError(_("This file is imported already."), code="already_imported")


def _lines(file: ImportFile) -> Iterator[str]:
    yield from TextIOWrapper(BytesIO(file.content), encoding="utf-8-sig", errors="replace", newline="")


def _account_manager(actor: User) -> None:
    if not (actor.is_active and actor.is_account_manager):
        raise PermissionDenied

"""Everything of one organisation and nothing of another, as JSON lines with a manifest of hashes. docs/data.md.

Rows stream from the database into the file, so memory does not grow with their number. All is of one moment.
"""

import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.models import Field, Q, QuerySet
from django.utils import translation

from yoco.accounts.models import Organisation, User
from yoco.contracts.models import Contract
from yoco.core.audit import audit_record
from yoco.credits.export import transaction_content
from yoco.credits.selectors import transactions_of_contract
from yoco.records.archive import Archive, Written, archive_create
from yoco.records.tables import TABLES, Table

FORMAT = "yoco.organisation-export/1"
CHUNK = 1000
README = """Everything that YOCO keeps of this organisation. One JSON object a line in each .jsonl file; times are UTC,
amounts are integers in minor units, secrets are left out. manifest.json names every file with its SHA-256, its size and
its rows. statements/ID.json are the frozen statements, byte for byte: sha256sum gives the hash that stands in
statements.jsonl and in the ledger. snapshots/ID.json are those of the months. raw_reports.jsonl has the text of each
report under "body". ledger.jsonl has the chain of credits with its postings. people.jsonl says whose the ids are.
To check all of it: tools/verify_export.py of the service, which needs Python and nothing else.
"""


def organisation_export(
    *, organisation: Organisation, to: Path, note: Callable[[Written], None] = lambda written: None
) -> Written:
    """Writes the export to a new folder or ZIP file, and answers with its manifest. `note` is told of each file.

    Raises DomainError if `to` exists.
    """
    with archive_create(to) as archive:
        with one_moment():
            _write(archive, organisation, note)
        about = {"id": str(organisation.pk), "name": organisation.name, "slug": organisation.slug}
        manifest = archive.manifest({"format": FORMAT, "organisation": about})
        audit_record(
            action="organisation.exported",
            actor=None,
            subject=organisation,
            organisation_id=organisation.pk,
            data={"manifest_sha256": manifest.sha256, "files": len(archive.written)},
        )
    return manifest


@contextmanager
def one_moment() -> Iterator[None]:
    """All that is read inside is of one moment, and no writer waits for it. Inside a transaction: that one's moment."""
    if connection.in_atomic_block:
        yield
        return
    if connection.vendor == "postgresql":
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield
        return
    sqlite: Any = connection
    writing, sqlite.transaction_mode = sqlite.transaction_mode, "DEFERRED"  # IMMEDIATE would hold off writers
    try:
        with transaction.atomic():
            yield
    finally:
        sqlite.transaction_mode = writing


def _write(archive: Archive, organisation: Organisation, note: Callable[[Written], None]) -> None:
    people: set[uuid.UUID] = set()
    note(archive.file("README.txt", [README.encode()]))
    for table in TABLES:
        note(archive.file(f"{table.name}.jsonl", _rows(table, organisation, people), is_table=True))
        if table.content:
            for key in list(_of(table, organisation).values_list("pk", flat=True)):
                note(archive.file(_content_file(table, key), [_content(table, key)]))
    note(archive.file("ledger.jsonl", _ledger(organisation), is_table=True))
    note(archive.file("people.jsonl", _people(organisation, people), is_table=True))


def _of(table: Table, organisation: Organisation) -> QuerySet[Any]:
    return table.model._base_manager.filter(**{table.organisation: organisation.pk}).order_by("pk")


def _rows(table: Table, organisation: Organisation, people: set[uuid.UUID]) -> Iterator[bytes]:
    """The lines of a table; adds to `people` whom they name."""
    fields = [field for field in table.model._meta.concrete_fields if field.name not in {*table.omit, table.content}]
    names = [field.attname for field in fields]
    named = [place for place, field in enumerate(fields) if _is_person(field)]
    key = names.index(table.model._meta.pk.attname)
    for row in _of(table, organisation).values_list(*names).iterator(chunk_size=CHUNK):
        people.update(row[place] for place in named if row[place] is not None)
        line = dict(zip(names, row, strict=True))
        if table.content:
            line["file"] = _content_file(table, row[key])
        yield _line(line)


def _is_person(field: "Field[Any, Any]") -> bool:
    return field.is_relation and field.related_model is User


def _content_file(table: Table, key: uuid.UUID) -> str:
    return f"{table.name}/{key}.{'json' if table.content == 'canonical' else 'bin'}"


def _content(table: Table, key: uuid.UUID) -> bytes:
    value = table.model._base_manager.values_list(table.content, flat=True).get(pk=key)
    return value.encode() if isinstance(value, str) else bytes(value)


def _ledger(organisation: Organisation) -> Iterator[bytes]:
    """Contract after contract, each in the order of its chain."""
    for contract in Contract.objects.filter(organisation=organisation).order_by("pk"):
        for row in transactions_of_contract(contract=contract).iterator(chunk_size=CHUNK):
            yield _line(transaction_content(row))


def _people(organisation: Organisation, people: set[uuid.UUID]) -> Iterator[bytes]:
    """Members with their address; of the others, who work for the vendor, the name that the pages show too."""
    members = set(User.objects.filter(memberships__organisation=organisation).values_list("pk", flat=True))
    with translation.override("en"):
        for user in User.objects.filter(Q(pk__in=people) | Q(pk__in=members)).order_by("pk"):
            line: dict[str, Any] = {"id": user.pk, "name": str(user), "is_account_manager": user.is_account_manager}
            if user.pk in members:
                line |= {"email": user.email, "language": user.language, "time_zone": user.time_zone}
            yield _line(line)


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_plain) + "\n").encode()


def _plain(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, uuid.UUID | decimal.Decimal):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")

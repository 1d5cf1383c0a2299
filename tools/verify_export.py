#!/usr/bin/env python3
"""Checks the export of an organisation: `verify_export.py DIR|FILE.zip [--manifest SHA256]`.

For people who trust nobody. Standard library only, one file, and none of the service's code. Checked are: every file
against the manifest, statements, snapshots and raw reports against their hashes, and each contract's ledger: its chain,
its hashes (docs/ledger.md), its sums, and the statement that each entry names. Lines are read one by one.

Exit status 0: everything holds. 1: something does not; each line says what. 2: the export cannot be read.
"""

import argparse
import hashlib
import json
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

Json = dict[str, Any]
Open = Callable[[str], IO[bytes]]

FORMAT = "yoco.organisation-export/1"
GENESIS = "0" * 64
HASHED = [
    *("id", "contract", "sequence", "kind", "idempotency_key", "request_hash", "effective_at", "recorded_at"),
    *("statement", "statement_sha256", "actor", "reason", "reverses", "previous_hash"),
]
POSTED = ["line", "account", "currency", "minor", "credit", "order"]


def lines(file: IO[bytes]) -> Iterator[Json]:
    for line in file:
        yield json.loads(line)


def files_faults(opened: Open, present: set[str], files: list[Json]) -> Iterator[str]:
    """Files that are missing, changed or not named."""
    named = {file["name"] for file in files}
    for name in sorted(present - named - {"manifest.json"}):
        yield f"{name}: the manifest does not name it"
    for file in files:
        name = file["name"]
        if name not in present:
            yield f"{name}: it is missing"
            continue
        digest, size, rows = hashlib.sha256(), 0, 0
        with opened(name) as content:
            while piece := content.read(1 << 20):
                digest.update(piece)
                size += len(piece)
                rows += piece.count(b"\n")
        if (digest.hexdigest(), size) != (file["sha256"], file["bytes"]):
            yield f"{name}: it is not what the manifest says"
        elif file["rows"] not in (None, rows):
            yield f"{name}: it has {rows} rows, the manifest says {file['rows']}"


def statements_faults(opened: Open, table: str, hashes: dict[str, str]) -> Iterator[str]:
    """Statements, or snapshots of a month, whose text is not what was hashed; fills `hashes` by their ids."""
    with opened(f"{table}.jsonl") as file:
        for row in lines(file):
            hashes[row["id"]] = row["sha256"]
            with opened(row["file"]) as content:
                text = content.read()
            if hashlib.sha256(text).hexdigest() != row["sha256"]:
                yield f"{row['file']}: its hash is not {row['sha256']}"
            elif json.loads(text)["report"] != row["summary"]:
                yield f"{row['file']}: the summary beside it is not that of its text"


def reports_faults(opened: Open) -> Iterator[str]:
    """Raw reports whose text is not what arrived."""
    with opened("raw_reports.jsonl") as file:
        for row in lines(file):
            if hashlib.sha256(row["body"].encode()).hexdigest() != row["content_sha256"]:
                yield f"raw report {row['id']}: its text does not match its hash"


def ledger_faults(opened: Open, statements: dict[str, str]) -> Iterator[str]:
    """Entries that do not follow from the one before, were changed, or do not sum to zero."""
    contract, sequence, head = "", 0, GENESIS
    with opened("ledger.jsonl") as file:
        for entry in lines(file):
            if entry["contract"] != contract:
                contract, sequence, head = entry["contract"], 0, GENESIS
            name = f"ledger entry {entry['id']}"
            sequence += 1
            if (entry["sequence"], entry["previous_hash"]) != (sequence, head):
                yield f"{name}: it does not follow from the entry before it"
                sequence = entry["sequence"]
            array = [entry[field] for field in HASHED] + [[[p[field] for field in POSTED] for p in entry["postings"]]]
            if entry["version"] > 1:
                array.append(entry["grounds"])
            text = json.dumps(array, ensure_ascii=False, separators=(",", ":"))
            if hashlib.sha256(bytes([entry["version"]]) + text.encode()).hexdigest() != entry["hash"]:
                yield f"{name}: its content does not match its hash"
            sums: Counter[str] = Counter()
            for posting in entry["postings"]:
                sums[posting["currency"]] += posting["minor"]
            if any(sums.values()):
                yield f"{name}: its postings do not sum to zero"
            if statements.get(entry["statement"]) != entry["statement_sha256"]:
                yield f"{name}: its statement is missing or has another hash"
            head = entry["hash"]


def faults(opened: Open, present: set[str], files: list[Json]) -> Iterator[str]:
    """Everything that does not hold."""
    found = list(files_faults(opened, present, files))
    yield from found
    if found:
        return  # what follows reads these files
    statements: dict[str, str] = {}
    yield from statements_faults(opened, "snapshots", {})
    yield from statements_faults(opened, "statements", statements)
    yield from reports_faults(opened)
    yield from ledger_faults(opened, statements)


def export_open(path: Path) -> tuple[Open, set[str]]:
    """How to open a file of the export, and which there are."""
    if path.is_dir():
        present = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
        return lambda name: (path / name).open("rb"), present
    packed = zipfile.ZipFile(path)
    return packed.open, set(packed.namelist())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("export", type=Path)
    parser.add_argument("--manifest", metavar="SHA256", help="what manifest.json must hash to")
    options = parser.parse_args(arguments)
    try:
        opened, present = export_open(options.export)
        with opened("manifest.json") as file:
            text = file.read()
        manifest = json.loads(text)
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']}, not {FORMAT}")
        sha256 = hashlib.sha256(text).hexdigest()
        found = [] if options.manifest in (None, sha256) else [f"manifest.json: its hash is {sha256}"]
        found += faults(opened, present, manifest["files"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        print(f"{options.export} cannot be read: {error}", file=sys.stderr)
        return 2
    for fault in found:
        print(fault)
    rows = sum(file["rows"] or 0 for file in manifest["files"])
    if not found:
        print(f"{manifest['organisation']['name']}: {len(manifest['files'])} files with {rows} rows hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""CSV with a header row; `columns` say which column holds which field, `constants` fill in the others."""

import csv
import datetime
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from django.utils.translation import gettext as _

from yoco.incidents.importers.records import (
    Imported,
    ImportSpec,
    Record,
    Rejected,
    RowError,
    SpecError,
    instant,
    report_of,
    whole_number,
    written,
)
from yoco.incidents.payload import Kind, Phases, Resolution, Signal, StateSource

# Our field → where it goes in the report, and how its text is read.
FIELDS: dict[str, tuple[tuple[str, ...], str]] = {
    "run_id": (("workload", "run_id"), "text"),
    "name": (("workload", "name"), "text"),
    "gpus": (("workload", "gpus"), "number"),
    "gpus_per_node": (("workload", "gpus_per_node"), "number"),
    "gpu_model": (("workload", "gpu_model"), "text"),
    "kind": (("kind",), "word"),
    "signal": (("trigger", "signal"), "word"),
    "xid": (("trigger", "xid"), "number"),
    "node": (("where", "node"), "text"),
    "rank": (("where", "rank"), "number"),
    "gpu_uuid": (("where", "gpu_uuid"), "text"),
    **{name: (("phases", name), "time") for name in Phases.__struct_fields__},
    "last_committed_step": (("progress", "last_committed_step"), "number"),
    "first_step_after": (("progress", "first_step_after"), "number"),
    "samples_before": (("progress", "samples_before"), "number"),
    "samples_after": (("progress", "samples_after"), "number"),
    "samples_per_step": (("progress", "samples_per_step"), "number"),
    "checkpoint_loaded": (("progress", "checkpoint_loaded"), "flag"),
    "last_checkpoint_at": (("progress", "last_checkpoint_at"), "time"),
    "state_source": (("state", "source"), "word"),
    "digest_sent": (("state", "digest_sent"), "text"),
    "digest_received": (("state", "digest_received"), "text"),
    "resolution": (("resolution",), "word"),
    "root_event_id": (("root_event_id",), "uuid"),
}
WORDS = {
    "kind": get_args(Kind),
    "signal": get_args(Signal),
    "state_source": get_args(StateSource),
    "resolution": get_args(Resolution),
}
IDENTITY = "external_id"
REQUIRED = ("started_at", "run_id", "gpus")
DEFAULTS = {"kind": "unplanned", "signal": "process_exit"}
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def csv_read(lines: Iterable[str], spec: ImportSpec) -> Iterator[Record]:
    """One report for each row. A row that ends names when training resumed; without that it is still open."""
    reader = csv.reader(lines, strict=True)
    header = next(reader, None)
    if not header:
        raise SpecError(_("The file is empty; its first line must name the columns."))
    columns = _columns([name.strip() for name in header], spec)
    line = reader.line_num + 1
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Rejected(line, _("This is not CSV: %(error)s.") % {"error": error}, "")
            line = reader.line_num + 1
            continue
        if row:
            try:
                if len(row) != len(header):
                    sentence = _("The header has %(header)s columns, this row has %(columns)s.")
                    raise RowError(sentence % {"header": len(header), "columns": len(row)})
                yield Imported(line, _report({name: row[index].strip() for name, index in columns.items()}, spec))
            except RowError as error:
                yield Rejected(line, str(error), ",".join(row))
        line = reader.line_num + 1


def _columns(header: list[str], spec: ImportSpec) -> dict[str, int]:
    known = {*FIELDS, IDENTITY}
    for name in (*spec.columns, *spec.constants):
        if name not in known:
            sentence = _("There is no field “%(field)s”. Fields: %(fields)s.")
            raise SpecError(sentence % {"field": name, "fields": ", ".join(sorted(known))})
    for column in spec.columns.values():
        if column not in header:
            sentence = _("The file has no column “%(column)s”. Columns: %(columns)s.")
            raise SpecError(sentence % {"column": column, "columns": ", ".join(header)})
    taken = set(spec.columns.values())
    columns = {name: header.index(column) for name, column in spec.columns.items()}
    for name in known - spec.columns.keys() - spec.constants.keys():
        if name in header and name not in taken:
            columns[name] = header.index(name)
    for name in REQUIRED:
        if name not in columns and name not in spec.constants:
            sentence = _("No column holds “%(field)s”. Say which column does, or set it for every row.")
            raise SpecError(sentence % {"field": name})
    return columns


def _report(row: dict[str, str], spec: ImportSpec) -> dict[str, Any]:
    values = {**DEFAULTS, **spec.constants, **{name: text for name, text in row.items() if text}}
    body: dict[str, Any] = {"workload": {}, "trigger": {}, "where": {}, "phases": {}}
    moments: list[datetime.datetime] = []
    for name, text in values.items():
        if name == IDENTITY:
            continue
        path, kind = FIELDS[name]
        value: Any = text
        if kind == "number":
            value = whole_number(text, name)
        elif kind == "word":
            _word_check(text, name)
        elif kind == "uuid":
            _uuid_check(text, name)
        elif kind == "flag":
            value = _flag(text, name)
        elif kind == "time":
            at = instant(text, spec)
            value = written(at)
            if path[0] == "phases":
                moments.append(at)
        place = body
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    for name in REQUIRED:
        if name not in values:
            raise RowError(_("%(field)s is empty.") % {"field": name})
    ended = "resumed_at" in body["phases"] or "resolution" in body
    body["type"] = "incident.resolved" if ended else "incident.detected"
    identity = values.get(IDENTITY) or "|".join(
        (
            values["run_id"],
            values.get("node", ""),
            body["phases"]["started_at"],
            values["signal"],
            values.get("xid", ""),
        )
    )
    return report_of(spec, identity=identity, body=body, told_at=max(moments))


def _flag(text: str, name: str) -> bool:
    try:
        return FLAGS[text.lower()]
    except KeyError:
        sentence = _("%(field)s is “%(text)s”; write true or false.")
        raise RowError(sentence % {"field": name, "text": text[:40]}) from None


def _word_check(text: str, name: str) -> None:
    if text not in WORDS[name]:
        sentence = _("%(field)s is “%(text)s”; write one of: %(words)s.")
        raise RowError(sentence % {"field": name, "text": text[:40], "words": ", ".join(WORDS[name])})


def _uuid_check(text: str, name: str) -> None:
    try:
        uuid.UUID(text)
    except ValueError:
        raise RowError(_("%(field)s is “%(text)s”, not a UUID.") % {"field": name, "text": text[:40]}) from None

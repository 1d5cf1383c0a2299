"""Taking in the operators' own records: preview, or import in batches; what is imported is placed at once."""

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from zoneinfo import ZoneInfo

from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.contracts.models import Contract
from yoco.guarantee.services import reports_accept
from yoco.incidents.importers import Counted, Imported, ImportSpec, Rejected, SpecError, records_read
from yoco.incidents.models import RawReport, ReportSource
from yoco.incidents.payload import Invalid, report_take
from yoco.incidents.services import root_event_windows

BATCH = 500
REJECT_COLUMNS = ["line", "reason", "text"]


@dataclass
class ImportOutcome:
    """What became of a file. `results` counts reports by answer, `counted` lines that are no incident."""

    results: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    rejected: int = 0


def import_spec(
    *,
    contract: Contract,
    format: str,
    time_zone: str | None = None,
    fold: int | None = None,
    time_format: str | None = None,
    boot_time: str | None = None,
    columns: Mapping[str, str] | None = None,
    constants: Mapping[str, str] | None = None,
) -> ImportSpec:
    """How a contract's file is to be read, from what a person wrote; events are gathered by their year's terms.

    `format` is one of importers.FORMATS. Raises SpecError for a zone or a boot time that is none.
    """
    return ImportSpec(
        format=format,  # type: ignore[arg-type]
        contract_id=contract.pk,
        zone=_zone(time_zone) if time_zone else None,
        fold=fold,  # type: ignore[arg-type]
        time_format=time_format or None,
        columns=columns or {},
        constants=constants or {},
        boot_time=_boot_time(boot_time) if boot_time else None,
        window=root_event_windows(contract=contract),
    )


def pairs_read(texts: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE, each, as a mapping. Raises SpecError, naming the option, for a text that is none."""
    pairs = {}
    for text in texts:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not (name and separator and value):
            raise SpecError(_("%(option)s takes NAME=VALUE, not “%(text)s”.") % {"option": option, "text": text})
        pairs[name] = value
    return pairs


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise SpecError(_("“%(name)s” is no IANA time zone; write e.g. Europe/Madrid.") % {"name": name}) from None


def _boot_time(text: str) -> datetime.datetime:
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise SpecError(_("The start of the machine is written in ISO 8601 with an offset, e.g. 2026-11-02T09:00:00Z."))
    return at


def incidents_import(
    *,
    contract: Contract,
    lines: Iterable[str],
    spec: ImportSpec,
    dry_run: bool = False,
    reject: Callable[[Rejected], None] = lambda rejected: None,
    show: Callable[[Imported, str], None] = lambda imported, answer: None,
) -> ImportOutcome:
    """Imports a file, streaming, a transaction for each batch; a second run finds everything and changes nothing.

    With `dry_run` nothing is written and the answers are those that an import would give. `reject` is called for every
    line that cannot be read, `show` for every report with its answer. Raises importers.SpecError.
    """
    outcome = ImportOutcome()
    batches = _batches(records_read(lines, spec), outcome, reject)
    for batch in batches:
        answers = _preview(contract, batch) if dry_run else _accept(contract, batch)
        for imported, (answer, reason) in zip(batch, answers, strict=True):
            outcome.results[answer] += 1
            if answer == "invalid":
                outcome.rejected += 1
                reject(Rejected(imported.line, reason, ""))
            show(imported, answer)
    return outcome


def _batches(
    records: Iterable[object], outcome: ImportOutcome, reject: Callable[[Rejected], None]
) -> Iterator[list[Imported]]:
    def imported() -> Iterator[Imported]:
        for record in records:
            match record:
                case Imported():
                    yield record
                case Rejected():
                    outcome.rejected += 1
                    reject(record)
                case Counted():
                    outcome.counted[record.what] += record.lines

    stream = imported()
    while batch := list(islice(stream, BATCH)):
        yield batch


def _accept(contract: Contract, batch: list[Imported]) -> list[tuple[str, str]]:
    accepted = reports_accept(
        contract=contract,
        key=None,
        reports=[one.report for one in batch],
        received_at=timezone.now(),
        source=ReportSource.IMPORT,
    )
    return [(result.status, _reason(result.reason, result.path)) for result in accepted.results]


def _preview(contract: Contract, batch: list[Imported]) -> list[tuple[str, str]]:
    known = {
        str(report_id)
        for report_id in RawReport.objects.filter(
            contract=contract, report_id__in=[one.report["id"] for one in batch]
        ).values_list("report_id", flat=True)
    }
    answers = []
    for one in batch:
        try:
            report_take(one.report, received_at=timezone.now())
        except Invalid as refusal:
            answers.append(("invalid", _reason(refusal.reason, refusal.path)))
        else:
            answers.append(("duplicate" if one.report["id"] in known else "created", ""))
            known.add(one.report["id"])
    return answers


def _reason(reason: str | None, path: str | None) -> str:
    return _("Not accepted at %(path)s: %(reason)s") % {"path": path, "reason": reason} if path else reason or ""

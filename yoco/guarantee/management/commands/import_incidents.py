"""`manage.py import_incidents`: the operators' own records as incidents."""

import csv
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError
from django.utils import translation

from yoco.contracts.models import Contract
from yoco.core.downloads import cell
from yoco.guarantee.imports import REJECT_COLUMNS, ImportOutcome, import_spec, incidents_import, pairs_read
from yoco.incidents.importers import FORMATS, Imported, ImportSpec, Rejected, SpecError

SHOWN = 20


class Command(BaseCommand):
    help = (
        "Imports incidents from a CSV file, from Slurm accounting (sacct --parsable2) or from a kernel log. "
        "Running it again changes nothing. Lines that cannot be read go to FILE.rejects.csv; the exit status is then 1."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--contract", required=True, help="number of the contract")
        parser.add_argument("--format", required=True, choices=FORMATS)
        parser.add_argument("--time-zone", help="IANA zone of times without offset, e.g. Europe/Madrid")
        parser.add_argument("--fold", type=int, choices=(0, 1), help="which of a repeated hour: 0 first, 1 second")
        parser.add_argument("--time-format", help="strptime format of the times, e.g. '%%m/%%d/%%Y %%H:%%M'")
        parser.add_argument("--boot-time", help="when the machine started, for dmesg times that count from boot")
        parser.add_argument("--map", action="append", default=[], metavar="FIELD=COLUMN", help="CSV: which column")
        parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="the same in every row")
        parser.add_argument("--rejects", type=Path, help="where rejected lines go (default: FILE.rejects.csv)")
        parser.add_argument("--dry-run", action="store_true", help="say what would happen and store nothing")

    @translation.override("en")  # as all that the commands print
    def handle(self, *args: Any, **options: Any) -> None:
        contract = Contract.objects.filter(number=options["contract"]).first()
        if contract is None:
            raise CommandError(f"There is no contract {options['contract']}.", returncode=2)
        path: Path = options["file"]
        rejects = _Rejects(options["rejects"] or path.with_name(path.name + ".rejects.csv"))
        shown: list[str] = []

        def show(imported: Imported, answer: str) -> None:
            if options["dry_run"] and len(shown) < SHOWN:
                report = imported.report
                place = (report.get("where") or {}).get("node") or report["workload"]["run_id"]
                shown.append(f"  line {imported.line}: {report['phases']['started_at']} {place} → {answer}")

        try:
            spec = _spec(contract, options)
            with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                outcome = incidents_import(
                    contract=contract,
                    lines=_with_progress(file, path.stat().st_size, self.stderr),
                    spec=spec,
                    dry_run=options["dry_run"],
                    reject=rejects.write,
                    show=show,
                )
        except (SpecError, OSError) as error:
            raise CommandError(str(error), returncode=2) from error
        finally:
            rejects.close()
        self._summary(outcome, shown, dry_run=options["dry_run"])
        if outcome.rejected:
            raise CommandError(f"{outcome.rejected} lines were rejected; {rejects.path} says why.")

    def _summary(self, outcome: ImportOutcome, shown: list[str], *, dry_run: bool) -> None:
        for line in shown:
            self.stdout.write(line)
        known = outcome.results["duplicate"]
        verb = "would be imported" if dry_run else "imported"
        self.stdout.write(f"{outcome.results['created']} incidents {verb}, {known} known already")
        for what, number in sorted(outcome.counted.items()):
            self.stdout.write(f"{number} {what}")


class _Rejects:
    """The file of rejected lines; it exists only if there is one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)  # what an earlier run rejected
        self._file: TextIO | None = None

    def write(self, rejected: Rejected) -> None:
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8", newline="")
            csv.writer(self._file).writerow(REJECT_COLUMNS)
        csv.writer(self._file).writerow([rejected.line, cell(rejected.reason), cell(rejected.text)])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _spec(contract: Contract, options: dict[str, Any]) -> ImportSpec:
    return import_spec(
        contract=contract,
        format=options["format"],
        time_zone=options["time_zone"],
        fold=options["fold"],
        time_format=options["time_format"],
        boot_time=options["boot_time"],
        columns=pairs_read(options["map"], "--map"),
        constants=pairs_read(options["set"], "--set"),
    )


def _with_progress(file: TextIO, size: int, stderr: Any) -> Iterator[str]:
    """The lines of a file; a bar on the terminal says how far it is."""
    if not sys.stderr.isatty():
        yield from file
        return
    done, shown = 0, -1
    for line in file:
        yield line
        done += len(line.encode("utf-8", "replace"))
        percent = min(100, 100 * done // size) if size else 100
        if percent != shown:
            shown = percent
            stderr.write(f"\r[{'#' * (percent // 4):<25}] {percent:3d} %", ending="")
    stderr.write("\n", ending="")

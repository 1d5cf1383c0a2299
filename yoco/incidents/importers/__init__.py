"""The operators' own records as incident reports: CSV, Slurm accounting, kernel logs. Streaming, without a database."""

from collections.abc import Iterable, Iterator

from yoco.incidents.importers.csv import csv_read
from yoco.incidents.importers.dmesg import dmesg_read
from yoco.incidents.importers.records import Counted, Imported, ImportSpec, Record, Rejected, SpecError
from yoco.incidents.importers.sacct import sacct_read

__all__ = ["FORMATS", "Counted", "ImportSpec", "Imported", "Record", "Rejected", "SpecError", "records_read"]

FORMATS = {"csv": csv_read, "sacct": sacct_read, "dmesg": dmesg_read}


def records_read(lines: Iterable[str], spec: ImportSpec) -> Iterator[Record]:
    """Every line's fate, in order. Raises SpecError when the file as a whole cannot be read under this spec."""
    return FORMATS[spec.format](lines, spec)

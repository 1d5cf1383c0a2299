"""A folder or a ZIP file that is written file after file, each counted and hashed as it passes."""

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from yoco.core.problem import DomainError

ONLY_OURS = 0o600  # it holds names, addresses and contracts
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same content gives the same bytes


@dataclass(frozen=True, slots=True)
class Written:
    """A file of the archive. `rows` is the number of its lines, None where it is no table."""

    name: str
    sha256: str
    bytes: int
    rows: int | None


class Archive:
    """Where files are written, one at a time."""

    def __init__(self, root: Path | zipfile.ZipFile) -> None:
        self.written: list[Written] = []
        self._root = root

    def file(self, name: str, pieces: Iterable[bytes], *, is_table: bool = False) -> Written:
        """Writes one file from its pieces; of a table each piece is a line."""
        digest, size, number = hashlib.sha256(), 0, 0
        with self._open(name) as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += len(piece)
                number += 1
        done = Written(name, digest.hexdigest(), size, number if is_table else None)
        self.written.append(done)
        return done

    def manifest(self, about: dict[str, Any]) -> Written:
        """Written last: every file with its hash, its size and its number of rows."""
        content = {**about, "files": [asdict(file) for file in self.written]}
        text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        return self.file("manifest.json", [text.encode()])

    @contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        if isinstance(self._root, zipfile.ZipFile):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type, entry.external_attr, entry.create_system = zipfile.ZIP_DEFLATED, ONLY_OURS << 16, 3
            with self._root.open(entry, "w", force_zip64=True) as packed:
                yield packed
            return
        path = self._root / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with _new(path) as file:
            yield file


@contextmanager
def archive_create(to: Path) -> Iterator[Archive]:
    """A new folder, or a new ZIP file if the name says so; it gets its name once it is whole.

    Raises DomainError if there is something already.
    """
    part = to.with_name(to.name + ".part")
    for path in (to, part):
        if path.exists():
            raise DomainError(f"{path} exists already; remove it, or name another.", code="exists")
    try:
        if to.suffix == ".zip":
            with _new(part) as file, zipfile.ZipFile(file, "w") as packed:
                yield Archive(packed)
        else:
            part.mkdir(mode=0o700)
            yield Archive(part)
        part.rename(to)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)
        raise


def _new(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, ONLY_OURS), "wb")

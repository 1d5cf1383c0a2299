"""The files of a kept state (see `agent.kept`), as workers write and read them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import BinaryIO

from agent.journal import Entry, Journal
from agent.kept import META, CannotResume
from agent.state import Registry
from agent.transport import Segments, root_digest

_DIGEST_BYTES = 16


def write_part(path: Path, registry: Registry, journal: Journal, version: int) -> str:
    """Write one part, durable on return; its digest. Raises OSError."""
    small, entries = registry.export(), journal.to_bytes()
    segments = Segments(registry.leaves(), memoryview(small))
    header = {"version": version, "manifest": registry.manifest(), "small": len(small), "journal": len(entries)}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    digests: list[bytes] = []
    with unfinished.open("wb") as file:
        file.write(json.dumps(header, separators=(",", ":")).encode() + b"\n" + entries)
        for index, pieces in enumerate(segments.parts):
            digests.append(segments.digest(index))
            for piece in pieces:
                file.write(piece)
            file.write(digests[-1])
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    return root_digest(digests)


def read_part(path: Path, registry: Registry, digest: str, version: int) -> list[Entry]:
    """Fill `registry`; returns the journal. Raises CannotResume, or StateMismatch if the model is another one."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline())
            entries = _exactly(file, header["journal"])
            small = bytearray(header["small"])
            segments = Segments(registry.prepare(header["manifest"]), memoryview(small))
            found: list[bytes] = []
            for index, pieces in enumerate(segments.parts):
                for piece in pieces:
                    if file.readinto(piece) != len(piece):
                        raise CannotResume(f"{path} is shorter than it was; it cannot be used")
                found.append(segments.digest(index))
                if file.read(_DIGEST_BYTES) != found[-1]:
                    raise CannotResume(f"{path} is damaged; it cannot be used")
    except (OSError, ValueError, KeyError) as error:
        raise CannotResume(f"{path} cannot be read: {error}") from error
    if header["version"] != version or root_digest(found) != digest:
        raise CannotResume(f"{path} is not the state that {META} describes; it cannot be used")
    segments.write_back()
    registry.received(bytes(small))
    return Journal.parse(entries)


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise CannotResume("the file is shorter than it was; it cannot be used")
    return data

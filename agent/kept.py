"""The last consistent state on disk, for a run that must end: written by the survivors, read by the next run.

Not a checkpoint, which is taken while all is well: it is written only when the coordinator ends a run whose workers
still hold the state. A run that begins from it goes on exactly where the other one stood, bit for bit.

`meta.json`, written last, describes the files. Each holds one part of the state (see `Sharding`): a line of JSON,
the journal, then the state as a peer would receive it, each segment followed by its xxh3-128.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

META = "meta.json"


class CannotResume(RuntimeError):
    """The kept state is missing, damaged, or of another run; the message says which and what to do."""


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Complete what the workers have written: from now on it counts."""
    unfinished = folder / f".{META}"
    with unfinished.open("w") as file:
        json.dump(meta, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(folder / META)


def read_meta(folder: Path) -> dict[str, Any]:
    """What was kept. Raises CannotResume."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text())
        for name in ("version", "samples", "workers", "parts", "files"):
            meta[name]
    except (OSError, ValueError, KeyError) as error:
        raise CannotResume(f"{folder} holds no kept state: {error}") from error
    return meta

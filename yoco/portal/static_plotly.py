"""Serves the plotly.js that the Python package brings, so that no copy of five megabytes lives in the repository."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

PREFIX = "vendor"
NAME = "plotly.min.js"


class PlotlyFinder(BaseFinder):
    """Knows one static file, `vendor/plotly.min.js`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        spec = find_spec("plotly")  # found, not imported: the server draws nothing
        assert spec is not None
        assert spec.origin is not None
        self.storage = FileSystemStorage(location=str(Path(spec.origin).parent / "package_data"))
        self.storage.prefix = PREFIX  # type: ignore[attr-defined]

    def check(self, **kwargs: Any) -> list[Any]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        """The file's place, or a list of places if all are asked for."""
        found = [self.storage.path(NAME)] if path == f"{PREFIX}/{NAME}" else []
        return found if find_all or not found else found[0]

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[Any]:
        """The one file with its storage."""
        yield NAME, self.storage

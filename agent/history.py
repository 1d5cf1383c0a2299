"""Values that the script logged, per committed step and rank; every worker holds all of them."""

from __future__ import annotations

from typing import Any

import numpy as np


class History:
    """Rows of committed steps. A step that is redone appears once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._rows: list[list[tuple[float, ...]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, by_rank: list[tuple[float, ...]]) -> None:
        self._rows.append(by_rank)

    def values(self, name: str) -> list[list[float]]:
        """`values("loss")[step][rank]`. Raises KeyError if nothing of that name was logged."""
        if name not in self.names:
            raise KeyError(f"nothing was logged as {name!r}; logged: {', '.join(self.names) or 'nothing'}")
        column = self.names.index(name)
        return [[logged[column] if column < len(logged) else float("nan") for logged in row] for row in self._rows]

    def state_dict(self) -> dict[str, Any]:
        width = len(self.names)
        rows = np.array(
            [[(*logged, *([np.nan] * (width - len(logged))))[:width] for logged in row] for row in self._rows],
            dtype=np.float64,
        )
        return {"names": list(self.names), "rows": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.names = list(state["names"])
        self._rows = [[tuple(float(item) for item in logged) for logged in row] for row in state["rows"]]

"""A simulated source of GPU readings, for demonstrations and drills on machines without a GPU.

It must be asked for by name (`agent run --simulated-nvml FILE`), and every verdict that follows carries
`"source": "simulated"` in its evidence. The control file is read anew at each poll, one `key value` per line:

    gpus 2                          number of GPUs; they are GPU-sim-0, GPU-sim-1
    1.ecc_volatile_corrected 65     a field of `GpuReading` of GPU 1; what is absent is None
    0.lost 1                        GPU 0 has fallen off the bus
    xid.0 1 79                      first XID: GPU 1, code 79;  xid.1 ...  the next
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from agent.health.nvml import NvmlUnavailable
from agent.health.verdict import GpuReading, XidEvent

_POLL_S = 0.05
_COUNTS = (
    "ecc_volatile_corrected",
    "ecc_volatile_uncorrected",
    "ecc_aggregate_corrected",
    "ecc_aggregate_uncorrected",
    "rows_remapped_corrected",
    "rows_remapped_uncorrected",
    "temperature",
    "slowdown_temperature",
)
_FLAGS = ("row_remap_pending", "row_remap_failed")


class SimulatedSource:
    """GPUs whose values a file sets. Raises NvmlUnavailable without the file."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._told = 0
        if "gpus" not in self._values():
            raise NvmlUnavailable(f"{control} describes no simulated GPU; the agent goes on without GPU health.")

    def readings(self) -> list[GpuReading]:
        """One reading per simulated GPU, now."""
        values = self._values()
        return [self._reading(values, index) for index in range(int(values.get("gpus", "0")))]

    def _reading(self, values: dict[str, str], index: int) -> GpuReading:
        mine = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{index}.")}
        return GpuReading(
            gpu_uuid=f"GPU-sim-{index}",
            at=datetime.now(UTC),
            seconds=time.monotonic(),
            name="Simulated GPU",
            source="simulated",
            lost=mine.get("lost") == "1",
            **{name: int(mine[name]) for name in _COUNTS if name in mine},  # type: ignore[arg-type]
            **{name: mine[name] == "1" for name in _FLAGS if name in mine},  # type: ignore[arg-type]
        )

    def xids(self, timeout_s: float) -> list[XidEvent]:
        """Wait at most `timeout_s` for the next XID in the file."""
        deadline = time.monotonic() + timeout_s
        while True:
            told = self._values().get(f"xid.{self._told}")
            if told is not None:
                self._told += 1
                gpu, code = told.split()
                return [XidEvent(int(code), datetime.now(UTC), time.monotonic(), "simulated", f"GPU-sim-{gpu}")]
            if time.monotonic() > deadline:
                return []
            time.sleep(_POLL_S)

    def gpu_uuid(self, pci: str) -> str | None:
        """Simulated GPUs have no PCI address."""
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _values(self) -> dict[str, str]:
        try:
            lines = self._control.read_text().splitlines()
        except FileNotFoundError:
            return {}
        return {key: value.strip() for key, _, value in (line.partition(" ") for line in lines)}

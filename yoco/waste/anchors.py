"""Published failure rates to compare with. Facts from their sources; each says whether it was measured or projected.

Points of different sources, or measured and projected ones, are never put on one line: the HPCA 2025 fleet's rate
gives 28.85 h at 1,024 GPUs, where 7.9 h was measured.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RateAnchor:
    """Failures per 1,000 node-days of nodes with eight GPUs."""

    code: str
    source: str
    rate: float


@dataclass(frozen=True, slots=True)
class MttfAnchor:
    """Mean hours between failures of one job."""

    source: str
    gpus: int
    hours: float
    basis: Literal["measured", "projected"]
    interval: tuple[float, float] | None = None


RATES = (
    RateAnchor("rsc_2", "Meta RSC-2, HPCA 2025", 2.34),
    RateAnchor("bloom", "BLOOM", 3.0),
    RateAnchor("llama_3", "Llama 3", 3.79),
    RateAnchor("default", "YOCO", 4.0),
    RateAnchor("public_trace", "Public trace of 400 servers", 4.18),
    RateAnchor("rsc_1", "Meta RSC-1, HPCA 2025", 6.50),
    RateAnchor("h200_cloud", "H200 cloud", 8.4),
)
DEFAULT_RATE = 4.0

MTTF = (
    MttfAnchor("Meta, HPCA 2025", 1024, 7.9, "measured"),
    MttfAnchor("Meta, HPCA 2025", 16_384, 1.8, "projected"),
    MttfAnchor("Meta, HPCA 2025", 131_072, 0.23, "projected"),
    MttfAnchor("Llama 3", 16_384, 3.093, "measured", (2.811, 3.412)),
)


def rate_of(code: str) -> float:
    """The published rate with this code. Raises KeyError for an unknown one."""
    return {anchor.code: anchor.rate for anchor in RATES}[code]

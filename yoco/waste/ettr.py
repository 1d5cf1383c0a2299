"""The effective training time ratio: how much of a job's time moves the training on. Pure.

Symbols: Δ checkpoint interval, w time to write one, u0 restart, q wait for a replacement, λ failures per unit of time
of the whole job. All times in the same unit.
"""

from math import exp, expm1, inf, isfinite, sqrt


def _checked(**values: float) -> None:
    for name, value in values.items():
        if not isfinite(value) or value < 0:
            raise ValueError(f"{name} must be a finite number, zero or more.")


def ettr_renewal(
    *, interval: float, failure_rate: float, restart: float, write: float = 0.0, wait: float = 0.0
) -> float:
    """Δ / [(1/λ + u0 + q)(e^{λ(Δ+w)} - 1)]: the exact form when failures are a Poisson process (Daly 2006).

    Without failures it is Δ / (Δ + w). Raises ValueError for a negative value or no interval.
    """
    _checked(interval=interval, failure_rate=failure_rate, restart=restart, write=write, wait=wait)
    if interval == 0:
        raise ValueError("The checkpoint interval must be more than zero.")
    exponent = failure_rate * (interval + write)
    # Beyond this the job never gets from one checkpoint to the next.
    if exponent > 700:
        return 0.0
    # The same as above, without 1/λ: that is infinite for the smallest rates.
    growth = expm1(exponent) / exponent if exponent > 0 else 1.0
    return interval / ((1 + failure_rate * (restart + wait)) * (interval + write) * growth)


def ettr_linear(*, interval: float, failure_rate: float, restart: float, write: float = 0.0) -> float:
    """(1 - λ(u0 + Δ/2)) / (1 + w/Δ): the published first-order form (Meta, HPCA 2025), at least zero.

    Raises ValueError for a negative value or no interval.
    """
    _checked(interval=interval, failure_rate=failure_rate, restart=restart, write=write)
    if interval == 0:
        raise ValueError("The checkpoint interval must be more than zero.")
    return max(0.0, 1 - failure_rate * (restart + interval / 2)) / (1 + write / interval)


def checkpoint_interval_optimal(*, failure_rate: float, write: float) -> float:
    """√(2w/λ) (Young 1974); infinite without failures. Raises ValueError for a negative value."""
    _checked(failure_rate=failure_rate, write=write)
    return inf if failure_rate == 0 else sqrt(2 * write / failure_rate)


def survival(*, failure_rate: float, duration: float) -> float:
    """The chance that a job meets no failure for so long, at a constant rate."""
    _checked(failure_rate=failure_rate, duration=duration)
    return exp(-failure_rate * duration)

"""How many spare nodes a fleet needs. Pure.

Nodes under repair at one moment: Poisson with mean N·r_f·repair when repair is short against the time between failures
of one node, binomial with p = repair / (repair + MTTF of a node) otherwise. Both take failures as independent.
"""

from typing import Literal

from scipy.special import bdtr, pdtr

Method = Literal["poisson", "binomial"]


def nodes_down(*, nodes: int, rate: float, repair_hours: float) -> float:
    """Mean number of nodes under repair (Little's law); `rate` in failures per 1,000 node-days."""
    return nodes * rate / 24_000 * repair_hours


def chance_enough(*, spares: int, nodes: int, rate: float, repair_hours: float, method: Method = "poisson") -> float:
    """The chance that no more than `spares` nodes are under repair at a moment. Raises ValueError for no node."""
    if nodes <= 0 or spares < 0 or rate < 0 or repair_hours < 0:
        raise ValueError("Nodes must be positive, all else zero or more.")
    if spares >= nodes:
        return 1.0
    if method == "poisson":
        return float(pdtr(spares, nodes_down(nodes=nodes, rate=rate, repair_hours=repair_hours)))
    hours_between = 24_000 / rate if rate else float("inf")
    return float(bdtr(spares, nodes, repair_hours / (repair_hours + hours_between)))


def spares_for(*, target: float, nodes: int, rate: float, repair_hours: float, method: Method = "poisson") -> int:
    """The smallest pool that is enough with at least the chance `target`. Raises ValueError unless 0 < target < 1."""
    if not 0 < target < 1:
        raise ValueError("The target is a chance above 0 and below 1.")
    low, high = 0, nodes
    while low < high:
        middle = (low + high) // 2
        if chance_enough(spares=middle, nodes=nodes, rate=rate, repair_hours=repair_hours, method=method) >= target:
            high = middle
        else:
            low = middle + 1
    return low

"""Live migration of PyTorch training state to a hot spare. Start with `agent.Agent`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent.api import Agent

__version__ = "0.1.0"
__all__ = ["Agent", "__version__"]


def __getattr__(name: str) -> Any:
    # The control plane imports this package without torch, so that it starts in a fraction of a second.
    if name == "Agent":
        from agent.api import Agent

        return Agent
    raise AttributeError(f"module 'agent' has no attribute {name!r}")

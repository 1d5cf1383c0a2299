"""GPU health.

What NVML and the kernel log show, and when a worker should leave its GPU before that GPU fails.
"""

from agent.health.monitor import HealthMonitor
from agent.health.policy import HealthPolicy
from agent.health.verdict import HealthVerdict

__all__ = ["HealthMonitor", "HealthPolicy", "HealthVerdict"]

"""The agent's benchmarks. Those that measure one thing in turn with another keep both in one run."""

from tools.bench import agent_detect, agent_overhead, agent_planned, agent_recovery, agent_torchft

BENCHES = (
    agent_recovery.BENCH,
    agent_torchft.BENCH,
    agent_planned.TRANSFERS,
    agent_planned.PAUSES,
    agent_overhead.BENCH,
    agent_detect.BENCH,
)

"""What the process of `tests.agent.zygote` imports before it forks."""

import agent.cli
from agent.process import preload

assert agent.cli
preload()

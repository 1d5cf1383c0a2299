"""Joins a run as a second node that offers spares.

python -m tests.agent.join STATE_DIR NODE SPARES SCRIPT [ARGUMENT …]
"""

import sys
from pathlib import Path

from agent import control
from agent.node import NodeAgent, Script
from agent.settings import Limits
from agent.watch import Watch

state, node, spares, *command = sys.argv[1:]
address, secret = control.read(Path(state))
script = Script(
    command=command,
    run_id="joined",
    node=node,
    host="127.0.0.1",
    coordinator=address,
    secret=secret.decode(),
    world_size=2,
    local_workers=0,
    first_rank=0,
    streams=2,
    limits=Limits(),
    master_port=address[1],
    forks=True,
    watch=Watch(enabled=False),
)


class Elsewhere:
    """The coordinator runs beside the first node's launcher, which restarts it."""

    def watch(self) -> None:
        pass

    def kill(self) -> None:
        pass


sys.exit(NodeAgent(script, int(spares), Elsewhere()).run())

"""`python -m agent …`: the commands of the agent and their options."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from dataclasses import fields
from pathlib import Path

from agent import __version__, launch, planned, tls, watch
from agent.health import cli as health_cli
from agent.job import WITHOUT_SPARE
from agent.network import ANY_PORT, Ports, parse_ports
from agent.reporting import cli as reporting_cli
from agent.settings import SECRET_VARIABLE, Limits
from agent.wal import LogDamaged, LogInUse

RUN = """Starts SCRIPT once for each worker and spare, with an environment as torchrun's, and replaces a lost
worker by a spare without losing a step. On several hosts start the same command on each, with its own
--node-rank; the first host (0) coordinates. A host that is started again after training has begun, or
added with `agent join`, offers all its processes as spares."""

EXAMPLES = """examples:
  one host        python -m agent run --workers 4 --spares 1 train.py --epochs 3
  several hosts   export YOCO_SECRET=...   # the same on all hosts
                  python -m agent run --nnodes 2 --node-rank $R --rdzv-endpoint node-0:7000 \\
                      --workers 8 --spares 1 train.py
  more spares     python -m agent join --rdzv-endpoint node-0:7000 --spares 8
  move a rank     python -m agent drain RUN --rank 3
"""


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0, 1 (the run failed) or 2 (it could not start)."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status: int = options.command(options)
    except (launch.Usage, LogDamaged, LogInUse) as error:
        print(f"agent: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agent", description="Live migration of PyTorch training to hot spares."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_join(commands)
    _add_takeover(commands)
    planned.add_commands(commands)
    health_cli.add_commands(commands)
    reporting_cli.add_commands(commands)
    coordinator = commands.add_parser("coordinator")
    coordinator.add_argument("--fd", type=int, required=True)
    coordinator.add_argument("--state-dir", type=Path, required=True)
    coordinator.set_defaults(command=launch.coordinate)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="start a training script with workers and spares",
        description=RUN,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "--workers",
        "--nproc-per-node",
        "--nproc_per_node",
        type=_positive,
        default=_torchrun("NPROC_PER_NODE"),
        required=_torchrun("NPROC_PER_NODE") is None,
        metavar="N",
        help="ranks on this host; the run has as many on each of its hosts",
    )
    run.add_argument("--spares", type=_natural, default=1, metavar="M", help="idle processes on this host (1)")
    _add_host(run)
    run.add_argument("--state-dir", type=Path, help="log and incidents.jsonl (default build/agent/RUN)")
    run.add_argument("--streams", type=_positive, default=2, help="TCP streams for moving state (2)")
    run.add_argument("--gpus", type=_natural, help="GPUs of the run, for reports (default: its workers)")
    run.add_argument("--gpu-model", default="none", help="GPU model, for reports")
    run.add_argument(
        "--without-spare",
        choices=WITHOUT_SPARE,
        default="wait",
        help="a rank is lost and no spare is free: wait for one (as long as --spare-limit, then stop; the default), "
        "shrink (go on with fewer workers until a spare comes; DDP only), or stop",
    )
    run.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="begin with the state that a run kept when it had to stop (STATE/kept), as many workers",
    )
    run.add_argument(
        "--drain-on-sigterm",
        type=_seconds,
        metavar="SECONDS",
        help="SIGTERM to a worker moves its rank, to the launcher all ranks of its node, "
        "with so much notice before the scheduler kills; a second SIGTERM ends the process",
    )
    run.add_argument(
        "--nan-checks",
        action="store_true",
        help="replace a rank whose loss, gradients or parameters are not finite where the others' are (a sick device)",
    )
    several = _add_hosts(run)
    several.add_argument(
        "--nnodes", type=_positive, default=_torchrun("NNODES", "1"), metavar="N", help="hosts of the run (1)"
    )
    several.add_argument(
        "--node-rank",
        "--node_rank",
        type=_natural,
        default=_torchrun("NODE_RANK", "0"),
        metavar="R",
        help="this host's number, from 0; 0 coordinates",
    )
    several.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="what the coordinator binds, where that is not --rdzv-endpoint, e.g. 0.0.0.0:7000 (127.0.0.1, any port)",
    )
    others = run.add_argument_group("other runs", "a run without a free spare takes places of one with lower priority")
    others.add_argument("--pool", type=Path, metavar="DIR", help="a directory that is given to all runs of these hosts")
    others.add_argument("--priority", type=int, default=0, metavar="N", help="higher goes first (0)")
    others.add_argument(
        "--preemptible",
        action="store_true",
        help="let runs of higher priority take places: it goes on with fewer workers (with --without-spare shrink) "
        "or ends with its state kept",
    )
    reports = run.add_argument_group("reports", "what the agent tells the service about incidents")
    reports.add_argument("--run-id", default=time.strftime("run-%Y%m%d-%H%M%S"), help="the run's name in reports")
    reports.add_argument("--spool", type=Path, help="reports on disk until the service has them (STATE/spool)")
    reports.add_argument("--report-url", help="the service, e.g. https://yoco.example; without it reports stay on disk")
    reports.add_argument("--report-key-env", metavar="NAME", help="environment variable that holds the service's key")
    watch.add_options(run)
    limits = run.add_argument_group("limits", "every wait is bounded")
    for limit in fields(Limits):
        limits.add_argument(
            f"--{limit.name}-limit",
            type=_seconds,
            default=limit.default,
            metavar="SECONDS",
            help=f"{_LIMITS[limit.name]} ({limit.default:g})",
        )
    run.add_argument("script", help="the training script")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(command=launch.run)


def _add_join(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    join = commands.add_parser(
        "join",
        help="add this host's processes to a run, as spares",
        description="Starts spares on this host for a run that may already train. What to run and all limits come "
        "from the run; the host leaves it with SIGTERM, or by `agent drain RUN --node NAME`.",
    )
    join.add_argument("--spares", type=_positive, default=1, metavar="M", help="processes to offer (1)")
    join.add_argument("--state-dir", type=Path, help="the run's, on a shared disk: it has address and secret")
    _add_host(join)
    _add_hosts(join)
    watch.add_options(join)
    join.add_argument("script", nargs="?", help="the training script, where its path differs on this host")
    join.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    join.set_defaults(command=launch.join, node_rank=None)


def _add_takeover(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    takeover = commands.add_parser(
        "takeover",
        help="coordinate a run whose first host is lost",
        description="Goes on from the coordinator's log, on a host that now has the address of --rdzv-endpoint (a name "
        "or floating address that was moved here). Workers wait for it as long as --coordinator-limit; the ranks of "
        "the lost host go to spares. Exit status as of `agent run`.",
    )
    takeover.add_argument("--state-dir", type=Path, required=True, help="the run's, on a disk that survived")
    takeover.add_argument("--listen", metavar="HOST:PORT", help="what to bind (the address that the run was given)")
    takeover.set_defaults(command=launch.take_over)


def _add_host(parser: argparse.ArgumentParser) -> None:
    """Options about this host's processes."""
    parser.add_argument("--node", default=socket.gethostname(), help="this host's name in reports; no two may be equal")
    parser.add_argument(
        "--start",
        choices=["auto", "spawn", "fork"],
        default="auto",
        help="fork workers from one process that has imported torch, or a fresh interpreter for each "
        "(auto: fork where there is no GPU)",
    )
    parser.add_argument(
        "--respawn",
        type=_natural,
        default=0,
        metavar="N",
        help="start up to N new spares in the places of processes that were lost (0)",
    )
    parser.add_argument(
        "--own-gpu",
        action="store_true",
        help="show each process only one GPU, as device 0; otherwise it sees all and uses LOCAL_RANK, as with torchrun",
    )


def _add_hosts(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Options that several hosts need."""
    several = parser.add_argument_group("several hosts", f"all of them need the same secret, in {SECRET_VARIABLE}")
    several.add_argument(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        default=_torchrun("RDZV_ENDPOINT"),
        metavar="HOST:PORT",
        help="where the first host's coordinator is found",
    )
    several.add_argument("--address", metavar="HOST", help="this host's address for its peers (that towards the first)")
    several.add_argument(
        "--port-range",
        type=_ports,
        default=ANY_PORT,
        metavar="LOW-HIGH",
        help="where workers listen for state and rendezvous, two ports each (any free port); gloo takes any",
    )
    for option, what in (
        ("cert", "this host's certificate"),
        ("key", "its private key"),
        ("ca", "the authority whose certificates are accepted"),
    ):
        variable = tls.VARIABLES[option]
        several.add_argument(f"--tls-{option}", type=Path, metavar="FILE", help=f"TLS: {what} (PEM; or {variable})")
    several.add_argument("--secret-file", type=Path, metavar="FILE", help=f"in place of {SECRET_VARIABLE}")
    several.add_argument(
        "--join-limit", type=_seconds, default=300.0, metavar="SECONDS", help="wait for the first host to answer (300)"
    )
    return several


_LIMITS = {
    "start": "launch until all workers are ready",
    "quiesce": "broken epoch until all survivors stand still",
    "form": "plan until all members hold the state and are connected",
    "spare": "wait for a spare when none is free",
    "settle": "broken connection without a death until reconnecting",
    "heartbeat": "silence after which a worker is lost",
    "hang": "a step without progress after which a worker is hung",
    "coordinator": "wait for an unreachable coordinator",
}


def _torchrun(name: str, default: str | None = None) -> str | None:
    """The default that torchrun would take from the environment."""
    return os.environ.get(f"PET_{name}", default)


def _ports(text: str) -> Ports:
    try:
        return parse_ports(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return value

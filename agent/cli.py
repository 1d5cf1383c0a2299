"""`python -m agent run …`: the commands of the agent."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
import sys
import time
from dataclasses import fields
from pathlib import Path

from agent import __version__, control, faults, planned, watch
from agent.coordinator import Coordinator
from agent.evidence import Evidence
from agent.health import cli as health_cli
from agent.node import NodeAgent, Script
from agent.process import has_gpus
from agent.reporting import IncidentReporter
from agent.reporting import cli as reporting_cli
from agent.run_state import Job
from agent.settings import SECRET_VARIABLE, Limits, job_secret
from agent.supervisor import ABANDONED, CoordinatorProcess
from agent.wal import LogDamaged
from agent.wire import format_address, parse_address


class Usage(Exception):
    """The command cannot start; the message says what is wrong and what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0, 1 (the run failed) or 2 (it could not start)."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        status: int = (options.command if "command" in options else options.run)(options)
    except (Usage, LogDamaged) as error:
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
    run = commands.add_parser(
        "run",
        help="start a training script with workers and spares",
        description="Starts SCRIPT once for each worker and spare on this machine, with an environment as "
        "torchrun's, and replaces a lost worker by a spare without losing a step.",
    )
    run.add_argument("--workers", type=_positive, required=True, help="ranks that train together")
    run.add_argument("--spares", type=_natural, default=1, help="idle processes that can take a rank (default 1)")
    run.add_argument("--state-dir", type=Path, help="log and incidents.jsonl (default build/agent/RUN)")
    run.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="the coordinator's address")
    run.add_argument("--node", default=socket.gethostname(), help="this machine's name in reports")
    run.add_argument("--streams", type=_positive, default=2, help="TCP streams for moving state (default 2)")
    run.add_argument(
        "--start",
        choices=["auto", "spawn", "fork"],
        default="auto",
        help="fork workers from one process that has imported torch, or a fresh interpreter for each "
        "(auto: fork where there is no GPU)",
    )
    run.add_argument("--gpus", type=_natural, help="GPUs of the run, for reports (default: workers)")
    run.add_argument("--gpu-model", default="none", help="GPU model, for reports")
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
    _add_reporting(run)
    watch.add_options(run)
    for limit in fields(Limits):
        run.add_argument(
            f"--{limit.name}-limit", type=_seconds, default=limit.default, metavar="SECONDS", help=_LIMITS[limit.name]
        )
    run.add_argument("script", help="the training script")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    run.set_defaults(command=_run)
    planned.add_commands(commands)
    health_cli.add_commands(commands)
    reporting_cli.add_commands(commands)
    coordinator = commands.add_parser("coordinator")
    coordinator.add_argument("--fd", type=int, required=True)
    coordinator.add_argument("--workers", type=int, required=True)
    coordinator.add_argument("--spares", type=int, required=True)
    coordinator.add_argument("--state-dir", type=Path, required=True)
    coordinator.add_argument("--gpus", type=int)
    coordinator.add_argument("--gpu-model")
    coordinator.add_argument("--node")
    _add_reporting(coordinator)
    for limit in fields(Limits):
        coordinator.add_argument(f"--{limit.name}-limit", type=float, default=limit.default)
    coordinator.set_defaults(command=_coordinate)
    return parser


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


def _add_reporting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-id", default=time.strftime("run-%Y%m%d-%H%M%S"), help="the run's name in reports")
    parser.add_argument("--spool", type=Path, help="reports on disk until the service has them (default STATE/spool)")
    parser.add_argument("--report-url", help="the service, e.g. https://yoco.example; without it reports stay on disk")
    parser.add_argument("--report-key-env", metavar="NAME", help="environment variable that holds the service's key")


def _run(options: argparse.Namespace) -> int:
    script = Path(options.script)
    if not script.is_file():
        raise Usage(f"there is no script {script}; give the path of a Python file")
    if options.report_url and not options.report_key_env:
        raise Usage("--report-url needs --report-key-env NAME, the variable that holds the agent's key")
    if options.report_key_env and not os.environ.get(options.report_key_env):
        raise Usage(f"{options.report_key_env} is not set; put the agent's key into it")
    if options.report_url is None:
        print("agent: no --report-url: incidents are kept on disk only", file=sys.stderr)
    folder = options.state_dir or Path("build/agent") / options.run_id
    try:
        address = parse_address(options.listen)
        listener = socket.create_server(address)
    except ValueError as error:
        raise Usage(str(error)) from error
    except OSError as error:
        raise Usage(
            f"cannot listen on {options.listen}: {_reason(error)}; choose another with --listen HOST:PORT"
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Usage(f"cannot write to {folder}: {_reason(error)}; choose another with --state-dir") from error
    if (folder / "coordinator.wal").exists():
        raise Usage(f"{folder} holds the log of an earlier run; choose another --state-dir or --run-id")
    os.environ.setdefault(SECRET_VARIABLE, secrets.token_urlsafe(32))
    os.environ.setdefault("YOCO_FAULTS_DIR", str(folder.resolve()))
    host, port = listener.getsockname()[:2]
    control.write(folder, (host, port), os.environ[SECRET_VARIABLE])
    coordinator = CoordinatorProcess(_coordinator_command(options, listener, folder), listener.fileno())
    job = Script(
        command=[options.script, *options.arguments],
        run_id=options.run_id,
        node=options.node,
        host=host,
        coordinator=(host, port),
        secret=os.environ[SECRET_VARIABLE],
        world_size=options.workers,
        local_workers=options.workers,
        first_rank=0,
        streams=options.streams,
        limits=_limits(options),
        master_port=port,
        forks=options.start == "fork" or (options.start == "auto" and not has_gpus()),
        sigterm_notice=options.drain_on_sigterm,
        nan_checks=options.nan_checks,
        watch=watch.from_options(options),
        private_descriptors=[listener.fileno()],
    )
    status = 1
    try:
        status = NodeAgent(job, options.spares, coordinator).run()
    except OSError as error:
        raise Usage(f"the coordinator at {format_address((host, port))} does not answer: {error}") from error
    finally:
        final = coordinator.close(30 if status == 0 else 20)
    return 0 if status == final == 0 else 1


def _coordinator_command(options: argparse.Namespace, listener: socket.socket, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "agent", "coordinator", "--fd", str(listener.fileno())]
    command += ["--workers", str(options.workers), "--spares", str(options.spares)]
    command += ["--state-dir", str(folder), "--run-id", options.run_id, "--node", options.node]
    command += ["--gpu-model", options.gpu_model, "--gpus", str(options.gpus or options.workers)]
    for name in ("spool", "report_url", "report_key_env"):
        if getattr(options, name) is not None:
            command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    for limit in fields(Limits):
        command += [f"--{limit.name}-limit", str(getattr(options, f"{limit.name}_limit"))]
    return command


def _coordinate(options: argparse.Namespace) -> int:
    faults.script.who = "coordinator"
    secret = job_secret()
    workload = {
        "run_id": options.run_id,
        "name": options.run_id,
        "framework": "pytorch",
        "agent_version": __version__,
        "world_size": options.workers,
        "gpus": options.gpus,
        "gpu_model": options.gpu_model,
        "gpus_per_node": options.gpus,
    }
    reporter = IncidentReporter(
        options.spool or options.state_dir / "spool",
        options.report_url,
        os.environ.get(options.report_key_env) if options.report_key_env else None,
        f"{options.node}/{options.run_id}",
        workload,
    )
    evidence = Evidence(options.state_dir, options.run_id, reporter, online=options.report_url is not None)
    job = Job(options.run_id, options.workers, options.spares, _limits(options))
    listener = socket.socket(fileno=options.fd)
    listener.setblocking(False)
    finished = asyncio.run(Coordinator(job, secret, options.state_dir, evidence).run(listener))
    return 0 if finished else ABANDONED


def _limits(options: argparse.Namespace) -> Limits:
    return Limits(**{limit.name: getattr(options, f"{limit.name}_limit") for limit in fields(Limits)})


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


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

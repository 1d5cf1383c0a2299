"""Starting a run: the first host's launcher with the coordinator beside it, and those that other hosts add."""

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

from agent import __version__, control, faults, tls, watch
from agent.coordinator import Coordinator
from agent.evidence import Evidence
from agent.job import Job
from agent.kept import CannotResume, read_meta
from agent.network import address_towards, is_wildcard, listen
from agent.node import Elsewhere, NodeAgent, Script
from agent.preemption import register
from agent.process import has_gpus
from agent.reporting import IncidentReporter
from agent.settings import SECRET_VARIABLE, Limits, job_secret
from agent.supervisor import ABANDONED, CoordinatorProcess
from agent.wire import Address, PeerRefused, format_address, parse_address

JOIN_POLL_SECONDS = 0.5


class Usage(Exception):
    """The command cannot start; the message says what is wrong and what to do."""


# The first host --------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """`agent run`: coordinate and launch on the first host, or add a host that has ranks of its own."""
    script = Path(options.script)
    if not script.is_file():
        raise Usage(f"there is no script {script}; give the path of a Python file")
    _set_tls(options)
    if not 0 <= options.node_rank < options.nnodes:
        raise Usage(f"--node-rank {options.node_rank} is not among 0 to {options.nnodes - 1} (--nnodes)")
    if options.nnodes > 1 and options.rdzv_endpoint is None:
        raise Usage("several hosts need --rdzv-endpoint HOST:PORT, the address of the first one, on all of them")
    if options.node_rank:
        return _add_host(options, options.rdzv_endpoint)
    _check_reporting(options)
    if options.preemptible and options.pool is None:
        raise Usage("--preemptible needs --pool DIR, where other runs find this one")
    _check_resume(options)
    if options.nnodes > 1 and not (options.secret_file or os.environ.get(SECRET_VARIABLE)):
        raise Usage(
            f"several hosts need one secret: put the same {SECRET_VARIABLE} into the environment of each, "
            "or a file with --secret-file; `openssl rand -hex 32` makes one"
        )
    listener, host = _listen(options)
    address = (host, listener.getsockname()[1])
    folder = options.state_dir or Path("build/agent") / options.run_id
    job = _job(options)
    secret = _secret(options) or secrets.token_urlsafe(32)
    os.environ[SECRET_VARIABLE] = secret
    os.environ.setdefault("YOCO_FAULTS_DIR", str(folder.resolve()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "coordinator.wal").exists():
            raise Usage(f"{folder} holds the log of an earlier run; choose another --state-dir or --run-id")
        job.write(folder)
        offer = register(job, folder)
        control.write(folder, address, secret)
    except OSError as error:
        raise Usage(f"cannot write to {folder}: {_reason(error)}; choose another with --state-dir") from error
    coordinator = CoordinatorProcess(coordinator_command(listener, folder), listener.fileno())
    place = _script(options, job, address, secret, host, first_rank=0, command=job.command, private=[listener.fileno()])
    status = 1
    try:
        status = NodeAgent(place, options.spares, coordinator).run()
    except OSError as error:
        raise Usage(f"the coordinator at {format_address(address)} does not answer: {error}") from error
    finally:
        final = coordinator.close(30 if status == 0 else 20)
        if offer is not None:
            offer.unlink(missing_ok=True)
    return 0 if status == final == 0 else 1


def _listen(options: argparse.Namespace) -> tuple[socket.socket, str]:
    """The coordinator's socket, and the host under which others find it."""
    wanted = options.listen or options.rdzv_endpoint or "127.0.0.1:0"
    try:
        host, port = parse_address(wanted)
        listener = listen(host, (port, port))
        listener.listen(512)
    except ValueError as error:
        raise Usage(str(error)) from error
    except OSError as error:
        raise Usage(f"cannot listen on {wanted}: {_reason(error)}; choose another with --listen HOST:PORT") from error
    if options.rdzv_endpoint:
        host = _endpoint(options.rdzv_endpoint)[0]
    elif is_wildcard(host):
        raise Usage(f"{host} is no address to be found at; say which with --rdzv-endpoint HOST:PORT")
    return listener, host


def _job(options: argparse.Namespace) -> Job:
    world = options.workers * options.nnodes
    return Job(
        run_id=options.run_id,
        node=options.node,
        hosts=options.nnodes,
        workers=world,
        command=[options.script, *options.arguments],
        streams=options.streams,
        limits=Limits(**{limit.name: getattr(options, f"{limit.name}_limit") for limit in fields(Limits)}),
        gpus=options.gpus or world,
        gpu_model=options.gpu_model,
        sigterm_notice=options.drain_on_sigterm,
        nan_checks=options.nan_checks,
        without_spare=options.without_spare,
        pool=options.pool and str(options.pool.resolve()),
        priority=options.priority,
        preemptible=options.preemptible,
        resume=options.resume and str(options.resume.resolve()),
        spool=options.spool and str(options.spool),
        report_url=options.report_url,
        report_key_env=options.report_key_env,
    )


def _check_resume(options: argparse.Namespace) -> None:
    if options.resume is None:
        return
    try:
        wanted = read_meta(options.resume)["workers"]
    except CannotResume as error:
        raise Usage(str(error)) from error
    if wanted != options.workers * options.nnodes:
        raise Usage(f"{options.resume} is the state of {wanted} workers; start as many")


def _check_reporting(options: argparse.Namespace) -> None:
    if options.report_url and not options.report_key_env:
        raise Usage("--report-url needs --report-key-env NAME, the variable that holds the agent's key")
    if options.report_key_env and not os.environ.get(options.report_key_env):
        raise Usage(f"{options.report_key_env} is not set; put the agent's key into it")
    if options.report_url is None:
        print("agent: no --report-url: incidents are kept on disk only", file=sys.stderr)


def take_over(options: argparse.Namespace) -> int:
    """`agent takeover`: coordinate a run whose first host is lost."""
    folder: Path = options.state_dir
    try:
        address, secret = control.read(folder)
        Job.read(folder)
        wanted = parse_address(options.listen) if options.listen else address
        listener = listen(wanted[0], (wanted[1], wanted[1]))
        listener.listen(512)
    except (control.NoSuchRun, ValueError) as error:
        raise Usage(str(error)) from error
    except OSError as error:
        raise Usage(f"cannot go on from {folder}: {_reason(error)}") from error
    os.environ[SECRET_VARIABLE] = secret.decode()
    coordinator = CoordinatorProcess(coordinator_command(listener, folder), listener.fileno())
    coordinator.watch()
    return 0 if coordinator.wait() == 0 else 1


# Further hosts ---------------------------------------------------------------------------------------------


def join(options: argparse.Namespace) -> int:
    """`agent join`: offer this host's processes as spares to a run that may have begun."""
    _set_tls(options)
    if options.state_dir is not None:
        try:
            address, secret = control.read(options.state_dir)
        except control.NoSuchRun as error:
            raise Usage(str(error)) from error
        os.environ[SECRET_VARIABLE] = secret.decode()
        return _add_host(options, format_address(address))
    if options.rdzv_endpoint is None:
        raise Usage("say which run: --rdzv-endpoint HOST:PORT of its first host, or its --state-dir on a shared disk")
    return _add_host(options, options.rdzv_endpoint)


def _add_host(options: argparse.Namespace, endpoint: str) -> int:
    secret = _secret(options)
    if secret is None:
        raise Usage(f"the run's secret is missing: put it into {SECRET_VARIABLE}, or a file with --secret-file")
    os.environ[SECRET_VARIABLE] = secret
    address = _endpoint(endpoint)
    job, begun = _ask_job(address, secret, options.node, options.join_limit)
    command = [options.script, *options.arguments] if options.script else job.command
    if not Path(command[0]).is_file():
        raise Usage(f"there is no script {command[0]} on this host; give its path here")
    first_rank = None
    if options.node_rank is not None:
        if (options.nnodes, options.workers * options.nnodes) != (job.hosts, job.workers):
            raise Usage(
                f"the run at {endpoint} has {job.hosts} hosts with {job.local_workers} workers each; "
                "give the same --nnodes and --workers"
            )
        if begun:
            print("agent: training has begun: this host's processes become spares", file=sys.stderr, flush=True)
            options.spares += options.workers
        else:
            first_rank = options.node_rank * job.local_workers
    try:
        host = options.address or address_towards(address)
    except OSError as error:
        raise Usage(f"there is no way to {endpoint}: {_reason(error)}") from error
    place = _script(options, job, address, secret, host, first_rank, command=command)
    try:
        return NodeAgent(place, options.spares, Elsewhere()).run()
    except OSError as error:
        raise Usage(f"the coordinator at {endpoint} does not answer: {error}") from error


def _ask_job(address: Address, secret: str, node: str, seconds: float) -> tuple[Job, bool]:
    """The run's settings, and whether it has begun. Its first host may come up later than this one."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            answer = control.ask_at(address, secret.encode(), {"type": "job", "node": node})
            if answer["type"] == "refused":
                raise Usage(answer["reason"])
            return Job.from_values(answer["job"]), bool(answer["begun"])
        except PeerRefused as error:
            raise Usage(f"{error}; give the run's secret and certificates") from error
        except (ValueError, KeyError) as error:
            raise Usage(f"{format_address(address)} is no coordinator of this version: {error}") from error
        except OSError as error:
            if time.monotonic() > deadline:
                raise Usage(
                    f"no run answers at {format_address(address)} ({_reason(error)}); start its first host, "
                    "or wait longer with --join-limit"
                ) from error
            time.sleep(JOIN_POLL_SECONDS)


def _script(
    options: argparse.Namespace,
    job: Job,
    address: Address,
    secret: str,
    host: str,
    first_rank: int | None,
    *,
    command: list[str],
    private: list[int] | None = None,
) -> Script:
    """What this host's launcher starts."""
    return Script(
        job=job,
        command=command,
        node=options.node,
        host=options.address or host,
        coordinator=address,
        secret=secret,
        first_rank=first_rank,
        forks=options.start == "fork" or (options.start == "auto" and not has_gpus()),
        watch=watch.from_options(options),
        private_descriptors=private or [],
        # Only launchers that began the run are known to be the only ones of their name.
        prefix=options.node if first_rank is not None else f"{options.node}-{secrets.token_hex(2)}",
        ports=options.port_range,
        respawns=options.respawn,
        own_gpu=options.own_gpu,
    )


def _set_tls(options: argparse.Namespace) -> None:
    """Tell all processes of this host, through the environment, where the certificates are."""
    for option, name in tls.VARIABLES.items():
        path = getattr(options, f"tls_{option}")
        if path is not None:
            os.environ[name] = str(path.resolve())
    try:
        tls.context(server=True)
        tls.context(server=False)
    except tls.TlsMisconfigured as error:
        raise Usage(str(error)) from error


def _endpoint(text: str) -> Address:
    try:
        host, port = parse_address(text)
    except ValueError as error:
        raise Usage(str(error)) from error
    if is_wildcard(host) or not port:
        raise Usage(f"{text} is no address that other hosts can find; name this host and a port, e.g. node-0:7000")
    return host, port


def _secret(options: argparse.Namespace) -> str | None:
    """The secret that was given to this launcher, if any."""
    if options.secret_file is not None:
        try:
            secret = options.secret_file.read_text().strip()
        except OSError as error:
            raise Usage(f"cannot read the secret in {options.secret_file}: {_reason(error)}") from error
    else:
        secret = os.environ.get(SECRET_VARIABLE, "")
    if secret and len(secret) < 16:
        raise Usage("the secret has fewer than 16 characters; `openssl rand -hex 32` makes a good one")
    return secret or None


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}; is the host's name right?"
    return os.strerror(error.errno) if error.errno else str(error)


# The coordinator -------------------------------------------------------------------------------------------


def coordinator_command(listener: socket.socket, folder: Path) -> list[str]:
    """How the first launcher starts the coordinator; all else is in the state directory."""
    return [sys.executable, "-m", "agent", "coordinator", "--fd", str(listener.fileno()), "--state-dir", str(folder)]


def coordinate(options: argparse.Namespace) -> int:
    """The coordinator's process."""
    faults.script.who = "coordinator"
    secret, folder = job_secret(), options.state_dir
    job = Job.read(folder)
    workload = {
        "run_id": job.run_id,
        "name": job.run_id,
        "framework": "pytorch",
        "agent_version": __version__,
        "world_size": job.workers,
        "gpus": job.gpus,
        "gpu_model": job.gpu_model,
        "gpus_per_node": max(job.gpus // job.hosts, 1),
    }
    reporter = IncidentReporter(
        Path(job.spool) if job.spool else folder / "spool",
        job.report_url,
        os.environ.get(job.report_key_env) if job.report_key_env else None,
        f"{job.node}/{job.run_id}",
        workload,
    )
    evidence = Evidence(folder, job.run_id, reporter, online=job.report_url is not None)
    listener = socket.socket(fileno=options.fd)
    listener.setblocking(False)
    finished = asyncio.run(Coordinator(job, secret, folder, evidence).run(listener))
    return 0 if finished else ABANDONED

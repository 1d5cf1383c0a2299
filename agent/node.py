"""The launcher on one host: it starts the workers, sees at once when one ends or freezes, and ends them.

It polls `/proc/PID/stat` because the kernel tears down a process's memory before it closes its sockets: with
4 GiB resident the flag PF_EXITING shows after 1 to 3 ms, the closed connection after 300, SIGCHLD after 1000.
"""

from __future__ import annotations

import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.job import Job
from agent.network import ANY_PORT, Ports, interface_of
from agent.planned import on_sigterm, sigterm_request
from agent.process import Watched, describe_exit, fork, has_gpus, preload, spawn
from agent.settings import SECRET_VARIABLE, WorkerSettings
from agent.watch import Watch, watch_gpus
from agent.wire import Address, Link, Message, dial, format_address

POLL_SECONDS = 0.005
_PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent)
FENCE_SECONDS = 5.0
PING_SECONDS = 1.0


class CoordinatorSide(Protocol):
    """What a launcher can do about the coordinator: on the first host a lot, elsewhere nothing."""

    def watch(self) -> None: ...

    def kill(self) -> None: ...

    def ended(self) -> int | None: ...


class Elsewhere:
    """The coordinator runs beside the first host's launcher, which sees to it."""

    def watch(self) -> None:
        """Nothing to do here."""

    def kill(self) -> None:
        """Nothing to do here."""

    def ended(self) -> int | None:
        """Not known here."""
        return None


@dataclass(frozen=True)
class Script:
    """What every worker of this host runs, and its place in the run."""

    job: Job
    command: Sequence[str]
    """The job's, unless its path differs on this host."""
    node: str
    host: str
    coordinator: Address
    secret: str
    first_rank: int | None
    """The first rank of this host; None: it only offers spares."""
    forks: bool
    """Fork the workers from this process instead of starting an interpreter for each."""
    prefix: str
    """How the names of this host's workers begin; no two launchers of a run have the same."""
    watch: Watch = field(default_factory=Watch)
    private_descriptors: Sequence[int] = ()
    """Descriptors of the launcher that forked workers must not keep open."""
    ports: Ports = ANY_PORT
    """Where workers may listen."""
    respawns: int = 0
    """How many spares to start in place of lost processes."""
    own_gpu: bool = False
    """Show each process only the GPU of its place, as device 0."""


class NodeAgent:
    """Runs the workers of this host until the coordinator says that the run is over."""

    def __init__(self, script: Script, spares: int, coordinator: CoordinatorSide) -> None:
        self._script = script
        self._coordinator = coordinator
        self._instance = secrets.token_hex(8)
        self._heard = time.monotonic()
        self._spares = spares
        self._respawns = script.respawns
        self._to_start: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._workers: dict[str, Watched] = {}
        self._places: dict[int, str] = {}
        """The last worker that was started at each place, a place being a local rank and its GPU."""
        self._link: Link | None = None
        self._ended: str | None = None
        self._holders: dict[str, int] = {}
        """Who held which rank when the run ended."""
        self._left = False
        """The run goes on without this host."""
        self._over = threading.Event()

    def run(self) -> int:
        """Start the workers and stay until the run is over. Returns the exit status of the run."""
        script, job = self._script, self._script.job
        if script.forks:
            preload()
        place = 0
        if script.first_rank is not None:
            for place in range(job.local_workers):
                self._start(f"{script.prefix}-w{place}", script.first_rank + place, place)
            place = job.local_workers
        for index in range(self._spares):
            self._start(f"{script.prefix}-s{index}", None, place + index)
        self._connect()
        self._coordinator.watch()
        for target, name in ((self._listen, "listen"), (self._ping, "ping")):
            threading.Thread(target=target, name=f"agent-{name}", daemon=True).start()
        if job.sigterm_notice is not None:
            leave = {"type": "drain", "node": script.node, **sigterm_request(job.sigterm_notice)}
            # A thread, because the signal may have come while this one holds the lock for sending.
            on_sigterm(lambda: threading.Thread(target=self._tell, args=(leave,), daemon=True).start())
        monitor = watch_gpus(script.watch, script.node, self._places, self._tell)
        try:
            self._watch()
        finally:
            if monitor is not None:
                monitor.stop()
            self._end_all()
        return self._status()

    def _start(self, worker: str, rank: int | None, place: int, *, fresh: bool = False, gpu: str | None = None) -> None:
        script, job = self._script, self._script.job
        settings = WorkerSettings(
            worker=worker,
            run_id=job.run_id,
            node=script.node,
            host=script.host,
            coordinator=format_address(script.coordinator),
            rank=-1 if rank is None else rank,
            world_size=job.workers,
            streams=job.streams,
            limits=job.limits,
            sigterm_notice=job.sigterm_notice,
            ports=script.ports,
            resume=job.resume,
            nan_checks=job.nan_checks,
        )
        interface = interface_of(script.host)
        environment = {
            "OMP_NUM_THREADS": "1",
            **({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}),
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [_PACKAGE_PARENT, os.environ.get("PYTHONPATH")])),
            **settings.to_environment(),
            SECRET_VARIABLE: script.secret,
            "RANK": str(settings.rank),
            "LOCAL_RANK": str(place),
            "WORLD_SIZE": str(job.workers),
            "LOCAL_WORLD_SIZE": str(job.local_workers),
            "GROUP_RANK": str((script.first_rank or 0) // job.local_workers),
            "GROUP_WORLD_SIZE": str(job.hosts),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(settings.rank),
            "ROLE_WORLD_SIZE": str(job.workers),
            "MASTER_ADDR": script.coordinator[0],
            "MASTER_PORT": str(script.coordinator[1]),
            "TORCHELASTIC_RUN_ID": job.run_id,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
        if script.own_gpu:
            environment["CUDA_VISIBLE_DEVICES"] = own_gpu(place, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if gpu:
            environment["CUDA_VISIBLE_DEVICES"], environment["LOCAL_RANK"] = gpu, "0"
        if script.forks and not fresh:
            child = fork(script.command, environment, script.private_descriptors)
        else:
            child = spawn(script.command, environment)
        self._workers[worker] = Watched(worker, rank, child, place)
        if gpu is None:  # otherwise the place is not one of this launcher's
            self._places[place] = worker

    def _replace(self, lost: str) -> None:
        """Start a spare at the place of a lost process, as long as the count allows."""
        former = self._workers.get(lost)
        if former is None or self._respawns <= 0 or self._over.is_set() or self._places.get(former.place) != lost:
            return
        self._respawns -= 1
        worker = f"{self._script.prefix}-r{self._script.respawns - self._respawns}"
        # A fresh interpreter: this process has threads by now and must not fork.
        self._start(worker, None, former.place, fresh=True)
        self._say(f"{worker} starts as a spare in place of {lost}; {self._respawns} more may follow")
        self._tell({"type": "started", "worker": worker, **self._facts(self._workers[worker])})

    def _start_elsewhere(self, message: Message) -> None:
        """Start a spare in a place that another run on this host has given up."""
        worker = message["worker"]
        self._start(worker, None, message["place"], fresh=True, gpu=message["gpu"] or "")
        self._tell({"type": "started", "worker": worker, **self._facts(self._workers[worker])})

    def _facts(self, process: Watched) -> Message:
        gpu = own_gpu(process.place, os.environ.get("CUDA_VISIBLE_DEVICES")) if has_gpus() else None
        return {"rank": process.rank, "pid": process.child.pid, "place": process.place, "gpu": gpu}

    @staticmethod
    def _say(text: str) -> None:
        print(f"agent: {text}", file=sys.stderr, flush=True)

    # The coordinator ---------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Introduce this host. Raises OSError if the coordinator stays away."""
        deadline = time.monotonic() + self._script.job.limits.coordinator
        while True:
            try:
                link = Link(dial(self._script.coordinator, self._script.secret.encode()))
                break
            except OSError:
                if time.monotonic() > deadline or self._coordinator.ended() is not None:
                    raise
                time.sleep(0.05)
        link.sock.settimeout(self._script.job.limits.heartbeat)  # answers to pings come more often
        workers = {process.worker: self._facts(process) for process in self._workers.values()}
        link.send({"type": "node", "node": self._script.node, "instance": self._instance, "workers": workers})
        self._heard = time.monotonic()
        self._link = link
        for process in self._workers.values():
            if process.gone:
                self._tell_exit(process)

    def _listen(self) -> None:
        while not self._over.is_set():
            link = self._link
            assert link is not None
            try:
                message = link.receive()
                self._heard = time.monotonic()
                self._obey(message)
            except OSError as broken:
                self._link = None
                link.close()
                if self._over.is_set():
                    return
                if isinstance(broken, TimeoutError):
                    self._coordinator.kill()  # no answer for the whole limit, though it was asked each second
                try:
                    self._connect()
                except OSError as error:
                    if self._coordinator.ended() != 0:  # otherwise its last word was missed
                        self._ended = f"the coordinator is unreachable: {error}"
                    self._over.set()
        if self._link is not None:
            self._link.close()

    def _ping(self) -> None:
        """A coordinator that does not answer is replaced."""
        while not self._over.wait(PING_SECONDS):
            self._tell({"type": "ping"})
            link, silent = self._link, time.monotonic() - self._heard
            if link is not None and silent > self._script.job.limits.heartbeat:
                self._heard = time.monotonic()
                self._coordinator.kill()
                link.close()  # the listening thread connects anew

    def _obey(self, message: Message) -> None:
        match message["type"]:
            case "fence":
                process = self._workers.get(message["worker"])
                if process is not None:
                    process.fence(FENCE_SECONDS)
                self._tell({"type": "fenced", "worker": message["worker"]})
            case "replace" | "start":
                self._to_start.put(message)
            case "refused":
                self._ended = message["reason"]
                self._over.set()
            case "abandon":
                self._ended = "the run was abandoned"
                self._over.set()
            case "end":
                self._holders = message["holders"]
                self._over.set()
            case "leave":
                self._say("all ranks of this host have moved; it leaves the run")
                self._left = True
                self._over.set()

    def _tell(self, message: Message) -> None:
        link = self._link
        if link is not None:
            try:
                link.send(message)
            except OSError:
                return  # the listening thread reconnects and tells again what matters

    # The workers -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Report what happens to the workers until the run is over and all of them have ended."""
        while True:
            # Here and not where it is asked for: a child dies with the thread that has started it.
            while not self._to_start.empty():
                message = self._to_start.get()
                if message["type"] == "replace":
                    self._replace(message["worker"])
                elif not self._over.is_set():
                    self._start_elsewhere(message)
            for process in list(self._workers.values()):
                news = process.look()
                if news == "gone":
                    self._tell_exit(process)
                if process.gone and not process.status_told and process.child.poll() is not None:
                    process.status_told = True
                    how = describe_exit(process.child.poll())
                    self._tell({"type": "status", "worker": process.worker, "how": how})
                elif news == "frozen":
                    self._tell_loss(process, "hang", "stopped by a signal (state T)", None)
                if process.frozen and not process.gone and self._over.is_set():
                    process.child.kill()  # nobody else will, and this launcher waits for its end
            if self._over.is_set() and (self._left or self._ended is not None or self._all_gone()):
                return
            time.sleep(POLL_SECONDS)

    def _all_gone(self) -> bool:
        return all(process.gone for process in self._workers.values())

    def _tell_exit(self, process: Watched) -> None:
        status = process.child.poll()
        self._tell_loss(process, "process_exit", describe_exit(status), status)

    def _tell_loss(self, process: Watched, signal_name: str, how: str, status: int | None) -> None:
        self._tell(
            {
                "type": "exited",
                "worker": process.worker,
                "signal": signal_name,
                "how": how,
                "detector": "proc_stat",
                "status": status,
                "since_alive": time.monotonic() - process.seen_alive,
            }
        )

    def _end_all(self) -> None:
        """SIGTERM, and SIGKILL for what is left after two seconds."""
        alive = [process.child for process in self._workers.values() if process.child.poll() is None]
        for child in alive:
            child.terminate()
        deadline = time.monotonic() + 2.0
        for child in alive:
            try:
                child.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _status(self) -> int:
        """0 if the run and the scripts of all that hold a rank ended well; workers that were replaced do not count."""
        if self._ended is not None:
            self._say(f"this launcher ends: {self._ended}")
            return 1
        failed = 0
        for name, rank in self._holders.items():
            process = self._workers.get(name)
            status = process.child.poll() if process is not None else 0
            if status:
                failed = 1
                self._say(
                    f"rank {rank} ({name}) made its last step, but what its script does after training was not "
                    f"completed: {describe_exit(status)}"
                )
        return failed


def own_gpu(place: int, visible: str | None) -> str:
    """What `CUDA_VISIBLE_DEVICES` shows to the process at `place`. Untested with a GPU: none was at hand."""
    chosen = [part.strip() for part in visible.split(",") if part.strip()] if visible else None
    if chosen is None:
        return str(place)
    return chosen[place] if place < len(chosen) else ""

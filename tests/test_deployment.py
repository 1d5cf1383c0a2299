"""docker-compose.yml and the Dockerfile, as far as they can be tried without a container engine.

The commands of the compose file are started here as they stand, with the environment that the file gives them;
only the addresses of PostgreSQL, Redis and the web port differ.
"""

import ast
import functools
import importlib.metadata
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from django.core.management import get_commands
from packaging.requirements import Requirement

from tools.compose import COMPOSE, ONCE, ROOT, compose_environment, interpolate, make_roles, native_server
from tools.services import HOST, Server, find_postgres, free_port

DOCKERFILE = (ROOT / "Dockerfile").read_text()
OURS = [*ONCE, "web", "worker", "beat"]
BIN = Path(sys.executable).parent


# As in a container: nothing but /tmp and /dev/shm can be written, and the process is user 10001 without capabilities
# (for the kernel outside it stays who it was, so that it can read this checkout wherever it lies).
CONFINED = """
mount -t tmpfs tmpfs /tmp && mount -o remount,bind,ro / &&
exec unshare --user --map-user=10001 --map-group=10001 setpriv --no-new-privs "$@"
"""


@functools.cache
def confinement() -> list[str]:
    """What a command is preceded by to run like a container; nothing where this machine forbids namespaces."""
    if os.geteuid() != 0 or "/tmp" in (str(path) for path in (*ROOT.parents, *BIN.resolve().parents)):
        return []
    confined = ["unshare", "--mount", "sh", "-c", CONFINED, "sh"]
    trial = [*confined, sys.executable, str(ROOT / "manage.py"), "version"]
    return confined if subprocess.run(trial, capture_output=True).returncode == 0 else []


def health(service: str, server: Server) -> int:
    """The exit status of the health check in the file, run where the service's process lives."""
    kind, *command = COMPOSE["services"][service]["healthcheck"]["test"]
    if kind == "CMD-SHELL":
        command = ["sh", "-c", command[0].replace("$$", "$")]
    if service == "postgres":
        command[0] = str(find_postgres() / command[0])
    if service == "redis":
        command[1:1] = ["-p", str(server.port)]
    command = [part.replace("8000", str(server.port)) for part in command]
    assert server.process is not None
    if confinement() and server.running() and service != "postgres":
        command = ["nsenter", "--mount", f"--target={server.process.pid}", "--", *command]
    environment = server.environment | {"HOSTNAME": socket.gethostname(), "PGPORT": str(server.port)}
    return subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode


def confined_server(service: str, directory: Path, database_url: str, redis_url: str, **dot_env: str) -> Server:
    """The compose service as a process of this machine that may do what its container may, not started yet."""
    environment = compose_environment(service, **dot_env)
    role = "yoco_owner" if service in ONCE else "yoco_app"
    assert re.fullmatch(rf"postgresql://{role}:\w+@postgres:5432/yoco", environment["DATABASE_URL"])
    assert environment["REDIS_URL"] == "redis://redis:6379/0"
    server = native_server(service, directory, database_url=database_url, redis_url=redis_url, **dot_env)
    if confinement():
        server.environment["BEAT_STAMP"] = environment["BEAT_STAMP"]
        program = shutil.which(server.command[0], path=server.environment["PATH"])
        server.command = [*confinement(), program or server.command[0], *server.command[1:]]
    return server


def test_every_setting_reaches_the_containers():
    """A variable in .env that is not named in the file would be ignored without a word."""
    table = (ROOT / "docs" / "settings.md").read_text()
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    assert len(documented) > 20
    for service in ("web", "worker", "beat"):
        assert documented - {"DEBUG"} <= COMPOSE["services"][service]["environment"].keys()


@pytest.mark.parametrize("service", OURS)
def test_every_command_is_a_real_one(service: str):
    program, *arguments = COMPOSE["services"][service]["command"]
    assert program in ("python", "gunicorn", "celery")
    if program == "python":
        assert arguments[0] == "manage.py"
        assert arguments[1] in get_commands()
    else:
        assert (BIN / program).exists()


@pytest.mark.parametrize("service", OURS)
def test_every_variable_is_one_that_the_settings_read(service: str):
    settings = (ROOT / "yoco" / "settings.py").read_text()
    for name in compose_environment(service):
        assert re.search(rf'env\.\w+\(\s*"{name}"', settings), f"{name} is read by nobody"


def test_long_running_services_restart_and_say_whether_they_are_well():
    for name, service in COMPOSE["services"].items():
        if name in ONCE:
            assert service["restart"] == "no"
            continue
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


def test_every_service_has_its_limits_and_writes_no_endless_log():
    total = 0
    for name, service in COMPOSE["services"].items():
        limits = service["deploy"]["resources"]["limits"]
        amount, unit = re.fullmatch(r"(\d+)([mg])", limits["memory"]).groups()
        total += int(amount) * (1024 if unit == "g" else 1) if name not in ONCE else 0
        assert float(limits["cpus"]) > 0
        assert limits["pids"] >= 50
        assert service["logging"] == {"driver": "local", "options": {"max-size": "20m", "max-file": "5"}}
        assert service["security_opt"] == ["no-new-privileges:true"]
        if name != "postgres":  # its image begins as root, to own its folders
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
    assert total <= 6.5 * 1024  # fits a machine of 8 GiB


def test_what_lives_longer_than_a_container_is_in_a_volume():
    volumes = {
        volume.rpartition(":")[0] for volume in COMPOSE["services"]["postgres"]["volumes"] if ":ro" not in volume
    }
    assert {interpolate(volume, {}) for volume in volumes} == {"postgres", "backups"} == COMPOSE["volumes"].keys()
    assert not any("volumes" in COMPOSE["services"][name] for name in (*OURS, "redis"))


def test_every_image_can_be_pinned_to_a_digest():
    digest = "sha256:" + "0" * 64
    for name, variable in (("postgres", "POSTGRES_IMAGE"), ("redis", "REDIS_IMAGE")):
        pinned = interpolate(COMPOSE["services"][name]["image"], {variable: f"{name}@{digest}"})
        assert pinned == f"{name}@{digest}"
    (argument,) = COMPOSE["services"]["migrate"]["build"]["args"]
    assert re.search(rf"^ARG {argument}=\S+\nFROM \$\{{{argument}\}} AS base$", DOCKERFILE, re.MULTILINE)
    froms = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(froms) == {"${PYTHON_IMAGE}", "base"}


def test_our_services_wait_for_the_migration_and_use_one_image():
    assert COMPOSE["services"]["migrate"]["build"]["target"] == "service"
    for name in ("web", "worker", "beat"):
        service = COMPOSE["services"][name]
        assert service["image"] == COMPOSE["services"]["migrate"]["image"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["depends_on"]["grants"] == {"condition": "service_completed_successfully"}
    assert COMPOSE["services"]["grants"]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


def test_the_file_holds_no_secret():
    for service in OURS:
        given = COMPOSE["services"][service]["environment"]
        for name in ("SECRET_KEY", "KEY_PEPPERS"):
            assert given[name].startswith("${" + name + ":?")


def native_redis(directory: Path) -> Server:
    port = free_port()
    command = [*confinement(), *COMPOSE["services"]["redis"]["command"], "--port", str(port), "--bind", HOST]
    return Server("redis", command, directory=directory, port=port)


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.slow
def test_the_commands_run_here_with_the_same_environment(server_directory, own_postgres):
    owner, app = make_roles(own_postgres)
    with native_redis(server_directory) as redis:
        assert health("redis", redis) == health("postgres", own_postgres) == 0
        redis_url = f"redis://{HOST}:{redis.port}/0"

        def server(name: str) -> Server:
            url = owner if name in ONCE else app
            return confined_server(name, server_directory, url, redis_url, TICK_SECONDS="1")

        for once in map(server, ONCE):
            done = subprocess.run(once.command, env=once.environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr

        with server("web") as web, server("worker") as worker, server("beat") as beat:
            assert health("web", web) == 0, web.last_words()
            page = httpx.get(f"http://{HOST}:{web.port}/accounts/login/")
            assert page.status_code == 200
            assert httpx.get(f"http://{HOST}:{web.port}/", headers={"Host": "evil.example"}).status_code == 400
            assert health("worker", worker) == 0, worker.last_words()
            assert health("beat", beat) == 0, beat.last_words()
            assert wait_for(lambda: "yoco.notify.tasks.tick" in worker.log.read_text()), beat.last_words()

            assert beat.process is not None
            beat.process.send_signal(signal.SIGSTOP)  # it hangs: alive, and of no use
            assert wait_for(lambda: health("beat", beat) == 1)
            beat.process.send_signal(signal.SIGCONT)
            assert wait_for(lambda: health("beat", beat) == 0), beat.last_words()
            worker.kill()
            assert health("worker", worker) != 0
            own_postgres.kill()
            assert health("web", web) == 1
            assert web.running()


def test_the_dockerfile_copies_only_what_exists_and_what_is_not_ignored():
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for arguments in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        *sources, _ = arguments.split()
        for source in sources:
            assert (ROOT / source).exists(), f"COPY {source}"
            assert source.split("/")[0] in let_through


def test_the_dockerfile_has_both_targets_and_does_not_run_as_root():
    for target in ("service", "agent"):
        stage = re.search(rf"^FROM \S+ AS {target}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
        assert stage, target
        assert re.search(r"^USER yoco$", stage[1], re.MULTILINE), target


def installed_with(requirements: str) -> set[str]:
    """The distributions that installing this file brings, by the metadata of what is installed here."""
    pending = [
        Requirement(line.partition(" #")[0])
        for line in (ROOT / "requirements" / requirements).read_text().splitlines()
        if line and not line.startswith("#")
    ]
    found: set[tuple[str, str]] = set()
    while pending:
        requirement = pending.pop()
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in found:
                continue
            found.add((requirement.name, extra))
            for text in importlib.metadata.requires(requirement.name) or []:
                needed = Requirement(text)
                if not needed.marker or needed.marker.evaluate({"extra": extra}):
                    pending.append(needed)
    return {normal(name) for name, _ in found}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_by(package: str) -> set[str]:
    """The top-level modules that the files of this package import."""
    names: set[str] = set()
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {package}


@pytest.mark.parametrize(("package", "requirements"), [("yoco", "service.txt"), ("agent", "agent.txt")])
def test_each_image_installs_what_its_package_imports(package: str, requirements: str):
    providers = importlib.metadata.packages_distributions()
    installed = installed_with(requirements)
    for module in imported_by(package):
        assert {normal(name) for name in providers.get(module, [module])} & installed, (
            f"{package} imports {module}, which requirements/{requirements} does not bring"
        )


def test_the_service_image_has_no_torch_and_the_agent_image_no_django():
    assert "torch" not in installed_with("service.txt")
    assert "django" not in installed_with("agent.txt")

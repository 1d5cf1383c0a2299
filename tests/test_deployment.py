"""docker-compose.yml and the Dockerfile, as far as they can be tried without a container engine.

The commands of the compose file are started here as they stand, with the environment that the file gives them;
only the addresses of PostgreSQL, Redis and the web port differ.
"""

import ast
import importlib.metadata
import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from django.core.management import get_commands
from packaging.requirements import Requirement

from tools.compose import COMPOSE, ONCE, ROOT, compose_environment, make_roles, native_server
from tools.services import HOST, Server

DOCKERFILE = (ROOT / "Dockerfile").read_text()
OURS = [*ONCE, "web", "worker", "beat"]
BIN = Path(sys.executable).parent


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
        if name != "beat":  # it has no port and does nothing but send ticks
            assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


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


@pytest.mark.postgres
@pytest.mark.redis
def test_the_commands_run_here_with_the_same_environment(server_directory, own_postgres, redis_url):
    owner, app = make_roles(own_postgres)

    def server(name: str) -> Server:
        url, role = (owner, "yoco_owner") if name in ONCE else (app, "yoco_app")
        environment = compose_environment(name)
        assert re.fullmatch(rf"postgresql://{role}:\w+@postgres:5432/yoco", environment["DATABASE_URL"])
        assert environment["REDIS_URL"] == "redis://redis:6379/0"
        return native_server(name, server_directory, database_url=url, redis_url=redis_url)

    for once in map(server, ONCE):
        done = subprocess.run(once.command, env=once.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    with server("web") as web, server("worker") as worker, server("beat") as beat:
        check = COMPOSE["services"]["web"]["healthcheck"]["test"]
        healthy = [part.replace("8000", str(web.port)) for part in check[1:]]
        assert subprocess.run(healthy, env=web.environment, timeout=30).returncode == 0, web.last_words()
        page = httpx.get(f"http://{HOST}:{web.port}/accounts/login/")
        assert page.status_code == 200
        assert httpx.get(f"http://{HOST}:{web.port}/", headers={"Host": "evil.example"}).status_code == 400

        _, ping = COMPOSE["services"]["worker"]["healthcheck"]["test"]
        answer = subprocess.run(
            ["sh", "-c", ping.replace("$$", "$")],
            env=worker.environment | {"HOSTNAME": socket.gethostname()},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert answer.returncode == 0, worker.last_words()
        assert "1 node online" in answer.stdout
        assert web.running()
        assert worker.running()
        assert beat.running(), beat.last_words()


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

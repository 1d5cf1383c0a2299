"""`tools/services.py`: starts what tests need, stops it, and never touches what it did not start."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
import redis

from tests.services import ROOT
from tools import services

PRINT_URLS = "import os; print(os.environ['TEST_DATABASE_URL'], os.environ['TEST_REDIS_URL'], flush=True)"
pytestmark = [pytest.mark.postgres, pytest.mark.redis]


def services_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tools.services", *arguments]


def run_services(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        services_command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def answers(url: str) -> bool:
    try:
        if url.startswith("redis"):
            redis.Redis.from_url(url).ping()
        else:
            psycopg.connect(url, connect_timeout=5).close()
    except (OSError, redis.RedisError, psycopg.Error):
        return False
    return True


@pytest.fixture
def occupied_port():
    """A port of 127.0.0.1 on which somebody else listens."""
    with socket.create_server((services.HOST, 0)) as somebody:
        yield somebody.getsockname()[1]


def test_it_starts_both_and_exports_their_urls(server_directory):
    with services.postgres_and_redis() as (postgres, cache):
        assert answers(postgres.url)
        assert answers(cache.url)
        urls = [postgres.url, cache.url]
    assert [answers(url) for url in urls] == [False, False]


def test_the_command_finds_working_urls_and_nothing_is_left_afterwards():
    script = (
        "import os, psycopg, redis; "
        "psycopg.connect(os.environ['TEST_DATABASE_URL']).execute('create table t (x int)'); "
        "redis.Redis.from_url(os.environ['TEST_REDIS_URL']).set('x', 1); " + PRINT_URLS
    )
    done = run_services("--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    urls = done.stdout.split()
    assert len(urls) == 2
    assert [answers(url) for url in urls] == [False, False]


def test_the_exit_status_of_the_command_is_passed_on():
    assert run_services("--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_it_says_in_one_sentence_that_the_command_is_missing():
    done = run_services("--", "no-such-program")
    assert done.returncode == 2
    assert done.stderr == "services: no-such-program was not found; give a command after --.\n"


@pytest.mark.parametrize("option", ["postgres", "redis"])
def test_it_says_in_one_sentence_that_a_port_is_in_use(option, occupied_port):
    done = run_services(f"--{option}-port", str(occupied_port), "--", sys.executable, "-c", PRINT_URLS)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"services: {option} cannot start: port {occupied_port} of 127.0.0.1 is in use; "
        "name another, or none to get a free one.\n"
    )


def test_it_stops_its_own_servers_and_nobody_elses_when_told_to_end(own_postgres, own_redis):
    command = services_command("--", sys.executable, "-c", PRINT_URLS + "; import time; time.sleep(60)")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            urls = process.stdout.readline().split()
            assert [answers(url) for url in urls] == [True, True]
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert [answers(url) for url in urls] == [False, False]
    assert answers(own_postgres.url)
    assert answers(own_redis.url)
    assert own_postgres.running()
    assert own_redis.running()


def test_a_killed_postgres_keeps_what_it_acknowledged(own_postgres):
    url = own_postgres.url
    connection = psycopg.connect(url)
    connection.execute("create table kept (x int)")
    connection.execute("insert into kept values (41)")
    connection.commit()
    connection.execute("insert into kept values (42)")  # never committed
    own_postgres.kill()
    assert not answers(url)
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    own_postgres.start()
    with psycopg.connect(url) as again:
        assert again.execute("select x from kept").fetchall() == [(41,)]


def test_a_killed_redis_forgets_and_comes_back_at_the_same_address(own_redis):
    redis.Redis.from_url(own_redis.url).set("x", 1)
    own_redis.kill()
    assert not answers(own_redis.url)
    own_redis.start()
    assert redis.Redis.from_url(own_redis.url).get("x") is None


def test_the_role_of_the_tests_is_no_superuser(own_postgres):
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() == (False,)


def test_a_server_that_fails_to_start_shows_its_last_words(tmp_path):
    server = services.Server(
        "talker",
        [sys.executable, "-c", "raise SystemExit('no room left')"],
        directory=tmp_path,
        port=services.free_port(),
    )
    with pytest.raises(services.ServiceError, match="talker ended with status 1: no room left"):
        server.start()


def test_a_server_that_is_never_ready_is_given_up_and_ended(tmp_path):
    server = services.Server(
        "sleeper",
        [sys.executable, "-c", "import time; time.sleep(60)"],
        directory=tmp_path,
        port=services.free_port(),
        start_seconds=0.5,
    )
    with pytest.raises(services.ServiceError, match=r"sleeper was not ready in 0\.5 s: it wrote nothing"):
        server.start()
    assert not server.running()


def test_kill_takes_the_children_too(tmp_path: Path):
    pid_file = tmp_path / "pid"
    script = (
        "import pathlib, subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid)); time.sleep(60)"
    )
    server = services.Server("parent", [sys.executable, "-c", script], directory=tmp_path)
    server.start()
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    child = int(pid_file.read_text())
    assert alive(child)
    server.kill()
    wait_until(lambda: not alive(child))


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended but was not collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_server_that_runs_is_not_started_twice(own_redis):
    pid = own_redis.process.pid
    own_redis.start()
    assert own_redis.process.pid == pid
    os.kill(pid, 0)

"""The launcher: what it refuses, what it says, and how a run ends that cannot go on."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tests.agent.launch import EXAMPLE, ROOT, SCRIPTS, Outcome, command, environment, last_step_reported, train


def start(folder: Path, *options: str, script: Path = EXAMPLE) -> subprocess.CompletedProcess[str]:
    line = command(folder, workers=2, spares=0, script=script, options=options)
    return subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)


def test_it_names_a_missing_script(tmp_path: Path) -> None:
    done = start(tmp_path, script=tmp_path / "absent.py")
    assert done.returncode == 2
    assert f"there is no script {tmp_path / 'absent.py'}; give the path of a Python file" in done.stderr


def test_it_names_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = start(tmp_path, "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --listen" in done.stderr


def test_it_refuses_a_malformed_address(tmp_path: Path) -> None:
    done = start(tmp_path, "--listen", "localhost")
    assert done.returncode == 2
    assert "'localhost' is not an address; write host:port" in done.stderr


def test_it_wants_a_key_for_a_service(tmp_path: Path) -> None:
    done = start(tmp_path, "--report-url", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "--report-url needs --report-key-env NAME" in done.stderr
    done = start(tmp_path, "--report-url", "http://127.0.0.1:1", "--report-key-env", "ABSENT")
    assert done.returncode == 2
    assert "ABSENT is not set; put the agent's key into it" in done.stderr


def test_it_refuses_the_folder_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "coordinator.wal").touch()
    done = start(tmp_path)
    assert done.returncode == 2
    assert "holds the log of an earlier run; choose another --state-dir or --run-id" in done.stderr


def test_a_run_from_the_command_line(tmp_path: Path) -> None:
    """All others are forked from a process that has imported torch; the result is the same."""
    forked = train(tmp_path / "forked", workers=2, spares=0, steps=6)
    line = command(tmp_path / "shell", workers=2, spares=1, script=EXAMPLE)
    line += ["--steps", "6", "--out", str(tmp_path / "result.json")]
    faults = environment("kill:rank=1,step=3,point=backward")
    done = subprocess.run(line, cwd=ROOT, env=faults, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 1" in done.stderr
    assert json.loads((tmp_path / "result.json").read_text()) == forked.result


def test_help_explains_itself() -> None:
    line = command(Path("x"), workers=1, spares=0, script=EXAMPLE, options=("--help",))
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for word in ("--workers", "--spares", "--report-url", "--spare-limit", "SECONDS"):
        assert word in done.stdout


def test_a_script_that_does_not_use_the_agent_fails_at_once(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('no data here')\n")
    outcome = train(tmp_path, script=script, workers=2, spares=1)
    assert outcome.status == 1
    assert "no data here" in outcome.output
    assert "rank" in outcome.output
    assert "ended before training began (exit status 1); see its output above" in outcome.output


@pytest.fixture(scope="module")
def without_spare(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return train(
        tmp_path_factory.mktemp("without_spare"),
        faults="kill:rank=1,step=3,point=backward",
        workers=2,
        spares=0,
        options=("--spare-limit", "2"),
    )


def test_a_spare_that_never_comes_ends_the_run_with_a_sentence(without_spare: Outcome) -> None:
    assert without_spare.status == 1
    assert "rank 1 was lost after step 2 and no spare came within 2 s; start with more spares" in without_spare.output


def test_a_spare_that_never_comes_is_reported(without_spare: Outcome) -> None:
    events = [report["event"] for report in without_spare.reports]
    assert events == ["detected", "amended", "resolved"]
    last = without_spare.reports[-1]
    assert last["resolution"] == "abandoned"
    assert [attempt["outcome"] for attempt in last["attempts"]] == ["waiting", "abandoned"]
    assert last["progress"]["last_committed_step"] == 2
    assert last["progress"]["first_step_after"] is None


def test_it_starts_interpreters_where_asked(tmp_path: Path) -> None:
    outcome = train(tmp_path, workers=2, spares=0, steps=2, options=("--start", "spawn"))
    assert outcome.status == 0, outcome.output


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "exit status 3"])
def test_a_worker_lost_after_training_is_no_success(tmp_path: Path, how: str) -> None:
    """No spare can do for it what its script still had to do; whoever reads the exit status must learn of it."""
    outcome = train(tmp_path, steps=3, workers=2, spares=1, script=SCRIPTS / "epilogue.py", variables={"EPILOGUE": how})
    assert outcome.status == 1
    assert "made its last step, but what its script does after training was not completed" in outcome.output
    assert ("exit status 3" if how.startswith("exit") else "killed by SIGKILL") in outcome.output
    assert last_step_reported(tmp_path)[-1:] == [3], "training itself ended well, and that is what is reported"

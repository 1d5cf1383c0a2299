"""The examples for Slurm and Kubernetes. Slurm's script runs, with stand-ins for `srun` and `scontrol`."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli import _parser
from tests.agent.hosts import free_port
from tests.agent.launch import EXAMPLE, ROOT, environment, read, train

EXAMPLES = ROOT / "agent" / "examples"

# Starts the step's tasks on this machine, as srun would on each node, and passes the notice on to them.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1 2; do
  SLURM_NODEID=$node SLURM_NNODES=3 SLURMD_NODENAME=node-$node "$@" & tasks+=($!)
done
echo "${tasks[@]}" > "$RUNS/tasks.new" && mv "$RUNS/tasks.new" "$RUNS/tasks"
for task in "${tasks[@]:0:2}"; do wait "$task" || status=$?; done
kill -KILL "${tasks[2]}" # the spares may still be importing torch when so short a run is over
exit ${status:-0}
"""

pytestmark = pytest.mark.timeout(300)


def test_slurm_ends_a_job_with_notice_and_the_requeued_one_goes_on_exactly(tmp_path: Path) -> None:
    known: dict[str, Any] = {"steps": 60, "workers": 2}
    reference = train(tmp_path / "reference", spares=0, **known)
    tools, runs = tmp_path / "bin", tmp_path / "runs"
    tools.mkdir()
    runs.mkdir()
    python = f'#!/bin/bash\nexec {ROOT / ".venv" / "bin" / "python"} "$@"\n'
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/bash\necho 127.0.0.1\n", "python": python}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    variables = environment() | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "RUNS": str(runs),
        "SCRIPT": str(EXAMPLE),
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "node-[0-2]",
        "SLURM_GPUS_ON_NODE": "1",
    }
    out = tmp_path / "job" / "result.json"
    out.parent.mkdir()
    line = ["bash", str(EXAMPLES / "slurm.sh"), "--steps", "60", "--out", str(out)]
    with (tmp_path / "log").open("w") as log:
        known = {"cwd": ROOT, "stdout": log, "stderr": log}
        first = subprocess.Popen([*line, "--pause", "0.3"], env=variables | {"PORT": str(free_port())}, **known)
        wait_for((tmp_path / "runs" / "tasks").exists, tmp_path)
        wait_for(lambda: "committed" in journal(runs / "17.0"), tmp_path)
        time.sleep(2)
        for task in (runs / "tasks").read_text().split():
            os.kill(int(task), signal.SIGTERM)
        assert first.wait(60) != 0
        assert "every host was told to end (SIGTERM); the state after step" in (tmp_path / "log").read_text()
        variables |= {"SLURM_RESTART_COUNT": "1", "PORT": str(free_port())}
        assert subprocess.run(line, env=variables, timeout=120, **known, check=False).returncode == 0
    outcome = read(out.parent, 0, (tmp_path / "log").read_text())
    assert outcome.parts == reference.parts, outcome.output


def journal(state: Path) -> str:
    """Whether a step was committed, by the coordinator's log."""
    path = state / "coordinator.wal"
    return "committed" if path.exists() and '"kind":"resume"' in path.read_text() else ""


def wait_for(condition: Any, folder: Path, timeout: float = 90) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.1)


def test_slurm_gives_more_notice_than_the_agent_counts_on() -> None:
    text = (EXAMPLES / "slurm.sh").read_text()
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)$", text, re.MULTILINE))
    assert options["ntasks-per-node"] == "1"
    assert "no-kill" in options, "the loss of a node does not end the job"
    counted = re.search(r"--drain-on-sigterm (\d+)", text)
    assert counted is not None
    assert int(counted.group(1)) < int(options["signal"].removeprefix("TERM@"))


def test_kubernetes_manifests_start_what_the_agent_understands() -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
    assert [each["kind"] for each in documents] == ["Service", "Job", "Deployment", "NetworkPolicy"]
    service, job, spares, policy = documents
    assert service["spec"]["selector"] == job["spec"]["template"]["metadata"]["labels"]
    values = {"$(JOB_COMPLETION_INDEX)": "1", "$(POD)": "train-1", "$(ADDRESS)": "10.0.0.1"}
    found = []
    for document in (job, spares):
        pod = document["spec"]["template"]["spec"]
        command = [values.get(each, each) for each in pod["containers"][0]["command"]]
        assert command[:3] == ["python", "-m", "agent"]
        options = _parser().parse_args(command[3:])
        assert options.rdzv_endpoint == "train-0.train:7000"
        assert pod["terminationGracePeriodSeconds"] >= (getattr(options, "drain_on_sigterm", None) or 0) + 10
        names = {each["name"] for each in pod["containers"][0]["env"]}
        used = set(re.findall(r"\$\((\w+)\)", " ".join(pod["containers"][0]["command"])))
        assert used - {"JOB_COMPLETION_INDEX"} < names
        assert "YOCO_SECRET" in names
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert labels["app"] in policy["spec"]["podSelector"]["matchExpressions"][0]["values"]
        found.append(options)
    assert (found[0].nnodes, found[0].node_rank, found[0].workers) == (job["spec"]["completions"], 1, 8)

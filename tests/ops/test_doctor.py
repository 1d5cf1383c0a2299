"""`manage.py doctor` about Redis and workers, real ones. tests/security/test_production.py has the database's part."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from tests.ops.test_logs import test_database_url, wait_for
from tests.services import ROOT, celery_beat, celery_worker, service_environment
from yoco.core.models import JobRun


def doctor(environment: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What was found, by part."""
    command = [sys.executable, "manage.py", "doctor", "--format=json", "--language=en"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.returncode == 1, "these are no settings for production"
    return {part: [one for one in found if one["part"] == part] for part in {one["part"] for one in found}}


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_a_worker_and_a_beat_are_seen_at_work(server_directory: Path, redis_url: str) -> None:
    environment = service_environment(test_database_url(), redis_url, TICK_SECONDS="1")
    alone = doctor(environment)
    assert [one["state"] for one in alone["Redis"]] == ["ok"]
    assert [(one["state"], one["said"]) for one in alone["workers"]] == [("fault", "None answers.")]
    assert alone["due work"][0]["said"] == "Nothing due was ever done here."
    with celery_worker(server_directory, environment), celery_beat(server_directory, environment):
        wait_for(lambda: JobRun.objects.filter(name="tick").exclude(ended_at=None))
        working = doctor(environment)
    assert [one["state"] for part in ("Redis", "workers", "due work", "clock") for one in working[part]] == ["ok"] * (
        len(working["clock"]) + 3
    )


def test_the_embedded_default_is_told_what_production_needs(
    db: None, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.SECRET_KEY = "embedded-default-for-loopback-only"
    settings.REDIS_URL = ""
    settings.SITE_URL = "http://127.0.0.1:9"
    with pytest.raises(CommandError, match="faults to mend"):
        call_command("doctor", "--language=en")
    told = capsys.readouterr().out
    assert "FAULT  settings: yoco.E001: SECRET_KEY is the embedded default" in told
    assert "FAULT  e-mail: It goes nowhere" in told
    assert "FAULT  public address: SITE_URL http://127.0.0.1:9 leads nowhere" in told
    assert "FAULT  due work: Nothing due was ever done here." in told
    assert "ok     triggers:" in told

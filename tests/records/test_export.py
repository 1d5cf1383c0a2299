"""An organisation's export: all of it, nothing of another, no secret, and a stranger can check it."""

import hashlib
import json
import subprocess
import sys
import tracemalloc
import uuid
import zipfile
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Model
from django.utils import timezone

from tests.people import World, build_world, user
from tests.portal.scene import NOW, Scene, issue_and_approve
from tests.portal.scene import report as agent_report
from tests.portal.test_access import import_file
from tests.services import ROOT, service_environment
from yoco.accounts.invitations import invitation_create
from yoco.accounts.models import Role, User
from yoco.contracts.models import Contract, Order
from yoco.core.models import AuditEntry
from yoco.credits.services import credit_apply
from yoco.guarantee.models import ImportFile
from yoco.guarantee.reviews import dispute_raise, exclusion_propose
from yoco.guarantee.services import reports_accept, years_close
from yoco.guarantee.sharing import statement_share
from yoco.guarantee.snapshots import snapshots_make
from yoco.incidents.models import AgentBoot, Incident, RawReport
from yoco.incidents.review import comment_write
from yoco.notify.endpoints import endpoint_create
from yoco.notify.fan_out import events_fan_out
from yoco.notify.models import WebhookAttempt, WebhookDelivery
from yoco.notify.preferences import mail_preference_set
from yoco.records import export as module
from yoco.records.tables import ELSEWHERE, TABLES, Table


def export(slug: str, to: Path) -> dict[str, bytes]:
    """The files of an export, by name; the manifest's hash is what the command printed."""
    out = StringIO()
    call_command("organisation_export", slug, "--to", str(to), stdout=out)
    if to.is_dir():
        files = {str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*") if path.is_file()}
    else:
        with zipfile.ZipFile(to) as packed:
            files = {name: packed.read(name) for name in packed.namelist()}
    assert hashlib.sha256(files["manifest.json"]).hexdigest() in out.getvalue()
    return files


def rows_of(files: dict[str, bytes], table: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in files[f"{table}.jsonl"].splitlines()]


def verify(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / "tools" / "verify_export.py"), str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def fill(world: World, contract: Contract, owner: User, manager: User, incident: Incident) -> None:
    """A row in each table that people write."""
    organisation = contract.organisation
    endpoint_create(
        organisation=organisation, name="Ops", url=f"https://{organisation.slug}.example/", kinds=[], actor=owner
    )
    invitation_create(
        organisation=organisation, email=f"new@{organisation.slug}.example", role=Role.VIEWER, actor=owner
    )
    comment_write(incident=incident, text=f"Words of {organisation.name}.", actor=owner)
    dispute_raise(incident=incident, text="It was not so.", actor=owner)
    other = Incident.objects.filter(contract=contract).exclude(pk=incident.pk).order_by("pk").first()
    assert other is not None
    exclusion_propose(incident=other, reason="user_error", note="Killed by hand.", actor=manager)
    mail_preference_set(membership=owner.memberships.get(), muted=[], digest="weekly", actor=owner)


@pytest.fixture
def two(scene: Scene) -> Scene:
    """Acme with a row in every table, and the other organisation with its own."""
    world = scene.world
    issue_and_approve(scene)
    credit_apply(order_id=Order.objects.get().pk, actor=world.account_manager)
    import_file(scene)
    fill(world, scene.contract, world.owner, world.account_manager, scene.rolled_back)
    statement_share(statement=scene.closed_year.statements.latest("revision"), days=5, actor=world.owner)
    other = [
        agent_report(scene.closed_year.starts_at, seq=n, boot_id=str(uuid.uuid4()), workload={"run_id": "their-run"})
        for n in (1, 2)
    ]
    assert reports_accept(contract=world.stranger_contract, key=None, reports=other, received_at=NOW).results
    theirs = Incident.objects.filter(contract=world.stranger_contract).order_by("pk")[0]
    fill(world, world.stranger_contract, world.stranger, user("carla@yoco.example", is_account_manager=True), theirs)
    years_close(as_of=NOW)
    events_fan_out()
    for delivery in WebhookDelivery.objects.all():
        WebhookAttempt.objects.create(delivery=delivery, at=NOW, milliseconds=1, status=200)
    return scene


def test_every_row_of_the_organisation_is_there_and_a_stranger_can_check_it(two: Scene, tmp_path: Path) -> None:
    assert snapshots_make(as_of=timezone.now())
    files = export("acme", tmp_path / "acme")
    empty = {
        "regroupings",
        "regrouping_proposals",
        "regrouping_proposal_incidents",
        "restatements_due",
        "step_hours",
        "desk_proposals",
    }
    for table in TABLES:
        found = rows_of(files, table.name)
        # The entry about the export itself came after it.
        assert len(found) == theirs_of(table, two.world.organisation.pk).count() - (table.name == "audit_log")
        assert bool(found) != (table.name in empty), table.name
    manifest = json.loads(files["manifest.json"])
    assert {file["name"] for file in manifest["files"]} == files.keys() - {"manifest.json"}
    statement = two.closed_year.statements.latest("revision")
    assert hashlib.sha256(files[f"statements/{statement.pk}.json"]).hexdigest() == statement.sha256
    upload = ImportFile.objects.get()
    assert files[f"import_files/{upload.pk}.bin"] == bytes(upload.content)
    assert {row["body"] for row in rows_of(files, "raw_reports")} == set(
        RawReport.objects.filter(contract__organisation=two.world.organisation).values_list("body", flat=True)
    )
    people = {row["id"]: row for row in rows_of(files, "people")}
    assert people[str(two.world.owner.pk)]["email"] == "olivia@example.com"
    assert people[str(two.world.account_manager.pk)]["name"] == "Amanda"
    assert "email" not in people[str(two.world.account_manager.pk)]

    sha256 = hashlib.sha256(files["manifest.json"]).hexdigest()
    done = verify(tmp_path / "acme", "--manifest", sha256)
    assert done.returncode == 0, done.stdout + done.stderr
    assert AuditEntry.objects.get(action="organisation.exported").data["manifest_sha256"] == sha256
    assert (tmp_path / "acme").stat().st_mode & 0o077 == 0
    assert (tmp_path / "acme" / "people.jsonl").stat().st_mode & 0o077 == 0


def theirs_of(table: Table, organisation: uuid.UUID) -> Any:
    return table.model._base_manager.filter(**{table.organisation: organisation})


def test_nothing_of_another_organisation_is_in_any_byte(two: Scene, tmp_path: Path) -> None:
    everything = b"\n".join(export("acme", tmp_path / "acme").values())
    assert b"Acme" in everything
    world, marks = two.world, set()
    for table in TABLES:
        for row in theirs_of(table, world.stranger_contract.organisation_id):
            # What a row is known by. Numbers of rows are too short to look for.
            marks |= {str(value) for value in vars(row).values() if isinstance(value, uuid.UUID)}
    marks |= {"other.example", "OTHER-1", "their-run", "stranger", "Words of Other", "Carla"}
    assert len(marks) > 30
    assert {mark for mark in marks if mark.encode() in everything} == set()
    # And the other way round, to see that the marks are ones.
    theirs = b"\n".join(export("other", tmp_path / "other.zip").values())
    assert {mark for mark in marks if mark.encode() in theirs} > {"OTHER-1", "their-run", "Words of Other"}
    assert two.contract.number.encode() not in theirs


def test_no_secret_leaves(two: Scene, tmp_path: Path) -> None:
    files = export("acme", tmp_path / "acme.zip")
    everything = b"\n".join(files.values())
    secret = ("digest", "seed", "old_seed", "password", "pepper")
    for table in TABLES:
        for row in theirs_of(table, two.world.organisation.pk):
            for name in secret:
                value = getattr(row, name, None)
                if isinstance(value, str) and len(value) > 8:
                    assert value.encode() not in everything, (table.name, name)
    for person in User.objects.all():
        assert person.password.encode() not in everything
    names = {key for table in TABLES for row in rows_of(files, table.name) for key in row}
    # A mail's `digest` says weekly or monthly.
    assert names & {*secret, "old_pepper"} == {"digest"}
    assert all(
        "digest" not in row for name in ("keys", "invitations", "statement_shares") for row in rows_of(files, name)
    )


def test_the_same_data_make_the_same_bytes(two: Scene, tmp_path: Path) -> None:
    first = export("acme", tmp_path / "a.zip")
    second = export("acme", tmp_path / "b")
    differ = {name for name in first if first[name] != second[name]}
    assert differ == {"audit_log.jsonl", "manifest.json"}
    assert len(second["audit_log.jsonl"].splitlines()) == len(first["audit_log.jsonl"].splitlines()) + 1


def test_a_change_of_any_file_is_found(two: Scene, tmp_path: Path) -> None:
    root = tmp_path / "acme"
    files = export("acme", root)
    (root / "incidents.jsonl").write_bytes(files["incidents.jsonl"][:-1])
    assert "incidents.jsonl: it is not what the manifest says" in verify(root).stdout
    (root / "incidents.jsonl").write_bytes(files["incidents.jsonl"])
    (root / "more.jsonl").write_text("{}")
    assert "more.jsonl: the manifest does not name it" in verify(root).stdout
    (root / "more.jsonl").unlink()
    # Whoever rewrites the manifest as well is caught by hashes that stand elsewhere.
    for name, old, new, said in (
        ("ledger.jsonl", b'"actor":null', b'"actor":"me"', "does not match its hash"),
        ("raw_reports.jsonl", b"node-", b"n0de-", "its text does not match its hash"),
        (next(name for name in files if name.startswith("statements/")), b"short", b"met", "its hash is not"),
    ):
        changed = files[name].replace(old, new, 1)
        assert changed != files[name]
        (root / name).write_bytes(changed)
        manifest = json.loads(files["manifest.json"])
        for file in manifest["files"]:
            if file["name"] == name:
                file |= {"sha256": hashlib.sha256(changed).hexdigest(), "bytes": len(changed)}
        (root / "manifest.json").write_text(json.dumps(manifest))
        done = verify(root)
        assert done.returncode == 1
        assert said in done.stdout
        assert verify(root, "--manifest", hashlib.sha256(files["manifest.json"]).hexdigest()).returncode == 1
        (root / name).write_bytes(files[name])
    assert verify(tmp_path / "nothing").returncode == 2


def test_it_overwrites_nothing_and_leaves_nothing_half_done(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export("acme", tmp_path / "acme")
    with pytest.raises(CommandError, match="exists already"):
        export("acme", tmp_path / "acme")
    with pytest.raises(CommandError, match="no organisation acne"):
        export("acne", tmp_path / "acne")

    def broken(*_: Any) -> Iterator[bytes]:
        yield b"{}\n"
        raise OSError("no space left on device")

    monkeypatch.setattr("yoco.records.export._ledger", broken)
    for name in ("full", "full.zip"):
        with pytest.raises(CommandError, match="no space left"):
            export("acme", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["acme"]


def test_every_table_is_exported_or_known_to_be_elsewhere() -> None:
    """A new table fails here until somebody has decided."""
    ours: set[type[Model]] = {
        model
        for model in apps.get_models(include_auto_created=True)
        if model.__module__.startswith("yoco.") and not model._meta.label.startswith("accounts.User_")
    }
    exported = {table.model for table in TABLES}
    assert ours == exported | ELSEWHERE.keys()
    assert not exported & ELSEWHERE.keys()
    for table in TABLES:
        names = {field.name for field in table.model._meta.concrete_fields}
        assert table.omit <= names


@pytest.mark.django_db(transaction=True)
def test_writers_go_on_and_the_export_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is written while the export runs is in none of its files; and nobody waits for the export."""
    world = build_world()
    original = module._ledger

    def meanwhile(organisation: Any) -> Iterator[bytes]:
        script = (
            "import django; django.setup();"
            "from yoco.accounts.models import *; from yoco.accounts.services import *;"
            "organisation = Organisation.objects.get(slug='acme');"
            "member_add(organisation=organisation, user=User.objects.get(email='stranger@example.com'),"
            " role=Role.VIEWER, actor=None)"
        )
        url = connection.settings_dict
        address = (
            f"sqlite:///{url['NAME']}"
            if connection.vendor == "sqlite"
            else f"postgresql://{url['USER']}:{url['PASSWORD']}@{url['HOST']}:{url['PORT']}/{url['NAME']}"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], env=service_environment(address), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return original(organisation)

    monkeypatch.setattr(module, "_ledger", meanwhile)
    files = export("acme", tmp_path / "acme")
    assert world.stranger.memberships.count() == 2
    assert b"stranger@example.com" not in files["people.jsonl"]


@pytest.mark.django_db
def test_memory_stays_flat_whatever_the_number_of_rows(world: World, tmp_path: Path) -> None:
    def peak(number: int) -> int:
        """The most that Python held at once, bytes, while it exported so many boots of agents more."""
        for _ in range(number // 1000):
            AgentBoot.objects.bulk_create(
                AgentBoot(contract=world.contract, agent_id="a" * 150, boot_id=uuid.uuid4(), run_id="r" * 150)
                for _ in range(1000)
            )
        tracemalloc.start()
        try:
            call_command("organisation_export", "acme", "--to", str(tmp_path / f"{number}"), stdout=StringIO())
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few = peak(1000)
    assert peak(5000) < few + 1_000_000  # the four thousand rows more have three million bytes as text alone

"""Importing operators' records at the desk: upload, preview, confirm, against the rows that come of it."""

import csv
import datetime
from io import BytesIO, StringIO

import pytest
import time_machine
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.portal.scene import NOW, Scene
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from yoco.core.models import AuditEntry
from yoco.desk import forms
from yoco.guarantee.models import ImportFile, Placement
from yoco.incidents.models import Incident

# Madrid set its clock back on 31 October 2027 at 3:00, so 2:30 came twice.
OUTAGES = """job,host,began,back
train-1,n1,2027-10-02 10:00,2027-10-02 11:00
train-1,n2,2027-10-31 02:30,2027-10-31 05:00
train-1,n3,soon,2027-11-01 05:00
"""
COLUMNS = "run_id=job\nnode=host\nstarted_at=began\nresumed_at=back"
CSV = {
    "format": "csv",
    "time_zone": "Europe/Madrid",
    "columns": COLUMNS,
    "constants": "gpus=8\nresolution=checkpoint_restart",
}
SACCT = """JobID|JobName|State|Start|End|AllocNodes|AllocTRES|NodeList
7|train|NODE_FAIL|2027-10-03T08:00:00|2027-10-03T09:00:00|1|gres/gpu=8|n7
7.batch|batch|CANCELLED|2027-10-03T08:00:00|2027-10-03T09:00:00|1||n7
8|train|COMPLETED|2027-10-03T08:00:00|2027-10-03T09:00:00|1|gres/gpu=8|n8
"""
KERNEL = """2027-10-04T08:00:00+00:00 n9 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.
2027-10-04T08:00:12+00:00 n9 kernel: nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
2027-10-04T08:00:13+00:00 n9 kernel: usb 1-1: new device
"""


def imported() -> list[Incident]:
    return list(Incident.objects.filter(origin="import").order_by("started_at"))


def upload(client: Client, scene: Scene, text: str | bytes, **fields: str) -> HttpResponse:
    file = BytesIO(text if isinstance(text, bytes) else text.encode())
    file.name = "records.txt"
    return client.post(reverse("desk:import", args=[scene.contract.pk]), {"file": file, **fields})


def decide(client: Client, decision: str) -> int:
    url = reverse("desk:import_file", args=[ImportFile.objects.get().pk])
    return client.post(url, {"decision": decision}).status_code


@pytest.fixture
def desk(client: Client, scene: Scene) -> Client:
    client.force_login(scene.world.account_manager)
    return client


def test_a_csv_is_previewed_then_imported(desk: Client, scene: Scene) -> None:
    answer = upload(desk, scene, OUTAGES, **CSV)
    assert answer.status_code == 302
    page = text_of(desk, answer["location"])
    assert "Reports to import 1 Known already 0 Lines rejected 2" in page
    assert "2 2027-10-02T08:00:00Z train-1 n1 imported" in page
    assert "3 2027-10-31 02:30 came twice in Europe/Madrid" in page
    assert not imported()

    assert decide(desk, "confirm") == 302
    (incident,) = imported()
    assert incident.started_at == datetime.datetime(2027, 10, 2, 8, tzinfo=datetime.UTC)
    assert Placement.objects.get(incident=incident).outcome == "not_resolved"
    page = text_of(desk, answer["location"])
    assert "Reports imported 1 Known already 0 Lines rejected 2" in page
    assert AuditEntry.objects.get(action="incidents.imported").data["sha256"] == ImportFile.objects.get().sha256


def test_the_rejected_lines_can_be_downloaded(desk: Client, scene: Scene) -> None:
    upload(desk, scene, OUTAGES, **CSV)
    answer = desk.get(reverse("desk:import_rejects", args=[ImportFile.objects.get().pk]))
    rows = list(csv.DictReader(StringIO(answer.content.decode())))
    assert [row["line"] for row in rows] == ["3", "4"]
    assert "“soon” is not a time" in rows[1]["reason"]
    assert rows[1]["text"] == "train-1,n3,soon,2027-11-01 05:00"


def test_a_fold_resolves_the_repeated_hour(desk: Client, scene: Scene) -> None:
    upload(desk, scene, OUTAGES, **CSV, fold="1")
    decide(desk, "confirm")
    assert imported()[1].started_at == datetime.datetime(2027, 10, 31, 1, 30, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("text", "fields", "told", "node"),
    [
        (SACCT, {"format": "sacct", "time_zone": "UTC"}, "1 job steps", "n7"),
        (KERNEL, {"format": "dmesg", "constants": "run_id=train-9\ngpus=8"}, "1 lines without XID", "n9"),
    ],
    ids=["sacct", "kernel log"],
)
def test_other_formats(desk: Client, scene: Scene, text: str, fields: dict[str, str], told: str, node: str) -> None:
    page = text_of(desk, upload(desk, scene, text, **fields)["location"])
    assert "Reports to import 1 " in page
    assert told in page
    decide(desk, "confirm")
    (incident,) = imported()
    assert incident.node == node


def test_confirming_twice_and_uploading_again_imports_once(desk: Client, scene: Scene) -> None:
    upload(desk, scene, OUTAGES, **CSV)
    assert [decide(desk, "confirm") for _ in range(2)] == [302, 302]
    assert AuditEntry.objects.filter(action="incidents.imported").count() == 1
    page = text_of(desk, upload(desk, scene, OUTAGES, **CSV)["location"])
    assert "Reports to import 0 Known already 1" in page
    assert len(imported()) == 1


def test_a_discarded_file_is_gone_and_an_imported_one_stays(desk: Client, scene: Scene) -> None:
    upload(desk, scene, OUTAGES, **CSV)
    assert decide(desk, "discard") == 302
    assert not ImportFile.objects.exists()
    upload(desk, scene, OUTAGES, **CSV)
    decide(desk, "confirm")
    assert decide(desk, "discard") == 409
    assert ImportFile.objects.get().imported_by == scene.world.account_manager


def test_what_nobody_confirms_is_removed_after_a_day(desk: Client, scene: Scene) -> None:
    upload(desk, scene, OUTAGES, **CSV)
    with time_machine.travel(NOW + datetime.timedelta(days=2)):
        desk.force_login(scene.world.account_manager)
        upload(desk, scene, SACCT, format="sacct", time_zone="UTC")
    assert ImportFile.objects.get().options["format"] == "sacct"


@pytest.mark.parametrize(
    ("text", "fields", "says"),
    [
        ("", CSV, "The submitted file is empty."),
        (OUTAGES, {**CSV, "columns": "run_id=jobs"}, "The file has no column “jobs”. Columns: job, host, began, back."),
        (OUTAGES, {**CSV, "columns": "run_id"}, "Each line takes NAME=VALUE, not “run_id”."),
        (OUTAGES, {**CSV, "time_zone": "Mars/Olympus"}, "Select a valid choice."),
        (KERNEL, {"format": "dmesg"}, "A kernel log does not know the workload"),
        (SACCT, {"format": "sacct", "boot_time": "yesterday"}, "written in ISO 8601 with an offset"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(
    desk: Client, scene: Scene, text: str, fields: dict[str, str], says: str
) -> None:
    answer = upload(desk, scene, text, **fields)
    assert answer.status_code == 200
    assert says in answer.content.decode()
    assert not ImportFile.objects.exists()


def test_bytes_that_are_no_text_are_rejected_line_by_line(desk: Client, scene: Scene) -> None:
    content = OUTAGES.encode().replace(b"soon", b"\xff\x00")
    page = text_of(desk, upload(desk, scene, content, **CSV)["location"])
    assert "Reports to import 1 Known already 0 Lines rejected 2" in page


def test_a_file_beyond_the_limit_is_refused_with_both_sizes(
    desk: Client, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "MAX_BYTES", len(OUTAGES) - 1)
    page = upload(desk, scene, OUTAGES, **CSV).content.decode().replace("\xa0", " ")
    assert f"This file has {len(OUTAGES)} bytes; {len(OUTAGES) - 1} bytes is the most that can be uploaded." in page
    monkeypatch.setattr(forms, "MAX_BYTES", len(OUTAGES))
    assert upload(desk, scene, OUTAGES, **CSV).status_code == 302


def test_customers_can_neither_upload_nor_confirm(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.account_manager)
    upload(client, scene, OUTAGES, **CSV)
    for person in (scene.world.owner, scene.world.stranger):
        client.force_login(person)
        assert upload(client, scene, OUTAGES, **CSV).status_code == 404
        assert decide(client, "confirm") == decide(client, "discard") == 404
    assert not imported()
    assert ImportFile.objects.count() == 1


def test_the_pages_take_few_queries(
    desk: Client, scene: Scene, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    preview = upload(desk, scene, OUTAGES, **CSV)["location"]
    for url in (preview, reverse("desk:import", args=[scene.contract.pk])):
        with django_assert_max_num_queries(QUERIES_PER_PAGE):
            assert desk.get(url).status_code == 200


def test_the_reasons_are_in_the_readers_language_and_fit_the_page(desk: Client, scene: Scene) -> None:
    upload(desk, scene, OUTAGES.replace("2027-10-02 10:00", "2027-03-28 02:30"), **CSV, fold="")
    page = text_of(desk, reverse("desk:import_file", args=[ImportFile.objects.get().pk]), "es")
    assert "3 2027-10-31 02:30 ocurrió dos veces en Europe/Madrid: el reloj se atrasó." in page
    assert "2027-03-28 02:30 no existe en Europe/Madrid: el reloj se adelantó." in page
    assert "--" not in page
    scene.world.account_manager.language = "es"
    scene.world.account_manager.save(update_fields=["language"])
    answer = upload(desk, scene, KERNEL, format="dmesg")
    assert "no conoce la carga de trabajo" in answer.content.decode()
    upload(desk, scene, SACCT, format="sacct", time_zone="UTC")
    page = text_of(desk, reverse("desk:import_file", args=[ImportFile.objects.first().pk]), "es")
    assert "pasos de trabajos" in page

"""Reports: the monthly snapshots beside the statement, in all their forms, against the rows they were frozen in."""

import csv
import datetime
import hashlib
import io
import json
import re

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from pypdf import PdfReader
from pytest_django import DjangoAssertNumQueries

from tests.portal.scene import NOW, Scene, accept, report
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from tests.portal.test_statements import alternative_texts, body
from yoco.guarantee.models import Snapshot
from yoco.guarantee.reviews import dispute_raise
from yoco.guarantee.snapshots import snapshots_make

DASH = "\N{EN DASH}"
DECEMBER = datetime.datetime(2027, 11, 30, 23, tzinfo=datetime.UTC)  # the first of it in Madrid


@pytest.fixture
def owner(client: Client, scene: Scene) -> Client:
    """Twelve snapshots of the closed year and two of the running one, made long after; then November, in time."""
    snapshots_make(as_of=NOW)
    late = report(scene.running_year.starts_at + datetime.timedelta(days=20))
    accept(scene.contract, [late])
    dispute_raise(incident=scene.without_loss, text="It went back.", actor=scene.world.owner)
    with time_machine.travel(DECEMBER, tick=True):
        snapshots_make(as_of=DECEMBER)
    client.force_login(scene.world.owner)
    return client


def url(scene: Scene, form: str, number: int, year: str = "running_year") -> str:
    return reverse(f"portal:snapshot{form}", args=[scene.contract.pk, getattr(scene, year).pk, number])


def test_reports_list_what_was_frozen(owner: Client, scene: Scene) -> None:
    page = text_of(owner, reverse("portal:reports", args=[scene.contract.pk, scene.closed_year.pk]))
    assert "Revision 1 Short 16 of 20" in page
    assert f"1 Aug 2027 {DASH} 31 Aug 2027 16 of 20 -2" in page
    assert page.count("Late") == 12
    running = text_of(owner, reverse("portal:reports", args=[scene.contract.pk, scene.running_year.pk]))
    assert f"1 Nov 2027 {DASH} 30 Nov 2027 13 of 14" in running
    assert "The figures are provisional." in running
    stranger = scene.world.stranger_contract
    owner.force_login(scene.world.stranger)
    empty = text_of(owner, reverse("portal:reports", args=[stranger.pk, stranger.years.get().pk]))
    assert "Monthly snapshots" in empty


def test_a_snapshot_says_what_changed_and_claims_no_verdict(owner: Client, scene: Scene) -> None:
    page = text_of(owner, url(scene, "", 3))
    assert "Provisional: the figures of the contract year up to 30 Nov 2027" in page
    assert "the verdict stands in the statement, once the year has closed" in page
    assert "13 of 14 failures resolved without loss" in page
    assert "Counted 13 14" in page
    assert f"Reported after the snapshot of its month {DASH} Resolved without loss" in page
    assert "Objections that were raised or decided" in page
    assert "Made late" not in page
    for word in ("On course", "Behind:", "commitment was", "Undecided"):
        assert word not in page


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("en", "Made late: on 20 Nov 2027, 11:30 (Europe/Madrid), 19 days after the month had ended."),
        ("es", "Hecha con retraso: el 20 nov 2027, 11:30 (Europe/Madrid), 19 días después de acabar el mes."),
    ],
)
def test_one_that_was_made_late_says_so_on_the_page_and_in_the_document(
    owner: Client, scene: Scene, language: str, words: str
) -> None:
    assert words in text_of(owner, url(scene, "", 2), language)
    pdf = PdfReader(io.BytesIO(body(owner, url(scene, "_pdf", 2), **{"accept-language": language})))
    text = re.sub(r"\s+", " ", " ".join(page.extract_text() for page in pdf.pages).replace("\xa0", " "))
    assert words in text
    assert Snapshot.objects.get(year=scene.running_year, number=2).sha256 in text.replace(" ", "")
    catalogue = pdf.trailer["/Root"]
    assert catalogue["/Lang"] == language
    assert re.search(rb"pdfuaid:part\W+1\b", catalogue["/Metadata"].get_data())
    assert len(alternative_texts(catalogue["/StructTreeRoot"])) == 2


def test_the_files_are_what_was_frozen(owner: Client, scene: Scene) -> None:
    snapshot = Snapshot.objects.get(year=scene.running_year, number=3)
    assert hashlib.sha256(body(owner, url(scene, "_json", 3))).hexdigest() == snapshot.sha256
    rows = list(csv.DictReader(io.StringIO(body(owner, url(scene, "_csv", 3)).decode())))
    frozen = json.loads(snapshot.canonical)["incidents"]
    assert [(row["id"], row["outcome"], row["change"]) for row in rows] == [
        (row["id"], row["outcome"], row["change"]) for row in frozen
    ]
    assert {row["change"] for row in rows} >= {"new", "late_report"}


def test_a_month_without_snapshot_is_not_found_and_pages_take_few_queries(
    owner: Client, scene: Scene, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for form in ("", "_pdf", "_csv", "_json"):
        assert owner.get(url(scene, form, 9)).status_code == 404
        with django_assert_max_num_queries(QUERIES_PER_PAGE):
            body(owner, url(scene, form, 3))
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        body(owner, reverse("portal:reports", args=[scene.contract.pk, scene.closed_year.pk]))

"""A frozen statement in all its forms, against the row it was frozen in."""

import csv
import datetime
import hashlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from pypdf import PdfReader
from pytest_django import DjangoAssertNumQueries

from tests.portal.scene import NOW, Scene, accept, report
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from yoco.guarantee.models import Statement
from yoco.guarantee.services import years_close


@pytest.fixture
def owner(client: Client, scene: Scene) -> Client:
    client.force_login(scene.world.owner)
    return client


def url(scene: Scene, form: str, revision: int = 1) -> str:
    return reverse(f"portal:statement{form}", args=[scene.contract.pk, scene.closed_year.pk, revision])


def body(client: Client, address: str, **headers: str) -> bytes:
    response = client.get(address, headers=headers)
    assert response.status_code == 200
    return b"".join(response.streaming_content) if response.streaming else response.content


def test_the_json_is_byte_for_byte_what_the_hash_is_of(owner: Client, scene: Scene) -> None:
    statement = Statement.objects.get(year=scene.closed_year)
    assert hashlib.sha256(body(owner, url(scene, "_json"))).hexdigest() == statement.sha256


def test_the_csv_has_every_incident_of_the_statement(owner: Client, scene: Scene) -> None:
    rows = list(csv.DictReader(io.StringIO(body(owner, url(scene, "_csv")).decode())))
    frozen = json.loads(Statement.objects.get(year=scene.closed_year).canonical)["incidents"]
    assert [(row["id"], row["outcome"], row["no_rollback"]) for row in rows] == [
        (row["id"], row["outcome"], row["conditions"]["no_rollback"]) for row in frozen
    ]


@pytest.mark.parametrize(
    ("language", "words", "share", "page_of", "alternatives"),
    [
        (
            "en",
            "The commitment was not met.",
            "80.00 %",
            "Page {} of {}",
            [
                "16 of 20 failures resolved without loss; 90 % required",
                "Failures still allowed at the end of each day",
            ],
        ),
        (
            "es",
            "El compromiso no se cumplió.",
            "80,00 %",
            "Página {} de {}",
            ["16 de 20 fallos resueltos sin pérdida; se exige el 90 %", "Fallos aún permitidos al final de cada día"],
        ),
    ],
)
def test_the_pdf_is_tagged_and_says_what_the_page_says(
    owner: Client, scene: Scene, language: str, words: str, share: str, page_of: str, alternatives: list[str]
) -> None:
    pdf = PdfReader(io.BytesIO(body(owner, url(scene, "_pdf"), **{"accept-language": language})))
    # PDF/UA-1: tagged, with a language and a title, and it says so itself.
    catalogue = pdf.trailer["/Root"]
    assert catalogue["/MarkInfo"]["/Marked"]
    assert catalogue["/Lang"] == language
    assert re.search(rb"pdfuaid:part\W+1\b", catalogue["/Metadata"].get_data())
    assert alternative_texts(catalogue["/StructTreeRoot"]) == alternatives
    fonts = {str(font["/BaseFont"]) for page in pdf.pages for font in fonts_of(page)}
    assert all("Inter" in font or "Mono" in font for font in fonts), fonts
    text = re.sub(r"\s+", " ", " ".join(page.extract_text() for page in pdf.pages).replace("\xa0", " "))
    assert words in text
    assert share in text
    sha256 = Statement.objects.get(year=scene.closed_year).sha256
    assert sha256 in text.replace(" ", "")
    for number, page in enumerate(pdf.pages, start=1):  # a sheet that gets lost is missed, and known again
        foot = re.sub(r"\s+", " ", page.extract_text())
        assert page_of.format(number, len(pdf.pages)) in foot
        assert sha256[:16] in foot.replace(" ", "")
    signed = {"en": "Name, date, signature", "es": "Nombre, fecha, firma"}[language]
    assert pdf.pages[-1].extract_text().count(signed) == 2  # on one sheet, whole


def fonts_of(page: Any) -> list[Any]:
    return [font.get_object() for font in page["/Resources"]["/Font"].values()]


def alternative_texts(element: Any) -> list[str]:
    """The alternative texts of the figures below an element of the structure tree."""
    element = element.get_object()
    if not isinstance(element, dict):
        return []
    kids = element.get("/K", [])
    found = [str(element["/Alt"])] if element.get("/S") == "/Figure" else []
    for kid in kids if isinstance(kids, list) else [kids]:
        found += alternative_texts(kid)
    return found


def test_the_export_recomputes_to_the_same_verdict(owner: Client, scene: Scene, tmp_path: Path) -> None:
    tool = Path(settings.BASE_DIR) / "tools" / "recompute.py"
    if not tool.exists():
        pytest.skip("tools/recompute.py is not here yet")
    path = tmp_path / "export.json"
    path.write_bytes(body(owner, reverse("portal:export", args=[scene.contract.pk, scene.closed_year.pk])))
    done = subprocess.run([sys.executable, "-I", tool, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_restatement_names_what_changed_and_the_old_one_points_to_it(owner: Client, scene: Scene) -> None:
    # A report that comes after the year closed: one more failure, resolved without loss.
    accept(scene.contract, [report(scene.closed_year.starts_at + datetime.timedelta(days=20))])
    years_close(as_of=NOW)
    assert "Earlier revisions Revision 1" in text_of(
        owner, reverse("portal:year", args=[scene.contract.pk, scene.closed_year.pk])
    )
    page = text_of(owner, url(scene, "", 2))
    assert "What changed since revision 1" in page
    assert "Counted 20 21" in page
    assert "Resolved without loss 16 17" in page
    assert "A later revision replaces this one." in text_of(owner, url(scene, "", 1))
    assert "80.00 %" in text_of(owner, url(scene, "", 1))  # what was frozen stays
    assert Statement.objects.filter(year=scene.closed_year).count() == 2


def test_a_revision_that_does_not_exist_is_not_found(owner: Client, scene: Scene) -> None:
    for form in ("", "_pdf", "_csv", "_json"):
        assert owner.get(url(scene, form, 9)).status_code == 404


def test_the_page_takes_few_queries(
    owner: Client, scene: Scene, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for form in ("", "_pdf", "_csv", "_json"):
        with django_assert_max_num_queries(QUERIES_PER_PAGE):
            body(owner, url(scene, form))

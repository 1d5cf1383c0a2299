"""A frozen statement as a document: what it says, what changed since the revision before, and its forms CSV and PDF."""

import base64
import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weasyprint
from django.conf import settings
from django.template.loader import render_to_string
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from weasyprint.text.fonts import FontConfiguration
from weasyprint.urls import URLFetcher

from yoco.core.downloads import cell
from yoco.core.templatetags.formats import number, percent, seconds_as_gpu_hours
from yoco.guarantee.labels import rule_sentence
from yoco.guarantee.models import Outcome, Statement, Verdict
from yoco.guarantee.report import YearReport

STATIC = Path(settings.BASE_DIR) / "static"
# The annex names the incidents that cost the customer something; the CSV has all.
ANNEX_OUTCOMES = (Outcome.NOT_RESOLVED, Outcome.UNACCOUNTED, Outcome.EXCLUDED)
ANNEX_ROWS = 200
CSV_COLUMNS = [
    "id",
    "started_at",
    "kind",
    "outcome",
    "rule",
    "unit",
    "lead",
    "live_migration",
    "no_lost_progress",
    "no_rollback",
    "no_recompute",
    "waste_actual_gpu_ms",
    "waste_counterfactual_gpu_ms",
    "waste_estimated",
    "synthetic",
]


@dataclass(frozen=True, slots=True)
class Change:
    """A figure that differs from the revision before."""

    name: str | Promise
    before: str
    after: str


def changes_between(before: YearReport, after: YearReport) -> list[Change]:
    """The figures of a report that a restatement changed."""
    rows: list[tuple[str | Promise, str, str]] = [
        (_("Verdict"), str(Verdict(before.verdict).label), str(Verdict(after.verdict).label)),
        (_("Resolved without loss"), number(before.resolved), number(after.resolved)),
        (_("Counted"), number(before.counted), number(after.counted)),
        (_("Share"), percent(before.share_floor), percent(after.share_floor)),
        (_("Excluded"), number(before.excluded), number(after.excluded)),
        (_("Unaccounted"), number(before.unaccounted), number(after.unaccounted)),
        (_("Not counted"), number(before.not_counted), number(after.not_counted)),
        (
            _("Wasted GPU-hours"),
            seconds_as_gpu_hours(before.waste.actual_gpu_seconds),
            seconds_as_gpu_hours(after.waste.actual_gpu_seconds),
        ),
    ]
    return [Change(name, old, new) for name, old, new in rows if old != new]


@dataclass(frozen=True, slots=True)
class Annex:
    """Incidents that a statement names one by one; `total` may be more than `rows`."""

    rows: list[dict[str, Any]]
    total: int


def annex_of(content: dict[str, Any]) -> Annex:
    """The units of the canonical JSON that were not resolved, went silent or were excluded, with the rule in words."""
    named = [row for row in content["incidents"] if row["lead"] and row["outcome"] in ANNEX_OUTCOMES]
    rows = [row | {"sentence": rule_sentence(row["rule"])} for row in named[:ANNEX_ROWS]]
    return Annex(rows=rows, total=len(named))


def statement_csv(statement: Statement) -> Iterable[str]:
    """Every incident of the statement, one a line, names and values as in its JSON."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, CSV_COLUMNS, extrasaction="ignore", lineterminator="\r\n")
    writer.writeheader()
    for row in json.loads(statement.canonical)["incidents"]:
        writer.writerow({name: cell(value) for name, value in {**row, **row["conditions"]}.items()})
        if buffer.tell() > 64 * 1024:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def statement_pdf(context: dict[str, Any]) -> bytes:
    """The statement as PDF/UA-1. It reads files of ours only: one that fetched from the network could leak or hang."""
    drawing = render_to_string("documents/gauge.svg", context)
    image = "data:image/svg+xml;base64," + base64.b64encode(drawing.encode()).decode()
    page = render_to_string("documents/statement.html", {**context, "gauge_image": image})
    fetcher = URLFetcher(allowed_protocols={"file", "data"})
    fonts = FontConfiguration()
    sheet = weasyprint.CSS(filename=STATIC / "css" / "document.css", url_fetcher=fetcher, font_config=fonts)
    document = weasyprint.HTML(string=page, base_url=str(STATIC), url_fetcher=fetcher)
    pdf: bytes = document.write_pdf(stylesheets=[sheet], font_config=fonts, pdf_variant="pdf/ua-1")
    return pdf

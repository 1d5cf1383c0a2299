"""Frozen statements and snapshots as documents: what they say, what changed since the one before, as CSV and PDF."""

import base64
import csv
import io
import json
from collections.abc import Iterable, Iterator
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
from yoco.guarantee.labels import change_words, rule_sentence
from yoco.guarantee.models import Outcome, Snapshot, Statement, Verdict
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
SNAPSHOT_COLUMNS = [*CSV_COLUMNS, "change", "outcome_before", "rule_before"]


@dataclass(frozen=True, slots=True)
class Change:
    """A figure that differs from the revision before."""

    name: str | Promise
    before: str
    after: str


def changes_between(before: YearReport, after: YearReport) -> list[Change]:
    """The figures of a report that differ from those of the statement or snapshot before."""
    rows: list[tuple[str | Promise, str, str]] = [
        (_("Verdict"), str(Verdict(before.verdict).label), str(Verdict(after.verdict).label)),
        (_("Resolved without loss"), number(before.resolved), number(after.resolved)),
        (_("Counted"), number(before.counted), number(after.counted)),
        (_("Share"), percent(before.share_floor), percent(after.share_floor)),
        (
            _("Failures still allowed"),
            number(before.failures_still_allowed),
            number(after.failures_still_allowed),
        ),
        (_("Pending"), number(before.pending), number(after.pending)),
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
    """Incidents that a document names one by one; `total` may be more than `rows`."""

    rows: list[dict[str, Any]]
    total: int


def annex_of(content: dict[str, Any]) -> Annex:
    """The units of the canonical JSON that were not resolved, went silent or were excluded, with the rule in words."""
    named = [row for row in content["incidents"] if row["lead"] and row["outcome"] in ANNEX_OUTCOMES]
    rows = [row | {"sentence": rule_sentence(row["rule"])} for row in named[:ANNEX_ROWS]]
    return Annex(rows=rows, total=len(named))


def changes_named(content: dict[str, Any]) -> Annex:
    """The incidents of earlier months that a snapshot's canonical JSON names because they stand otherwise than before,
    with why in words."""
    named = [row for row in content["incidents"] if row["change"] != "new"] + removed_of(content)
    rows = [row | {"sentence": change_words(row["change"])} for row in named[:ANNEX_ROWS]]
    return Annex(rows=rows, total=len(named))


def removed_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The incidents that left the year since the snapshot before, in the shape of those that are in it."""
    return [row | {"change": "removed", "conditions": {}} for row in content["removed"]]


def statement_csv(statement: Statement) -> Iterator[str]:
    """Every incident of the statement, one a line, names and values as in its JSON."""
    return _csv(json.loads(statement.canonical)["incidents"], CSV_COLUMNS)


def snapshot_csv(snapshot: Snapshot) -> Iterator[str]:
    """Every incident that the snapshot names, with why, and where it stood before."""
    content = json.loads(snapshot.canonical)
    return _csv(content["incidents"] + removed_of(content), SNAPSHOT_COLUMNS)


def _csv(rows: Iterable[dict[str, Any]], columns: list[str]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: cell(value) for name, value in {**row, **row["conditions"]}.items()})
        if buffer.tell() > 64 * 1024:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def statement_pdf(context: dict[str, Any]) -> bytes:
    """The statement as PDF/UA-1."""
    return _pdf("documents/statement.html", context)


def snapshot_pdf(context: dict[str, Any]) -> bytes:
    """The monthly snapshot as PDF/UA-1."""
    return _pdf("documents/snapshot.html", context)


def _pdf(template: str, context: dict[str, Any]) -> bytes:
    """It reads files of ours only: one that fetched from the network could leak or hang."""
    images = {"gauge_image": _drawing("documents/gauge.svg", context)}
    if context["budget"]:
        images["budget_image"] = _drawing("documents/budget.svg", context)
    page = render_to_string(template, {**context, **images})
    fetcher = URLFetcher(allowed_protocols={"file", "data"})
    fonts = FontConfiguration()
    sheet = weasyprint.CSS(filename=STATIC / "css" / "document.css", url_fetcher=fetcher, font_config=fonts)
    document = weasyprint.HTML(string=page, base_url=str(STATIC), url_fetcher=fetcher)
    pdf: bytes = document.write_pdf(stylesheets=[sheet], font_config=fonts, pdf_variant="pdf/ua-1")
    return pdf


def _drawing(template: str, context: dict[str, Any]) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(render_to_string(template, context).encode()).decode()

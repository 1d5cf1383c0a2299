"""Everything that a stranger needs to recompute a year's share and verdict, as plain JSON values.

`tools/recompute.py` reads it and nothing else. The placings are in it only to be compared.
"""

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.rules import Placing, Review, Terms, Year

FORMAT = "yoco.export/2"


def instant(at: datetime.datetime | None) -> str | None:
    """RFC 3339 in UTC, to the microsecond where there is one."""
    return at.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z") if at is not None else None


def _plain(value: Any) -> Any:
    return instant(value) if isinstance(value, datetime.datetime) else value


def terms_content(terms: Terms) -> dict[str, Any]:
    """The fields that decide placing and verdict, by name."""
    return {**dataclasses.asdict(terms), "exclusions": list(terms.exclusions)}


def year_content(year: Year) -> dict[str, Any]:
    """A contract year, its guaranteed part and the terms that it is judged under."""
    values = {field.name: _plain(getattr(year, field.name)) for field in fields(Year) if field.name != "terms"}
    return {**values, "terms": terms_content(year.terms) if year.terms else None}


def facts_content(facts: IncidentFacts) -> dict[str, Any]:
    """Every fact of an incident, by name."""
    values = {field.name: _plain(getattr(facts, field.name)) for field in fields(IncidentFacts)}
    return {**values, "trigger_detail": dict(facts.trigger_detail)}


def placing_content(placing: Placing) -> dict[str, Any]:
    """Where the service placed an incident, to compare a recomputation with."""
    return {
        "unit": placing.unit_key,
        "lead": placing.lead,
        "kind": placing.kind,
        "outcome": placing.outcome,
        "rule": placing.rule,
    }


def export_content(
    *,
    year_id: str,
    years: Sequence[Year],
    incidents: Iterable[IncidentFacts],
    placed: Mapping[str, Mapping[str, Any]],
    reviews: Mapping[str, Review],
    claimed: Mapping[str, Any],
    statement: Mapping[str, Any] | None,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The export of one year. `placed` and `claimed` say what the service makes of the facts today, `statement` is the
    latest that it froze, as text with its hash; `about` is for people.

    `incidents` are all members of the units of that year, so nothing outside them can change how they group. All years
    of the contract are named, because a workload may fail again across a boundary.
    """
    rows = []
    for facts in incidents:
        review = reviews.get(facts.id, Review())
        rows.append(
            {
                "facts": facts_content(facts),
                "review": {"excluded_for": review.excluded_for, "dispute_upheld": review.dispute_upheld},
                "placed": placed.get(facts.id),
            }
        )
    return {
        "format": FORMAT,
        **about,
        "year": year_id,
        "years": [year_content(year) for year in years],
        "incidents": rows,
        "claimed": dict(claimed),
        "statement": dict(statement) if statement is not None else None,
    }

"""Small parts that pages and documents repeat: badges, the gauge, the query string of a list."""

from typing import Any

from django import template
from django.http import QueryDict
from django.utils.html import format_html
from django.utils.safestring import SafeString

from yoco.contracts.models import YearState
from yoco.guarantee.labels import restatement_because, rule_sentence
from yoco.guarantee.models import Outcome, Verdict
from yoco.incidents.models import Kind

register = template.Library()

TONES = {
    Outcome.RESOLVED.value: "good",
    Outcome.NOT_RESOLVED.value: "bad",
    Outcome.PENDING.value: "warn",
    Outcome.UNACCOUNTED.value: "bad",
    Outcome.EXCLUDED.value: "quiet",
    Outcome.NOT_COUNTED.value: "quiet",
}
VERDICT_TONES = {Verdict.MET.value: "good", Verdict.NO_FAILURES.value: "good", Verdict.SHORT.value: "bad"}
YEAR_TONES = {YearState.OPEN.value: "good", YearState.CLOSING.value: "warn", YearState.CLOSED.value: "quiet"}


@register.simple_tag
def outcome_badge(outcome: str) -> SafeString:
    """The outcome of an incident as a word with a mark."""
    return format_html('<span class="badge {}">{}</span>', TONES[outcome], Outcome(outcome).label)


@register.simple_tag
def verdict_badge(verdict: str) -> SafeString:
    """The verdict over a year as a word with a mark."""
    return format_html('<span class="badge {}">{}</span>', VERDICT_TONES.get(verdict, "warn"), Verdict(verdict).label)


@register.simple_tag
def year_badge(state: str) -> SafeString:
    """Whether a contract year is open, closing or closed."""
    return format_html('<span class="badge {}">{}</span>', YEAR_TONES[state], YearState(state).label)


@register.simple_tag
def query(current: QueryDict, **changes: Any) -> str:
    """The query string of this page with parameters set, or dropped where empty; a new filter starts at page one."""
    new = current.copy()
    for cursor in ("newer_than", "older_than", "page"):
        new.pop(cursor, None)
    for name, value in changes.items():
        if value in ("", None):
            new.pop(name, None)
        else:
            new[name] = str(value)
    return "?" + new.urlencode() if new else "?"


@register.simple_tag
def outcome_word(outcome: str) -> str:
    """The outcome of an incident as a word, for documents and tables of frozen rows."""
    return str(Outcome(outcome).label)


@register.simple_tag
def kind_word(kind: str) -> str:
    """The kind of an incident as a word."""
    return str(Kind(kind).label)


@register.simple_tag
def rule_words(rule: str) -> str:
    """What the rule says that placed an incident, as a sentence."""
    return rule_sentence(rule)


@register.filter
def because(reason: str) -> str:
    """Why a statement was restated, in the reader's language."""
    return restatement_because(reason)

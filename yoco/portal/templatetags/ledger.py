"""Credits and ledger entries on pages of both faces."""

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from yoco.core.money import Money
from yoco.core.templatetags.formats import reader_locale
from yoco.credits.models import CreditState, LedgerTransaction

register = template.Library()

TONES = {
    CreditState.PROPOSED.value: "warn",
    CreditState.ISSUED.value: "warn",
    CreditState.APPROVED.value: "good",
    CreditState.EXPIRED.value: "quiet",
    CreditState.REVERSED.value: "quiet",
}


@register.simple_tag
def credit_badge(state: str) -> SafeString:
    """The state of a credit as a word with a mark."""
    return format_html('<span class="badge {}">{}</span>', TONES[state], CreditState(state).label)


@register.simple_tag
def postings_sum(entry: LedgerTransaction) -> str:
    """The sum of an entry's postings, added up here and now: zero, or the books are broken and the page shows it."""
    postings = entry.postings.all()
    sums: dict[str, int] = {}
    for posting in postings:
        sums[posting.account.currency] = sums.get(posting.account.currency, 0) + posting.minor
    return " · ".join(Money(minor, currency).format(reader_locale()) for currency, minor in sums.items())

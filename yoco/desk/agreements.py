"""What is agreed with a customer, as people read it, so that a change can be shown before it is made."""

from django.utils.translation import gettext as _

from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.contracts.selectors import year_terms_of
from yoco.contracts.words import Change, terms_rows
from yoco.core.templatetags.formats import day, money
from yoco.credits.selectors import local_date

# By a name that stays the same whatever changes: the label, and what it says.
Facts = dict[str, tuple[str, str]]


def contract_facts(contract: Contract) -> Facts:
    """A contract, its years and its latest terms, from the database as it is now."""
    contract = Contract.objects.select_related("organisation").get(pk=contract.pk)
    versions = list(contract.terms.order_by("version"))
    facts: Facts = {
        "customer": (_("Customer"), contract.organisation.name),
        "number": (_("Contract"), f"{contract.number} · {contract.name}"),
        "currency": (_("Currency"), contract.currency),
        "time_zone": (_("Time zone"), contract.time_zone),
        "from": (_("First day"), day(contract.starts_on)),
        "to": (_("Last day"), day(contract.last_day)),
        "guarantee": (
            _("First guaranteed day"),
            day(contract.guarantee_from) if contract.guarantee_from else _("No guarantee"),
        ),
    }
    if contract.price_per_gpu_hour is not None:
        facts["price"] = (_("Price of a GPU-hour"), str(contract.price_per_gpu_hour))
    for year in contract.years.order_by("number"):
        label = _("Year %(number)s") % {"number": year.number}
        facts[f"year {year.number}"] = (label, _year(year, contract, versions))
    if versions:
        latest = versions[-1]
        facts["version"] = (
            _("Latest terms"),
            _("version %(version)s, from %(day)s") % {"version": latest.version, "day": day(latest.effective_on)},
        )
        facts |= {f"terms {row.name}": (str(row.label), row.value) for row in terms_rows(latest)}
    return facts


def _year(year: ContractYear, contract: Contract, versions: list[GuaranteeTerms]) -> str:
    parts = [f"{day(year.starts_on)} – {day(year.last_day)}"]  # noqa: RUF001
    terms = year_terms_of(versions, year=year, contract=contract)
    if terms is None or year.guaranteed_from is None:
        parts.append(_("not guaranteed"))
    else:
        guaranteed = local_date(year.guaranteed_from, contract.time_zone)
        if guaranteed != year.starts_on:
            parts.append(_("guaranteed from %(day)s") % {"day": day(guaranteed)})
        parts.append(_("terms version %(version)s") % {"version": terms.version})
    if year.fees_minor is not None:
        parts.append(_("fees %(amount)s") % {"amount": money(year.fees_minor, contract.currency)})
    return " · ".join(parts)


def facts_changes(before: Facts, after: Facts) -> list[Change]:
    """What differs, in the order of the facts; what there is no longer comes last."""
    changes = [
        Change(label, before[name][1] if name in before else "", value)
        for name, (label, value) in after.items()
        if name not in before or before[name][1] != value
    ]
    gone = [Change(label, value, _("no longer")) for name, (label, value) in before.items() if name not in after]
    return changes + gone

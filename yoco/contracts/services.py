"""Writing contracts: the contract, versions of its terms, its years, its orders."""

import datetime
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django.db import transaction
from django.db.models import Max
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import Organisation, User
from yoco.accounts.services import organisation_create
from yoco.contracts.calendar import year_span
from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import (
    OFFERED_FROM,
    Contract,
    ContractYear,
    ExclusionReason,
    GuaranteeTerms,
    Order,
    OrderKind,
    OrderState,
    YearState,
)
from yoco.contracts.selectors import terms_in_force
from yoco.core.audit import audit_record
from yoco.core.clock import local_midnight
from yoco.core.money import CURRENCIES, Money
from yoco.core.problem import DomainError

# Named by every version; the rest of GuaranteeTerms are the fields that a version sets.
TERMS_IDENTITY = {"id", "contract", "version", "effective_on", "created_at", "created_by"}
TERMS_CHOICES = {
    field.name: {value for value, _label in field.flatchoices}
    for field in GuaranteeTerms._meta.concrete_fields
    if field.flatchoices
}
MOST_EXPIRY_MONTHS = 1200  # a century; dates end with the year 9999
TERMS_FIELDS = [field.name for field in GuaranteeTerms._meta.concrete_fields if field.name not in TERMS_IDENTITY]


@transaction.atomic
def contract_create(
    *,
    organisation: Organisation,
    number: str,
    name: str,
    currency: str,
    time_zone: str,
    starts_on: datetime.date,
    ends_on: datetime.date,
    actor: User | None,
    guarantee_from: datetime.date | None = None,
    price_per_gpu_hour: Any = None,
    terms: dict[str, Any] | None = None,
) -> Contract:
    """A new contract with its years and version 1 of its terms (the published defaults, changed by `terms`).

    Raises DomainError for an unknown currency or time zone, an empty contract, and a guarantee outside the contract or
    before it was offered.
    """
    if currency not in CURRENCIES:
        raise DomainError(_("%(code)s is no ISO 4217 currency.") % {"code": currency}, code="bad_currency")
    if time_zone not in available_timezones():
        raise DomainError(_("%(zone)s is no IANA time zone.") % {"zone": time_zone}, code="bad_time_zone")
    if ends_on <= starts_on:
        raise DomainError(_("A contract ends after it starts."), code="bad_period")
    contract = Contract(
        organisation=organisation,
        number=number,
        name=name,
        currency=currency,
        time_zone=time_zone,
        starts_on=starts_on,
        ends_on=ends_on,
        price_per_gpu_hour=price_per_gpu_hour,
    )
    if guarantee_from is not None:
        _check_guarantee(contract, guarantee_from)
        contract.guarantee_from = guarantee_from
    if Contract.objects.filter(number=number).exists():
        raise DomainError(_("There is already a contract %(number)s.") % {"number": number}, code="number_taken")
    contract.save(force_insert=True)
    audit_record(
        action="contract.created",
        actor=actor,
        subject=contract,
        organisation_id=organisation.pk,
        data={"number": number},
    )
    terms_create_version(contract=contract, effective_on=starts_on, actor=actor, **(terms or {}))
    return contract


@transaction.atomic
def customer_contract_create(*, customer: str, actor: User | None, **contract: Any) -> Contract:
    """The first contract of a new customer: the organisation with this name and its contract, or neither."""
    organisation = organisation_create(name=customer, actor=actor)
    return contract_create(organisation=organisation, actor=actor, **contract)


def _check_guarantee(contract: Contract, day: datetime.date) -> None:
    if day < OFFERED_FROM:
        raise DomainError(
            _("The guarantee is offered from %(day)s on.") % {"day": OFFERED_FROM.isoformat()}, code="not_offered_yet"
        )
    if not contract.starts_on <= day < contract.ends_on:
        raise DomainError(_("The guarantee begins on a day of the contract."), code="outside_contract")


def _held(contract: Contract) -> Contract:
    contracts_lock([contract.pk])
    return Contract.objects.get(pk=contract.pk)


@transaction.atomic
def guarantee_add(*, contract: Contract, guarantee_from: datetime.date, actor: User | None) -> Contract:
    """Adds the guarantee to a contract in force. It cannot be moved once it began to count.

    Raises DomainError if the contract has the guarantee already or the day is not possible.
    """
    contract = _held(contract)
    if contract.guarantee_from is not None:
        raise DomainError(_("This contract has the guarantee already."), code="guarantee_exists")
    _check_guarantee(contract, guarantee_from)
    year = contract.years.filter(starts_on__lte=guarantee_from, ends_on__gt=guarantee_from)
    if year.exclude(state=YearState.OPEN, ends_at__gt=timezone.now()).exists():
        raise DomainError(_("The guarantee cannot begin in a year that has ended."), code="year_ended")
    contract.guarantee_from = guarantee_from
    contract.save(update_fields=["guarantee_from"])
    contract_years_ensure(contract=contract)
    audit_record(
        action="contract.guarantee_added",
        actor=actor,
        subject=contract,
        organisation_id=contract.organisation_id,
        data={"guarantee_from": guarantee_from.isoformat()},
    )
    return contract


@transaction.atomic
def terms_create_version(
    *, contract: Contract, effective_on: datetime.date, actor: User | None, **fields: Any
) -> GuaranteeTerms:
    """A new version of the terms: the version before it, changed by `fields`, from `effective_on` on.

    A year is judged under the version in force on its first guaranteed day, so a version may not reach back into a year
    that has begun. Raises DomainError then, for unknown fields and for values that the terms do not list.
    """
    contract = _held(contract)
    versions = list(contract.terms.order_by("version"))
    previous = versions[-1] if versions else None
    unknown = sorted(set(fields) - set(TERMS_FIELDS))
    if unknown:
        raise DomainError(_("No such terms: %(names)s.") % {"names": ", ".join(unknown)}, code="unknown_terms")
    if previous is not None:
        _check_effective(contract, previous, effective_on)
    values = {name: getattr(previous, name) for name in TERMS_FIELDS} if previous else {}
    terms = GuaranteeTerms(
        contract=contract,
        version=previous.version + 1 if previous else 1,
        effective_on=effective_on,
        created_by=actor,
        **{**values, **fields},
    )
    _check_terms(terms)
    if previous is not None:
        _check_caps_kept(previous, terms)
    terms.save(force_insert=True)
    contract_years_ensure(contract=contract)
    audit_record(
        action="terms.created",
        actor=actor,
        subject=terms,
        organisation_id=contract.organisation_id,
        data={"version": terms.version, "effective_on": effective_on.isoformat(), "changed": sorted(fields)},
    )
    return terms


def _check_effective(contract: Contract, previous: GuaranteeTerms, effective_on: datetime.date) -> None:
    if effective_on <= previous.effective_on:
        raise DomainError(
            _("Version %(version)s takes effect on %(day)s; a later version takes effect later.")
            % {"version": previous.version, "day": previous.effective_on.isoformat()},
            code="not_later",
        )
    begun = contract.years.filter(starts_at__lte=timezone.now()).aggregate(last=Max("starts_on"))["last"]
    first_guaranteed = max(begun, contract.guarantee_from or begun) if begun else None
    if first_guaranteed is not None and effective_on <= first_guaranteed <= _today(contract):
        raise DomainError(
            _("A year that has begun keeps its terms; the new version can take effect after %(day)s.")
            % {"day": first_guaranteed.isoformat()},
            code="year_begun",
        )


def _check_caps_kept(previous: GuaranteeTerms, terms: GuaranteeTerms) -> None:
    """What credits may pay of an order is settled on its date: another cap cannot reach orders that are recorded."""
    cap = (terms.credit_cap_num, terms.credit_cap_den)
    if cap == (previous.credit_cap_num, previous.credit_cap_den):
        return
    last = terms.contract.orders.aggregate(last=Max("ordered_on"))["last"]
    if last is not None and terms.effective_on <= last:
        raise DomainError(
            _("An order of %(day)s is recorded; another cap can take effect after that day.")
            % {"day": last.isoformat()},
            code="order_recorded",
        )


def _today(contract: Contract) -> datetime.date:
    return timezone.now().astimezone(ZoneInfo(contract.time_zone)).date()


def _check_terms(terms: GuaranteeTerms) -> None:
    """Every value is one that the terms list, so that a report can never meet one it does not honour."""
    for name in TERMS_FIELDS:
        choices = TERMS_CHOICES.get(name)
        if choices and getattr(terms, name) not in choices:
            raise DomainError(
                _("%(value)s is no value for %(name)s.") % {"value": getattr(terms, name), "name": name},
                code="bad_terms",
            )
    reasons = terms.exclusions
    if not isinstance(reasons, list) or not set(reasons) <= set(ExclusionReason.values):
        raise DomainError(_("Exclusions are a list of reasons that the terms know."), code="bad_terms")
    for num, den in (
        (terms.threshold_num, terms.threshold_den),
        (terms.credit_cap_num, terms.credit_cap_den),
        (terms.credit_rate_num, terms.credit_rate_den),
    ):
        if not 0 <= num <= den or den == 0:
            raise DomainError(_("A share lies between 0 and 1."), code="bad_terms")
    if terms.threshold_num == 0 or terms.credit_cap_num == 0:
        raise DomainError(_("The threshold and the cap are greater than zero."), code="bad_terms")
    complete = {
        "contract_end": terms.credit_expires_on is None and not terms.credit_expiry_months,
        "date": terms.credit_expires_on is not None and not terms.credit_expiry_months,
        "months": terms.credit_expires_on is None and bool(terms.credit_expiry_months),
    }
    if not complete[terms.credit_expiry]:
        raise DomainError(_("The expiry of credits needs exactly its own date or months."), code="bad_terms")
    if (terms.credit_expiry_months or 0) > MOST_EXPIRY_MONTHS:
        raise DomainError(
            _("A credit expires at most %(months)s months after issue.") % {"months": MOST_EXPIRY_MONTHS},
            code="bad_terms",
        )


@transaction.atomic
def contract_years_ensure(*, contract: Contract) -> list[ContractYear]:
    """Makes the contract's years, and brings those that have not begun in line with its terms and guarantee.

    Calling it again changes nothing. A year that has begun keeps its boundaries; an open one gains its guaranteed part
    when the guarantee is added to a contract in force, and ends with a contract that ends early.
    """
    contract = _held(contract)
    versions = list(contract.terms.all())
    existing = {year.number: year for year in contract.years.all()}
    now = timezone.now()
    at, number = contract.starts_on, 1
    years: list[ContractYear] = []
    while at < contract.ends_on:
        year = existing.get(number) or ContractYear(contract=contract, number=number)
        terms = terms_in_force(versions, at)
        span = year_span(
            number=number,
            starts_on=at,
            contract_starts_on=contract.starts_on,
            contract_ends_on=contract.ends_on,
            leap_day=terms.leap_day_anniversary if terms else "feb_28",  # type: ignore[arg-type]
        )
        if year._state.adding:
            _year_bound(year, span.starts_on, span.ends_on)
            _year_guarantee(year)
            year.save(force_insert=True)
        elif year.state == YearState.OPEN:
            if year.starts_at > now or contract.ends_on < year.ends_on:
                _year_bound(year, span.starts_on, span.ends_on)
            _year_guarantee(year)
            year.save(
                update_fields=["starts_on", "ends_on", "starts_at", "ends_at", "guaranteed_from", "guaranteed_until"]
            )
        years.append(year)
        at, number = year.ends_on, number + 1
    contract.years.filter(number__gte=number, starts_at__gt=now).delete()
    return years


def _year_bound(year: ContractYear, starts_on: datetime.date, ends_on: datetime.date) -> None:
    zone = year.contract.time_zone
    year.starts_on, year.ends_on = starts_on, ends_on
    year.starts_at, year.ends_at = local_midnight(starts_on, zone), local_midnight(ends_on, zone)


def _year_guarantee(year: ContractYear) -> None:
    day = year.contract.guarantee_from
    if day is None or day >= year.ends_on:
        year.guaranteed_from = year.guaranteed_until = None
        return
    year.guaranteed_from = local_midnight(max(day, year.starts_on), year.contract.time_zone)
    year.guaranteed_until = year.ends_at


@transaction.atomic
def contract_end_early(*, contract: Contract, ends_on: datetime.date, actor: User | None, reason: str) -> Contract:
    """Ends a contract before its term; its running year ends with it and has its verdict over that part.

    Raises DomainError if its last day would lie before today or its start, and if that is not earlier than now.
    """
    contract = _held(contract)
    # Today is always part of it: what happened this morning counts, and a year that begins today keeps a day.
    first = max(_today(contract), contract.starts_on)
    if not first < ends_on < contract.ends_on:
        raise DomainError(
            _("The last day of a contract that ends early lies on %(first)s or later, and before %(last)s.")
            % {"first": first.isoformat(), "last": contract.last_day.isoformat()},
            code="bad_end",
        )
    before, contract.ends_on = contract.ends_on, ends_on
    if contract.guarantee_from is not None and contract.guarantee_from >= ends_on:
        contract.guarantee_from = None
    contract.save(update_fields=["ends_on", "guarantee_from"])
    contract_years_ensure(contract=contract)
    audit_record(
        action="contract.ended_early",
        actor=actor,
        subject=contract,
        organisation_id=contract.organisation_id,
        data={"before": before.isoformat(), "ends_on": ends_on.isoformat(), "reason": reason},
    )
    return contract


@transaction.atomic
def order_record(
    *,
    contract: Contract,
    number: str,
    kind: str,
    amount: Money,
    ordered_on: datetime.date,
    actor: User | None,
) -> Order:
    """Records a renewal or an expansion. Raises DomainError for another currency, an amount of zero or less, an unknown
    kind and a number that exists."""
    if kind not in OrderKind.values:
        raise DomainError(_("An order is a renewal or an expansion."), code="bad_kind")
    if amount.currency != contract.currency:
        raise DomainError(
            _("Orders of this contract are in %(code)s.") % {"code": contract.currency}, code="wrong_currency"
        )
    if amount.minor <= 0:
        raise DomainError(_("The amount of an order is greater than zero."), code="bad_amount")
    if Order.objects.filter(number=number).exists():
        raise DomainError(_("There is already an order %(number)s.") % {"number": number}, code="number_taken")
    order = Order.objects.create(
        contract=contract,
        number=number,
        kind=kind,
        amount_minor=amount.minor,
        currency=amount.currency,
        ordered_on=ordered_on,
    )
    audit_record(
        action="order.recorded",
        actor=actor,
        subject=order,
        organisation_id=contract.organisation_id,
        data={"number": number, "kind": kind, "amount_minor": amount.minor, "currency": amount.currency},
    )
    return order


@transaction.atomic
def order_cancel(*, order: Order, actor: User | None, reason: str) -> Order:
    """Cancels an order. What credits paid of it is reinstated by `credits.services.credits_reinstate`, in the same
    transaction of the caller. Raises DomainError if it is cancelled already."""
    now = timezone.now()
    changed = Order.objects.filter(pk=order.pk, state=OrderState.RECORDED).update(
        state=OrderState.CANCELLED, cancelled_at=now
    )
    if changed != 1:
        raise DomainError(_("This order is cancelled already."), code="already_cancelled")
    order.refresh_from_db()
    audit_record(
        action="order.cancelled",
        actor=actor,
        subject=order,
        organisation_id=order.contract.organisation_id,
        data={"number": order.number, "reason": reason},
    )
    return order

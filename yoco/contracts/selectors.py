"""Reading contracts: the terms of a year, its boundaries, when it closes."""

import datetime
from dataclasses import dataclass, field

from yoco.contracts.calendar import anniversary
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.core.clock import local_midnight


def terms_in_force(versions: list[GuaranteeTerms], day: datetime.date) -> GuaranteeTerms | None:
    """The version in force on a day, of a contract's versions in any order; None before the first takes effect."""
    begun = [terms for terms in versions if terms.effective_on <= day]
    return max(begun, key=lambda terms: terms.effective_on, default=None)


def year_terms_of(versions: list[GuaranteeTerms], *, year: ContractYear, contract: Contract) -> GuaranteeTerms | None:
    """The version that a contract year is judged under: the one in force on its first guaranteed day.

    One version governs a whole year, so no rule changes after failures of that year are known; a version that takes
    effect during a year governs from the next year on. None for a year without guarantee.
    """
    if contract.guarantee_from is None or contract.guarantee_from >= year.ends_on:
        return None
    return terms_in_force(versions, max(year.starts_on, contract.guarantee_from))


def year_terms(*, year: ContractYear) -> GuaranteeTerms | None:
    """As `year_terms_of`, from the database."""
    return year_terms_of(list(year.contract.terms.all()), year=year, contract=year.contract)


def year_closes_at(*, year: ContractYear, contract: Contract, terms: GuaranteeTerms | None) -> datetime.datetime:
    """When late reports stop counting: the local midnight so many days after the year ended."""
    days = terms.late_report_window_days if terms else 0
    return local_midnight(year.ends_on + datetime.timedelta(days=days), contract.time_zone)


def year_is_partial(*, year: ContractYear, contract: Contract, terms: GuaranteeTerms | None) -> bool:
    """The guarantee covers less than a whole year, or the contract ends before the year would."""
    if (year.guaranteed_from, year.guaranteed_until) != (year.starts_at, year.ends_at):
        return True
    leap_day = terms.leap_day_anniversary if terms else "feb_28"
    return year.ends_on < anniversary(contract.starts_on, year.number, leap_day)  # type: ignore[arg-type]


def year_at(*, contract: Contract, day: datetime.date) -> ContractYear | None:
    """The contract year that contains a local day."""
    return contract.years.filter(starts_on__lte=day, ends_on__gt=day).first()


@dataclass(frozen=True, slots=True)
class YearlyTerms:
    """Which version of a contract's terms governs an instant: that of the contract year in which it lies."""

    years: tuple[tuple[datetime.datetime, datetime.datetime, GuaranteeTerms], ...]
    default: GuaranteeTerms = field(default_factory=GuaranteeTerms)

    def at(self, at: datetime.datetime) -> GuaranteeTerms:
        """The published defaults outside the contract's years, and in a year without guarantee."""
        return next((terms for start, end, terms in self.years if start <= at < end), self.default)

    @property
    def versions(self) -> list[GuaranteeTerms]:
        """Everything that can govern."""
        return [self.default, *(terms for _, _, terms in self.years)]


def yearly_terms(*, contract: Contract) -> YearlyTerms:
    """The terms of each year of a contract; two queries unless years and terms are prefetched."""
    versions = list(contract.terms.all())
    governed = [
        (year.starts_at, year.ends_at, terms)
        for year in contract.years.all()
        if (terms := year_terms_of(versions, year=year, contract=contract)) is not None
    ]
    return YearlyTerms(tuple(governed))

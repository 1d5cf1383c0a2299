"""What a credit is worth, how long it lasts and in which order credits pay. Pure: no database, no clock."""

import calendar
import datetime
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from yoco.core.money import Rounding, round_ratio


def credit_minor(base_minor: int, rate_num: int, rate_den: int, rounding: Rounding) -> int:
    """The credit for a base amount in minor units: base · num/den, rounded once."""
    return round_ratio(Fraction(base_minor * rate_num, rate_den), rounding)


def order_cap_minor(order_minor: int, cap_num: int, cap_den: int) -> int:
    """The most that credits may pay of an order, in minor units; never more than the share allows, so rounded down."""
    return order_minor * cap_num // cap_den


def months_later(day: datetime.date, months: int) -> datetime.date:
    """The same day of the month `months` later, or that month's last day where it is shorter."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    month += 1
    return datetime.date(year, month, min(day.day, calendar.monthrange(year, month)[1]))


def last_usable_day(
    *,
    expiry: str,
    expires_on: datetime.date | None,
    months: int | None,
    issued_on: datetime.date | None,
    contract_ends_on: datetime.date,
    usable_until: datetime.date,
    renewed: bool,
) -> datetime.date | None:
    """The last day, in the contract's zone, on which a credit can pay; None while nothing ends it.

    `contract_end`: the contract's last day, or `usable_until` where that is later, unless renewed. `date`: that date.
    `months`: so many months after issue.
    """
    if expiry == "date":
        return expires_on
    if expiry == "months":
        return months_later(issued_on, months) if issued_on is not None and months is not None else None
    return None if renewed else max(contract_ends_on - datetime.timedelta(days=1), usable_until)


@dataclass(frozen=True, slots=True)
class Payer:
    """A credit that can pay: its rank and what it has left, in minor units."""

    credit_id: uuid.UUID
    priority: int
    expires_at: datetime.datetime | None
    effective_at: datetime.datetime
    available: int

    @property
    def rank(self) -> tuple[int, bool, datetime.datetime, datetime.datetime, uuid.UUID]:
        """Priority, earlier expiry (none comes last), earlier effective, id."""
        return (
            self.priority,
            self.expires_at is None,
            self.expires_at or self.effective_at,
            self.effective_at,
            self.credit_id,
        )


def plan_application(payers: Iterable[Payer], room: int) -> list[tuple[uuid.UUID, int]]:
    """Which credit pays how much of an order that has `room` left, in minor units."""
    plan: list[tuple[uuid.UUID, int]] = []
    for payer in sorted(payers, key=lambda p: p.rank):
        minor = min(payer.available, room)
        if minor > 0:
            plan.append((payer.credit_id, minor))
            room -= minor
    return plan

"""A small model of the credit rules in plain Python, to compare the ledger with. It shares no code with the service."""

import datetime
from dataclasses import dataclass, field
from fractions import Fraction

DISPUTE_WINDOW = datetime.timedelta(days=30)


@dataclass
class ModelOrder:
    """An order of the model; `cap` is what credits may pay of it."""

    amount: int
    day: datetime.date
    renewal: bool
    live: bool = True

    @property
    def cap(self) -> int:
        return self.amount * 2 // 3


@dataclass
class ModelCredit:
    """A credit of the model. `granted` is None while no order fixed it."""

    year: int
    fees: int | None
    last_day: datetime.date | None
    usable_until: datetime.date
    state: str = "proposed"
    issuer: int | None = None
    granted: int | None = None
    fixed_by: int | None = None
    applied: dict[int, int] = field(default_factory=dict)
    forfeited: int = 0
    withdrawn: int = 0
    review: str = ""
    rank: tuple[int, int] = (0, 0)

    @property
    def used(self) -> int:
        return sum(self.applied.values())

    @property
    def left(self) -> int:
        return (self.granted or 0) - self.used - self.forfeited - self.withdrawn


@dataclass
class Refused(Exception):
    """The model says no."""

    code: str = ""


@dataclass
class Model:
    """Three ended contract years of one contract, and what happened to their credits."""

    fees: tuple[int | None, ...]
    last_days: tuple[datetime.date | None, ...]
    contract_last_day: datetime.date
    today: datetime.date
    credits: list[ModelCredit] = field(default_factory=list)
    orders: list[ModelOrder] = field(default_factory=list)
    approvals: int = 0

    def live(self, year: int) -> int | None:
        return next((i for i, c in enumerate(self.credits) if c.year == year and c.state != "reversed"), None)

    def over(self, credit: ModelCredit) -> bool:
        renewed = any(o.live and o.renewal for o in self.orders)
        last = credit.last_day or (None if renewed else self.contract_end(credit))
        return last is not None and self.today > last

    def contract_end(self, credit: ModelCredit) -> datetime.date:
        return max(self.contract_last_day, credit.usable_until)

    def quarter(self, amount: int) -> int:
        return round(Fraction(amount, 4))

    def propose(self, year: int) -> None:
        self.credits.append(ModelCredit(year, self.fees[year], self.last_days[year], self.today + DISPUTE_WINDOW))

    def issue(self, number: int, person: int, priority: int) -> None:
        credit = self.credits[number]
        if credit.state != "proposed" or self.over(credit):
            raise Refused
        credit.state, credit.issuer, credit.rank = "issued", person, (priority, 0)
        if credit.fees is not None:
            credit.granted = self.quarter(credit.fees)

    def approve(self, number: int, person: int) -> None:
        credit = self.credits[number]
        if credit.state != "issued" or person == credit.issuer or self.over(credit):
            raise Refused
        self.approvals += 1
        credit.state, credit.rank = "approved", (credit.rank[0], self.approvals)
        self.fix()

    def fix(self) -> None:
        for credit in self.credits:
            if credit.fees is None and credit.state == "approved" and credit.fixed_by is None and not credit.review:
                order = min(
                    (i for i, o in enumerate(self.orders) if o.live),
                    key=lambda i: (self.orders[i].day, i),
                    default=None,
                )
                if order is not None:
                    credit.fixed_by, credit.granted = order, self.quarter(self.orders[order].amount)

    def record(self, amount: int, renewal: bool) -> None:
        self.orders.append(ModelOrder(amount, self.today, renewal))
        self.fix()

    def apply(self, number: int, limit: int | None) -> None:
        order = self.orders[number]
        if not order.live:
            raise Refused
        room = order.cap - sum(c.applied.get(number, 0) for c in self.credits)
        room = room if limit is None else min(room, limit)
        paid = False
        ready = [c for c in self.credits if c.state == "approved" and not c.review and not self.over(c)]
        forever = datetime.date.max
        renewed = any(o.live and o.renewal for o in self.orders)

        def runs_out(credit: ModelCredit) -> datetime.date:
            return credit.last_day or (forever if renewed else self.contract_end(credit))

        for credit in sorted(ready, key=lambda c: (c.rank[0], runs_out(c), c.rank[1])):
            minor = min(credit.left, room)
            if minor > 0:
                credit.applied[number] = credit.applied.get(number, 0) + minor
                room -= minor
                paid = True
        if not paid:
            raise Refused

    def cancel(self, number: int) -> None:
        self.orders[number].live = False
        for credit in self.credits:
            if credit.applied.pop(number, 0) and (credit.state == "expired" or self.over(credit)):
                self.expire_one(credit)
        for credit in self.credits:
            if credit.fixed_by == number and credit.state == "approved" and not credit.review:
                if credit.used:
                    credit.review = "order"
                else:
                    credit.fixed_by, credit.granted = None, None
        self.fix()

    def expire_one(self, credit: ModelCredit) -> None:
        credit.forfeited += credit.left
        credit.state = "expired"

    def expire(self) -> None:
        for credit in self.credits:
            known = credit.fixed_by is not None or (credit.fees is not None and credit.state == "approved")
            if credit.state in ("proposed", "issued", "approved") and self.over(credit) and (credit.left or not known):
                self.expire_one(credit)

    def end_reversed(self, credit: ModelCredit) -> None:
        credit.state, credit.granted = "reversed", None

    def reverse(self, number: int) -> None:
        credit = self.credits[number]
        if credit.state not in ("issued", "approved") or credit.review or credit.used:
            raise Refused
        self.end_reversed(credit)
        self.propose(credit.year)

    def restate(self, year: int, short: bool) -> None:
        number = self.live(year)
        if number is None:
            if short:
                self.propose(year)
            return
        credit = self.credits[number]
        if short:
            if credit.review == "statement":
                asked = credit.state == "approved" and credit.used and self.fixed_by_cancelled(credit)
                credit.review = "order" if asked else ""
        elif credit.review != "statement":
            if credit.used or credit.review:
                credit.review = "statement"
            elif credit.state != "expired":
                self.end_reversed(credit)

    def settle(self, number: int, withdraw: bool) -> None:
        credit = self.credits[number]
        if not credit.review or (withdraw and credit.review == "order"):
            raise Refused
        credit.review = ""
        if withdraw and credit.state == "approved" and not credit.used:
            credit.withdrawn = 0
            self.end_reversed(credit)
        elif withdraw:
            credit.withdrawn += credit.left
        elif credit.state == "approved" and not credit.used and self.fixed_by_cancelled(credit):
            credit.fixed_by, credit.granted = None, None
            self.fix()

    def fixed_by_cancelled(self, credit: ModelCredit) -> bool:
        return credit.fixed_by is not None and not self.orders[credit.fixed_by].live

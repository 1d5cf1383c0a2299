"""Money as an integer number of minor units and an ISO 4217 code; never a float."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from babel.numbers import format_currency, get_currency_precision, list_currencies

Rounding = Literal["half_even", "half_up"]
CURRENCIES = frozenset(list_currencies())


def round_ratio(value: Fraction, rounding: Rounding) -> int:
    """Rounds an exact ratio to an integer, once. Ties go to even, or away from zero with `half_up`."""
    if rounding == "half_even":
        return round(value)
    magnitude = int(abs(value) + Fraction(1, 2))
    return magnitude if value >= 0 else -magnitude


@dataclass(frozen=True, slots=True, order=False)
class Money:
    """An amount in minor units (cents, yen, mils) of one currency.

    Raises ValueError for a code that is not ISO 4217 and for arithmetic across currencies.
    """

    minor: int
    currency: str

    def __post_init__(self) -> None:
        if self.currency not in CURRENCIES:
            raise ValueError(f"{self.currency!r} is not an ISO 4217 currency code.")

    def _same(self, other: "Money") -> None:
        if self.currency != other.currency:
            raise ValueError(f"Cannot combine {self.currency} with {other.currency}.")

    def __add__(self, other: "Money") -> "Money":
        self._same(other)
        return Money(self.minor + other.minor, self.currency)

    def __sub__(self, other: "Money") -> "Money":
        self._same(other)
        return Money(self.minor - other.minor, self.currency)

    def __neg__(self) -> "Money":
        return Money(-self.minor, self.currency)

    def share(self, num: int, den: int, rounding: Rounding) -> "Money":
        """num/den of this amount, rounded once on the minor unit."""
        return Money(round_ratio(Fraction(self.minor * num, den), rounding), self.currency)

    @property
    def decimal(self) -> Decimal:
        """The amount in major units, exact."""
        return Decimal(self.minor).scaleb(-get_currency_precision(self.currency))

    def format(self, locale: str = "en") -> str:
        """The amount as people of that locale write it, with the currency's own number of digits."""
        return format_currency(self.decimal, self.currency, locale=locale.replace("-", "_"))

    def __str__(self) -> str:
        return f"{self.decimal} {self.currency}"

"""Forms of what is agreed with a customer: contract, terms, fees, guarantee, end."""

import datetime
import re
from typing import Any

from django import forms
from django.core.validators import MaxValueValidator, MinValueValidator
from django.forms.models import fields_for_model
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from yoco.accounts.models import Organisation
from yoco.contracts.models import ExclusionReason, GuaranteeTerms
from yoco.contracts.services import MOST_EXPIRY_MONTHS, TERMS_FIELDS
from yoco.contracts.words import SHARES, TERMS_LABELS
from yoco.core.money import CURRENCIES
from yoco.core.zones import ZONE_CHOICES
from yoco.desk.forms import MoneyField, reason_field

LARGEST_PART = 1_000_000  # of a share written as a fraction
EARLIEST, LATEST = datetime.date(2000, 1, 1), datetime.date(2200, 12, 31)
LARGEST_WINDOW = 100_000  # seconds, minutes, days or months


def day_field(**kwargs: Any) -> forms.DateField:
    """A calendar day, entered with the browser's own picker."""
    limits = [MinValueValidator(EARLIEST), MaxValueValidator(LATEST)]
    picker = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    return forms.DateField(widget=picker, validators=limits, **kwargs)


class ShareField(forms.CharField):
    """A share as a fraction of whole numbers, such as 90/100, cleaned to the two."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=20, help_text=_("A fraction of whole numbers, such as 90/100."), **kwargs)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        parts = re.fullmatch(r"\s*([0-9]{1,7})\s*/\s*([0-9]{1,7})\s*", text)
        num, den = (int(part) for part in parts.groups()) if parts else (0, 0)
        if not 0 <= num <= den <= LARGEST_PART or den == 0:
            raise forms.ValidationError(gettext("Write a fraction from 0 to 1 with whole numbers, such as 90/100."))
        return num, den


class TermsForm(forms.Form):
    """Every field of the terms, each with the values that it may have."""

    def __init__(self, *args: Any, previous: GuaranteeTerms, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.previous = previous
        fields = fields_for_model(GuaranteeTerms, fields=TERMS_FIELDS)
        for name, label in TERMS_LABELS.items():
            self.fields[name] = _terms_field(name, fields)
            self.fields[name].label = label  # type: ignore[assignment]
            self.initial[name] = (
                f"{getattr(previous, f'{name}_num')}/{getattr(previous, f'{name}_den')}"
                if name in SHARES
                else getattr(previous, name)
            )

    def clean(self) -> dict[str, Any]:
        said: dict[str, Any] = super().clean() or self.cleaned_data
        needed = {"date": "credit_expires_on", "months": "credit_expiry_months"}.get(said.get("credit_expiry", ""))
        for name, message in (
            ("credit_expires_on", _("Give the day, or leave it empty if a credit expires otherwise.")),
            ("credit_expiry_months", _("Give the months, or leave them empty if a credit expires otherwise.")),
        ):
            if name not in self.errors and bool(said.get(name)) != (name == needed):
                self.add_error(name, str(message))
        for name in ("threshold", "credit_cap"):
            if said.get(name) and said[name][0] == 0:
                self.add_error(name, gettext("This share is greater than zero."))
        return said

    @property
    def changed(self) -> dict[str, Any]:
        """What a valid form says otherwise than the version before, by the names of the model's fields."""
        said: dict[str, Any] = {}
        for name in TERMS_LABELS:
            value = self.cleaned_data[name]
            said |= {f"{name}_num": value[0], f"{name}_den": value[1]} if name in SHARES else {name: value}
        return {name: value for name, value in said.items() if getattr(self.previous, name) != value}


def _terms_field(name: str, fields: dict[str, Any]) -> forms.Field:
    if name in SHARES:
        return ShareField()
    if name == "exclusions":
        return forms.MultipleChoiceField(
            choices=ExclusionReason.choices, required=False, widget=forms.CheckboxSelectMultiple
        )
    if name == "credit_expires_on":
        return day_field(required=False)
    field: forms.Field = fields[name]
    field.help_text = ""
    if isinstance(field, forms.IntegerField):
        windows: dict[str, Any] = {"root_event_window_s": _("Seconds."), "credit_expiry_months": ""}
        unit = _("Days.") if name.endswith("_days") else _("Minutes.") if name.endswith("_minutes") else ""
        return forms.IntegerField(
            min_value=1 if name == "credit_expiry_months" else 0,
            max_value=MOST_EXPIRY_MONTHS if name == "credit_expiry_months" else LARGEST_WINDOW,
            required=name != "credit_expiry_months",
            help_text=windows.get(name, unit),
        )
    return field


class TermsVersionForm(TermsForm):
    """A new version and the day on which it takes effect."""

    effective_on = day_field(
        label=_("Takes effect on"),
        help_text=_(
            "A year keeps the version in force on its first guaranteed day; a later one governs from the next."
        ),
    )
    reason = reason_field(help_text=_("The second person and the audit log read it word for word."))

    def clean(self) -> dict[str, Any]:
        said = super().clean()
        if not self.errors and not self.changed:
            raise forms.ValidationError(gettext("Nothing differs from the version before. Change at least one field."))
        return said


class ContractForm(TermsForm):
    """A contract with the terms of its first version, for a customer we know or a new one."""

    organisation = forms.ModelChoiceField(
        label=_("Customer"),
        queryset=Organisation.objects.order_by("name"),
        required=False,
        empty_label=_("A new customer"),
    )
    customer = forms.CharField(label=_("Name of the new customer"), max_length=200, required=False)
    number = forms.CharField(label=_("Contract number"), max_length=40)
    name = forms.CharField(label=_("What it is about"), max_length=200, help_text=_("For instance the cluster."))
    currency = forms.ChoiceField(label=_("Currency"), choices=[(code, code) for code in sorted(CURRENCIES)])
    time_zone = forms.ChoiceField(
        label=_("Time zone"),
        choices=ZONE_CHOICES,
        help_text=_("A contract year begins and ends at midnight there."),
    )
    starts_on = day_field(label=_("First day"))
    last_day = day_field(label=_("Last day"))
    guarantee_from = day_field(
        label=_("First guaranteed day"),
        required=False,
        help_text=_("Empty: without the guarantee, which can be added later. Not before 3 August 2026."),
    )
    price_per_gpu_hour = forms.DecimalField(
        label=_("Price of a GPU-hour"), required=False, min_value=0, max_digits=10, decimal_places=4
    )

    def clean(self) -> dict[str, Any]:
        said = super().clean()
        if "organisation" not in self.errors and bool(said.get("organisation")) == bool(said.get("customer")):
            self.add_error("customer", gettext("Choose a customer, or give the name of a new one."))
        return said


class GuaranteeForm(forms.Form):
    """From which day on a contract in force is guaranteed."""

    guarantee_from = day_field(
        label=_("First guaranteed day"), help_text=_("A day of the contract, not before 3 August 2026.")
    )


class EndForm(forms.Form):
    """The day after which an agreement is over, and why."""

    last_day = day_field(label=_("Last day of the contract"), help_text=_("Today or later, in the contract's zone."))
    reason = reason_field(help_text=_("The second person and the audit log read it word for word."))


class FeesForm(forms.Form):
    """The fees of a year. `amount` is cleaned to minor units."""

    amount = forms.DecimalField()
    reason = reason_field(
        required=False,
        help_text=_("Needed to correct the fees of a closed year. The audit log keeps it word for word."),
    )

    def __init__(self, *args: Any, currency: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["amount"] = MoneyField(
            currency=currency,
            least_minor=0,
            label=_("Fees in %(currency)s") % {"currency": currency},
            max_digits=17,
        )


def day_after(last: datetime.date) -> datetime.date:
    """The first day after a last one."""
    return last + datetime.timedelta(days=1)

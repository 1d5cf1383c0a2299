"""Forms of the desk."""

import uuid
from typing import Any

from babel.numbers import get_currency_precision
from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from yoco.contracts.models import ExclusionReason, OrderKind
from yoco.core.money import Money
from yoco.core.templatetags.formats import day, money
from yoco.core.zones import ZONE_CHOICES
from yoco.guarantee.imports import pairs_read
from yoco.guarantee.uploads import MAX_BYTES
from yoco.incidents.importers import SpecError


def reason_field(**kwargs: Any) -> forms.CharField:
    """Why somebody decides so, in words that are kept."""
    return forms.CharField(label=_("Reason"), widget=forms.Textarea(attrs={"rows": 3}), max_length=2000, **kwargs)


class ConfirmForm(forms.Form):
    """Nothing to say: pressing the button is the decision."""

    key = forms.UUIDField(widget=forms.HiddenInput)


class NoteForm(forms.Form):
    """A decision about an incident, with the reason that the customer reads."""

    note = forms.CharField(
        label=_("Reason"),
        widget=forms.Textarea(attrs={"rows": 4}),
        max_length=2000,
        help_text=_("The customer reads it word for word."),
    )


class ProposalForm(forms.Form):
    """A decision about what another person proposed."""

    note = reason_field(help_text=_("The audit log keeps it word for word."))


class ExclusionForm(NoteForm):
    """A proposal to leave an incident out of the ratio, for a reason that the year's terms list."""

    reason = forms.ChoiceField(label=_("Ground in the terms"))
    field_order = ["reason", "note"]

    def __init__(self, *args: Any, grounds: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].choices = [(ground, ExclusionReason(ground).label) for ground in grounds]  # type: ignore[attr-defined]


class MergeForm(NoteForm):
    """Which root events an incident belongs together with, and why."""

    events = forms.TypedMultipleChoiceField(
        label=_("Events of the same days"), coerce=uuid.UUID, widget=forms.CheckboxSelectMultiple
    )
    field_order = ["events", "note"]

    def __init__(self, *args: Any, events: list[tuple[uuid.UUID, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["events"].choices = [(str(key), label) for key, label in events]  # type: ignore[attr-defined]
        self.fields["events"].help_text = (
            _("Choose what this incident belongs together with.")
            if events
            else _("No other event of this contract began within a day of this one.")
        )
        self.labels = dict(events)

    @property
    def entered(self) -> list[tuple[Any, str]]:
        """What a valid form says, as people read it."""
        chosen = "\n".join(self.labels[key] for key in self.cleaned_data["events"])
        return [(_("To be merged with"), chosen), (self.fields["note"].label, self.cleaned_data["note"])]


class ReasonForm(ConfirmForm):
    """A decision that the audit log keeps with its reason."""

    reason = reason_field(help_text=_("The customer's statement and the audit log show it word for word."))


class RestateForm(forms.Form):
    """Why a closed year is restated."""

    reason = reason_field(help_text=_("The next revision of the statement shows it word for word to the customer."))


class MoneyField(forms.DecimalField):
    """An amount of one currency: entered in major units with its own number of digits, cleaned to minor units."""

    def __init__(self, *, currency: str, least_minor: int, **kwargs: Any) -> None:
        self.currency, self.digits = currency, get_currency_precision(currency)
        least = Money(least_minor, currency).decimal
        super().__init__(min_value=least, decimal_places=self.digits, **kwargs)

    def clean(self, value: Any) -> Any:
        return int(super().clean(value).scaleb(self.digits))

    def prepare_value(self, value: Any) -> Any:
        return str(Money(value, self.currency).decimal) if isinstance(value, int) else value


class OrderForm(ConfirmForm):
    """A renewal or an expansion as agreed. `amount` is cleaned to minor units of the contract's currency."""

    number = forms.CharField(label=_("Number"), max_length=40)
    kind = forms.ChoiceField(label=_("Kind"), choices=OrderKind.choices)
    amount = forms.DecimalField()
    ordered_on = forms.DateField(label=_("Ordered"), widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"))

    def __init__(self, *args: Any, currency: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.currency = currency
        self.fields["amount"] = MoneyField(
            currency=currency,
            least_minor=1,
            label=_("Amount in %(currency)s") % {"currency": currency},
            max_digits=15,
        )

    @property
    def entered(self) -> list[tuple[Any, str]]:
        """What a valid form says, as people read it."""
        said = self.cleaned_data
        return [
            (self.fields["number"].label, said["number"]),
            (self.fields["kind"].label, OrderKind(said["kind"]).label),
            (_("Amount"), money(said["amount"], self.currency)),
            (self.fields["ordered_on"].label, day(said["ordered_on"])),
        ]


class PairsField(forms.CharField):
    """NAME=VALUE, one a line, as a mapping."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}), required=False, **kwargs)

    def clean(self, value: Any) -> Any:
        lines = [line for line in super().clean(value).splitlines() if line.strip()]
        try:
            return pairs_read(lines, gettext("Each line"))
        except SpecError as error:
            raise forms.ValidationError(str(error)) from error


class UploadForm(forms.Form):
    """An operator's record and how to read it. The fields but `file` are the options of `imports.import_spec`."""

    file = forms.FileField(label=_("File"))
    format = forms.ChoiceField(
        label=_("Format"),
        choices=[
            ("csv", _("CSV with a header row")),
            ("sacct", _("Slurm accounting (sacct)")),
            ("dmesg", _("Kernel log")),
        ],
    )
    time_zone = forms.ChoiceField(
        label=_("Time zone of the file"),
        required=False,
        choices=[("", _("Every time has its own offset")), *ZONE_CHOICES],
        help_text=_("Where the clock that wrote the times stood."),
    )
    fold = forms.TypedChoiceField(
        label=_("Times in a repeated hour"),
        required=False,
        choices=[("", _("Reject them")), ("0", _("The first of the two")), ("1", _("The second of the two"))],
        coerce=int,
        empty_value=None,
        help_text=_("When the clock is set back, an hour comes twice."),
    )
    time_format = forms.CharField(
        label=_("Format of the times"),
        required=False,
        max_length=60,
        help_text=_("Only if they are not ISO 8601, for instance %m/%d/%Y %H:%M."),
    )
    boot_time = forms.CharField(
        label=_("Start of the machine"),
        required=False,
        max_length=40,
        help_text=_("For kernel logs that count from boot, with offset: 2026-11-02T09:00:00Z."),
    )
    columns = PairsField(
        label=_("Columns"),
        help_text=_("CSV only: our field = column of the file, one a line, such as started_at=began."),
    )
    constants = PairsField(
        label=_("The same in every row"),
        help_text=_("Field = value, one a line. A kernel log needs run_id=… and gpus=…."),
    )

    def clean_file(self) -> "UploadedFile[bytes]":
        file: UploadedFile[bytes] = self.cleaned_data["file"]
        size = file.size or 0
        if size > MAX_BYTES:
            raise forms.ValidationError(
                gettext(
                    "This file has %(size)s; %(limit)s is the most that can be uploaded. "
                    "Ask the operator of this service to import it with the command import_incidents."
                )
                % {"size": filesizeformat(size), "limit": filesizeformat(MAX_BYTES)}
            )
        return file

"""Forms of the desk."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from yoco.contracts.models import ExclusionReason


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


class ExclusionForm(NoteForm):
    """A proposal to leave an incident out of the ratio, for a reason that the year's terms list."""

    reason = forms.ChoiceField(label=_("Ground in the terms"))
    field_order = ["reason", "note"]

    def __init__(self, *args: Any, grounds: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].choices = [(ground, ExclusionReason(ground).label) for ground in grounds]  # type: ignore[attr-defined]


class ReasonForm(ConfirmForm):
    """A decision that the audit log keeps with its reason."""

    reason = forms.CharField(
        label=_("Reason"),
        widget=forms.Textarea(attrs={"rows": 3}),
        max_length=2000,
        help_text=_("The customer's statement and the audit log show it word for word."),
    )

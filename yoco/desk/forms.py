"""Forms of the desk."""

from django import forms
from django.utils.translation import gettext_lazy as _


class ConfirmForm(forms.Form):
    """Nothing to say: pressing the button is the decision."""

    key = forms.UUIDField(widget=forms.HiddenInput)


class ReasonForm(ConfirmForm):
    """A decision that the audit log keeps with its reason."""

    reason = forms.CharField(
        label=_("Reason"),
        widget=forms.Textarea(attrs={"rows": 3}),
        max_length=2000,
        help_text=_("The customer's statement and the audit log show it word for word."),
    )

"""Which e-mails a person gets: their own settings, and the link at the end of each e-mail."""

import uuid

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from yoco.notify.kinds import TOPICS
from yoco.notify.models import Digest, MailPreference
from yoco.notify.preferences import DIGEST, mail_preference_set, mail_stop, stop_read
from yoco.portal.access import reader


class MailForm(forms.Form):
    topics = forms.MultipleChoiceField(
        label=gettext_lazy("Tell me by e-mail of"),
        choices=list(TOPICS.items()),
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    digest = forms.ChoiceField(
        label=gettext_lazy("Summary of all contracts"),
        choices=Digest.choices,
        required=False,
        widget=forms.RadioSelect,
    )


@require_http_methods(["GET", "POST"])
@login_required
def mail_settings(request: HttpRequest, membership_id: uuid.UUID) -> HttpResponse:
    """What one wants to hear of one organisation; nobody else's settings can be seen."""
    mine = reader(request).memberships.filter(revoked_at=None).select_related("organisation")
    membership = get_object_or_404(mine, pk=membership_id)
    held = MailPreference.objects.filter(pk=membership.pk).first() or MailPreference(membership=membership)
    initial = {"topics": [topic for topic in TOPICS if topic not in held.muted], "digest": held.digest}
    form = MailForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        mail_preference_set(
            membership=membership,
            muted=[topic for topic in TOPICS if topic not in form.cleaned_data["topics"]],
            digest=form.cleaned_data["digest"],
            actor=reader(request),
        )
        messages.success(request, _("Your settings are saved."))
        return redirect("portal:settings")
    context = {"section": "settings", "organisation": membership.organisation, "form": form}
    return render(request, "portal/mail_settings.html", context)


# The signed link is the proof, not the session: mail programs post it by themselves (RFC 8058).
@csrf_exempt
@never_cache
@require_http_methods(["GET", "POST"])
def mail_stop_page(request: HttpRequest, token: str) -> HttpResponse:
    """GET asks, because scanners open every link; POST stops the e-mails."""
    found = stop_read(token)
    if found is None:
        raise Http404
    membership, topic = found
    if request.method == "POST":
        mail_stop(membership=membership, topic=topic)
    context = {
        "organisation": membership.organisation,
        "topic": _("Summary of all contracts") if topic == DIGEST else TOPICS.get(topic, topic),
        "stopped": request.method == "POST",
    }
    return render(request, "portal/mail_stop.html", context)

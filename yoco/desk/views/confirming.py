"""A step that moves money: what it will post is shown, then it is confirmed. Shared by credits and orders."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from yoco.contracts.models import Contract
from yoco.core.problem import DomainError
from yoco.desk.forms import ConfirmForm
from yoco.desk.steps import Preview, step_preview

PREVIEW_REASON = "preview"  # a preview needs some reason to run; it is rolled back
NO_AMOUNT_YET = _("Nothing yet: the amount is fixed later, by the order that it pays.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step says before and after. `nothing` is said where it posts nothing."""

    title: str | Promise
    explanation: str | Promise
    button: str | Promise
    done: str | Promise
    nothing: str | Promise = NO_AMOUNT_YET
    form: type[ConfirmForm] = ConfirmForm
    dangerous: bool = False


def step_confirm(
    request: HttpRequest,
    *,
    contract: Contract,
    step: Step,
    run: Callable[[dict[str, Any]], object],
    back: str,
    context: dict[str, object],
    form: ConfirmForm | None = None,
) -> HttpResponse:
    """GET shows what `run` would post; POST runs it and goes `back`.

    `run` takes what the form says. With a `form` of its own, the step depends on what is entered: then GET asks, a
    POST shows the preview, and a POST of the same values with `decision=confirm` runs it.
    """
    asks = form is not None
    form = form or step.form(request.POST or None, initial={"key": uuid.uuid4()})
    valid = request.method == "POST" and form.is_valid()
    refused = ""
    if valid and (not asks or request.POST.get("decision") == "confirm"):
        try:
            run({**form.cleaned_data, "key": str(form.cleaned_data["key"])})
        except DomainError as error:
            refused = error.message
        else:
            messages.success(request, str(step.done))
            return redirect(back)
    preview: Preview | None = None
    if not asks:
        preview = step_preview(contract=contract, step=lambda: run({"key": str(uuid.uuid4())}))
    elif valid and request.POST.get("decision") != "change":
        said = {**form.cleaned_data, "key": str(uuid.uuid4())}
        preview = step_preview(contract=contract, step=lambda: run(said))
    return render(
        request,
        "desk/step.html",
        {
            **context,
            "contract": contract,
            "step": step,
            "form": form,
            "asks": asks,
            "preview": preview,
            "refused": refused or (preview.refused if preview else ""),
            "back": back,
        },
        status=409 if refused else 200,
    )

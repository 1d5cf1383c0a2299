"""A change of what is agreed: entered, shown as what it changes, confirmed. Shared by the pages of a contract.

As with money, the preview runs the very service and takes it back, so it shows what the confirmation will do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.functional import Promise

from yoco.contracts.models import Contract
from yoco.contracts.words import Change
from yoco.core.problem import DomainError
from yoco.desk.agreements import Facts, contract_facts, facts_changes
from yoco.guarantee.proposals import agreement_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What a page says before and after the change."""

    title: str | Promise
    explanation: str | Promise
    button: str | Promise
    done: str | Promise
    dangerous: bool = False


def change_confirm(
    request: HttpRequest,
    *,
    agreement: Agreement,
    contract: Contract | None,
    form: forms.Form,
    run: Callable[[dict[str, Any]], Contract],
    propose: Callable[[dict[str, Any], str], object] | None = None,
) -> HttpResponse:
    """GET asks; a POST shows what would change; a POST with `decision=confirm` does it and goes to the contract.

    `run` takes what the valid form says and returns the contract as it is afterwards. With `propose` a second person
    has to agree: it is called instead, with the hash of what was agreed when the change was shown.
    """
    refused = ""
    changes: list[Change] | None = None
    decision = request.POST.get("decision")
    if request.method == "POST" and form.is_valid() and decision != "change":
        try:
            if decision == "confirm" and propose is not None and contract is not None:
                propose(form.cleaned_data, request.POST.get("shown", ""))
                messages.success(request, str(agreement.done))
                return redirect("desk:contract", contract.pk)
            if decision == "confirm":
                changed = run(form.cleaned_data)
                messages.success(request, str(agreement.done))
                return redirect("desk:contract", changed.pk)
            changes = changes_preview(contract, lambda: run(form.cleaned_data))
        except DomainError as error:
            refused = error.message
    context = {
        "contract": contract,
        "agreement": agreement,
        "form": form,
        "changes": changes,
        "refused": refused,
        "shown": agreement_sha256(contract) if contract and propose and changes is not None else "",
        "back": reverse("desk:contract", args=[contract.pk]) if contract else reverse("desk:portfolio"),
    }
    return render(request, "desk/change.html", context, status=409 if refused else 200)


def changes_preview(contract: Contract | None, run: Callable[[], Contract]) -> list[Change]:
    """What `run` changes of what is agreed; nothing of it stays. Raises DomainError as `run` does."""
    with transaction.atomic():
        before: Facts = contract_facts(contract) if contract is not None else {}
        after = contract_facts(run())
        transaction.set_rollback(True)
    return facts_changes(before, after)

"""What one account manager proposes and a second one confirms: restatements, terms, the early end of a contract.

A proposal holds what its service is called with and the hash of what was shown when it was made. It is confirmed on
that alone: if anything changed meanwhile it is refused, and has to be made anew.
"""

import datetime
from collections.abc import Callable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import Contract, ContractYear
from yoco.contracts.services import terms_create_version
from yoco.core.audit import audit_record
from yoco.core.problem import DomainError
from yoco.guarantee.models import Proposal, ProposalKind
from yoco.guarantee.restating import Restatement, restatement_write
from yoco.guarantee.services import contract_cut_short
from yoco.guarantee.statements import canonical_json, sha256_of, terms_json
from yoco.incidents.models import Decision
from yoco.incidents.review import decision_take, reason_stated


@transaction.atomic
def restatement_confirm(*, year: ContractYear, reason: str, actor: User, shown: str) -> Restatement | Proposal:
    """Restates a closed year as it was shown, or proposes it where a second person must agree.

    Raises DomainError if it would do anything else than what was `shown`, the hash of its preview.
    """
    _account_manager(actor)
    with transaction.atomic():
        done = restatement_write(year=year, reason=reason, actor=actor, shown=shown)
        if done.needs_second:
            transaction.set_rollback(True)
    if not done.needs_second:
        return done
    return _propose(ProposalKind.RESTATEMENT, year.contract, {}, reason, shown, actor, year)


@transaction.atomic
def terms_propose(
    *, contract: Contract, effective_on: datetime.date, fields: dict[str, Any], reason: str, actor: User, shown: str
) -> Proposal:
    """Proposes the next version of the terms. Raises DomainError as `terms_create_version`, and if something changed
    since `shown`, a hash by `agreement_sha256`."""
    said = {"effective_on": effective_on, "fields": fields}
    return _agreement_propose(ProposalKind.TERMS, contract, said, reason, actor, shown)


@transaction.atomic
def contract_end_propose(
    *, contract: Contract, ends_on: datetime.date, reason: str, actor: User, shown: str
) -> Proposal:
    """Proposes to end a contract early. Raises DomainError as `contract_end_early`, and as `terms_propose`."""
    return _agreement_propose(ProposalKind.END, contract, {"ends_on": ends_on}, reason, actor, shown)


def agreement_sha256(contract: Contract) -> str:
    """A hash of what is agreed under a contract: itself, its years and every version of its terms."""
    row = Contract.objects.get(pk=contract.pk)
    terms = [terms_json(version) for version in row.terms.order_by("version")]
    years = row.years.order_by("number").values_list(
        "number", "starts_at", "ends_at", "guaranteed_from", "guaranteed_until", "state", "fees_minor"
    )
    agreed = [row.number, row.starts_on, row.ends_on, row.guarantee_from, terms, [list(year) for year in years]]
    return sha256_of(canonical_json(_plain(agreed)))


def _plain(value: Any) -> Any:
    """The value with its days and instants as text."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return value


def proposal_run(proposal: Proposal) -> Restatement | Contract:
    """Does what is proposed, in its proposer's name. For previews, and for what has been agreed. The caller has a
    transaction. Raises DomainError if something changed since it was proposed."""
    return RUN[ProposalKind(proposal.kind)](proposal)


def _restatement_run(proposal: Proposal) -> Restatement:
    assert proposal.year is not None
    return restatement_write(
        year=proposal.year, reason=proposal.reason, actor=proposal.proposed_by, shown=proposal.shown_sha256
    )


def _terms_run(proposal: Proposal) -> Contract:
    _require_unchanged(proposal)
    day, fields = datetime.date.fromisoformat(proposal.said["effective_on"]), dict(proposal.said["fields"])
    if fields.get("credit_expires_on"):  # the only field that JSON cannot say as it is
        fields["credit_expires_on"] = datetime.date.fromisoformat(fields["credit_expires_on"])
    terms_create_version(contract=proposal.contract, effective_on=day, actor=proposal.proposed_by, **fields)
    return proposal.contract


def _end_run(proposal: Proposal) -> Contract:
    _require_unchanged(proposal)
    return contract_cut_short(
        contract=proposal.contract,
        ends_on=datetime.date.fromisoformat(proposal.said["ends_on"]),
        actor=proposal.proposed_by,
        reason=proposal.reason,
    )


RUN: dict[ProposalKind, Callable[[Proposal], Restatement | Contract]] = {
    ProposalKind.RESTATEMENT: _restatement_run,
    ProposalKind.TERMS: _terms_run,
    ProposalKind.END: _end_run,
}


def _require_unchanged(proposal: Proposal) -> None:
    contracts_lock([proposal.contract_id])
    if agreement_sha256(proposal.contract) != proposal.shown_sha256:
        raise DomainError(
            _("What is agreed under this contract has changed since this was shown. Look at it again and decide anew."),
            code="stale",
        )


def _agreement_propose(
    kind: ProposalKind, contract: Contract, said: dict[str, Any], reason: str, actor: User, shown: str
) -> Proposal:
    proposal = _propose(kind, contract, said, reason, shown, actor, None)
    proposal.refresh_from_db()  # what it says as JSON, as it will be read when it is confirmed
    with transaction.atomic():
        proposal_run(proposal)
        transaction.set_rollback(True)
    return proposal


def _propose(
    kind: ProposalKind,
    contract: Contract,
    said: dict[str, Any],
    reason: str,
    shown: str,
    actor: User,
    year: ContractYear | None,
) -> Proposal:
    _account_manager(actor)
    reason = reason_stated(reason)
    contracts_lock([contract.pk])
    if Proposal.objects.filter(contract=contract, kind=kind, state=Decision.PENDING).exists():
        raise DomainError(
            _("A proposal of this kind waits for a second person already. Decide it or take it back first."),
            code="proposal_exists",
        )
    proposal = Proposal.objects.create(
        kind=kind, contract=contract, year=year, said=said, reason=reason, shown_sha256=shown, proposed_by=actor
    )
    _tell(proposal, "proposed", actor, reason=reason)
    return proposal


@transaction.atomic
def proposal_decide(*, proposal: Proposal, accept: bool, note: str, actor: User) -> Restatement | Contract | None:
    """A second account manager confirms a proposal, which then takes effect, or rejects it.

    Raises DomainError for its proposer, if it is decided already, and if it would not do any more what was shown.
    """
    _account_manager(actor)
    note = reason_stated(note)
    contracts_lock([proposal.contract_id])
    if proposal.proposed_by_id == actor.pk:
        raise DomainError(_("Whoever proposed this cannot decide it; a second person must."), code="four_eyes")
    state = Decision.ACCEPTED if accept else Decision.REJECTED
    decision_take(proposal, [Decision.PENDING], state, note, actor)
    _tell(proposal, state.value, actor, note=note)
    return proposal_run(proposal) if accept else None


@transaction.atomic
def proposal_withdraw(*, proposal: Proposal, note: str, actor: User) -> None:
    """An account manager takes a proposal back. Raises DomainError if it is decided already."""
    _account_manager(actor)
    note = reason_stated(note)
    decision_take(proposal, [Decision.PENDING], Decision.WITHDRAWN, note, actor)
    _tell(proposal, "withdrawn", actor, note=note)


def _account_manager(actor: User) -> None:
    if not (actor.is_active and actor.is_account_manager):
        raise PermissionDenied


def _tell(proposal: Proposal, what: str, actor: User, **data: str) -> None:
    """The audit entry of one step, such as `restatement.proposed` or `terms.accepted`."""
    audit_record(
        action=f"{proposal.kind}.{what}",
        actor=actor,
        subject=proposal,
        organisation_id=proposal.contract.organisation_id,
        data={"contract": proposal.contract.number, **data},
    )

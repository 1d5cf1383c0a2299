"""Writing the guarantee: accepting reports, closing years, restating them."""

import datetime
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import AgentKey, User
from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import Contract, ContractYear, YearState
from yoco.contracts.services import contract_end_early, guarantee_add
from yoco.core.audit import audit_record
from yoco.core.outbox import outbox_record
from yoco.core.problem import DomainError
from yoco.credits.services import credit_propose, credit_restated
from yoco.guarantee.models import Placement, RestatementDue, Statement
from yoco.guarantee.neighbourhood import Held
from yoco.guarantee.placements import placements_refresh
from yoco.guarantee.statements import statement_differs, statement_write
from yoco.guarantee.tally import year_rules
from yoco.incidents.models import Incident, ReportSource
from yoco.incidents.services import IngestOutcome, reports_ingest

__all__ = [
    "contract_cut_short",
    "contract_guarantee_add",
    "placements_rebuild",
    "placements_refresh",
    "reports_accept",
    "year_is_large",
    "year_restate",
    "years_close",
]

log = logging.getLogger(__name__)
LARGE = 3000


@transaction.atomic(savepoint=False)
def reports_accept(
    *,
    contract: Contract,
    key: AgentKey | None,
    reports: Sequence[Any],
    received_at: datetime.datetime,
    source: str = ReportSource.AGENT,
) -> IngestOutcome:
    """Takes in reports and places what they changed, in one transaction: an answer means that both are durable."""
    outcome = reports_ingest(contract=contract, key=key, reports=reports, received_at=received_at, source=source)
    if outcome.incident_ids and outcome.contract is not None:
        held = Held(outcome.contract, outcome.incidents, frozenset(outcome.created))
        placements_refresh(incident_ids=outcome.incident_ids, held=held)
    return outcome


def placements_rebuild(*, contract: Contract, reason: str = "rebuilt") -> int:
    """Places every incident of a contract anew, for instance when the guarantee was added. Returns their number."""
    ids = list(Incident.objects.filter(contract=contract).order_by().values_list("pk", flat=True))
    placements_refresh(incident_ids=ids, reason=reason)
    return len(ids)


@transaction.atomic
def contract_guarantee_add(*, contract: Contract, guarantee_from: datetime.date, actor: User | None) -> Contract:
    """Adds the guarantee to a contract in force and places the incidents that it now covers. Raises DomainError."""
    contract = guarantee_add(contract=contract, guarantee_from=guarantee_from, actor=actor)
    placements_rebuild(contract=contract, reason="guarantee_added")
    return contract


@transaction.atomic
def contract_cut_short(*, contract: Contract, ends_on: datetime.date, actor: User | None, reason: str) -> Contract:
    """Ends a contract before its term and places anew what lies near its new end. Raises DomainError."""
    contract = contract_end_early(contract=contract, ends_on=ends_on, actor=actor, reason=reason)
    placements_rebuild(contract=contract, reason="contract_ended_early")
    return contract


@dataclass
class Closing:
    """What one run of `years_close` did."""

    closing: list[ContractYear] = field(default_factory=list)
    closed: list[Statement] = field(default_factory=list)
    closed_unguaranteed: list[ContractYear] = field(default_factory=list)
    restated: list[Statement] = field(default_factory=list)


def years_close(*, as_of: datetime.datetime, actor: User | None = None) -> Closing:
    """Brings every contract year to the state it has at `as_of`, however long nothing ran.

    1. A year whose end has passed goes from open to closing; late reports still count.
    2. A closing year whose late-report window has passed is closed: its statement is frozen, and a shortfall proposes
       a credit.
    3. A closed year whose facts changed since is restated.

    Each year is one transaction that checks the state again under the year's lock, so calling this twice, also at the
    same time, does nothing twice. If a year fails, the others are still brought forward and the failures are raised
    together.
    """
    done = Closing()
    failures: list[Exception] = []
    due = ContractYear.objects.exclude(state=YearState.CLOSED).filter(ends_at__lte=as_of).order_by("ends_at", "pk")
    for year_id in due.values_list("pk", flat=True):
        try:
            _year_advance(year_id, as_of, actor, done)
        except Exception as error:
            log.exception("Contract year %s could not be closed", year_id)
            failures.append(error)
    for year_id in RestatementDue.objects.order_by("since").values_list("pk", flat=True):
        try:
            _restatement_write(year_id, actor, done)
        except Exception as error:
            log.exception("Contract year %s could not be restated", year_id)
            failures.append(error)
    if failures:
        raise ExceptionGroup("Some contract years could not be brought forward", failures)
    return done


def _year_hold(year_id: uuid.UUID) -> ContractYear:
    """The year under its contract's lock: nobody is placing an incident in it, and nobody will before this ends."""
    contracts_lock([ContractYear.objects.values_list("contract_id", flat=True).get(pk=year_id)])
    return ContractYear.objects.select_related("contract__organisation").get(pk=year_id)


@transaction.atomic
def _year_advance(year_id: uuid.UUID, as_of: datetime.datetime, actor: User | None, done: Closing) -> None:
    year = _year_hold(year_id)
    if year.state == YearState.OPEN:
        year.state = YearState.CLOSING
        year.save(update_fields=["state"])
        _record("year.closing", year, actor, as_of=as_of.isoformat())
        done.closing.append(year)
    rules, terms = year_rules(year)
    if year.state != YearState.CLOSING or rules.closes_at > as_of:
        return
    year.state, year.closed_at = YearState.CLOSED, timezone.now()
    year.save(update_fields=["state", "closed_at"])
    _year_place(year, reason="late_report")
    if terms is None or year.guaranteed_from is None:
        _record("year.closed", year, actor, as_of=as_of.isoformat(), statement="")
        done.closed_unguaranteed.append(year)
        return
    statement = statement_write(year=year, reason="")
    _record("year.closed", year, actor, as_of=as_of.isoformat(), statement=str(statement.pk), sha256=statement.sha256)
    outbox_record(
        kind="statement.created",
        subject=statement,
        organisation_id=year.contract.organisation_id,
        payload={"year": str(year.pk), "statement": str(statement.pk)},
    )
    if statement.verdict == "short":
        credit_propose(year=year, statement_id=statement.pk, statement_sha256=statement.sha256, actor=actor)
    done.closed.append(statement)


def _year_place(year: ContractYear, *, reason: str) -> None:
    """Places the incidents of a closed year: what is still open is decided by the terms' cut-off."""
    began = Incident.objects.filter(
        contract_id=year.contract_id, started_at__gte=year.starts_at, started_at__lt=year.ends_at
    )
    placed = Placement.objects.filter(year=year)
    placements_refresh(
        incident_ids={pk for rows in (began, placed) for pk in rows.order_by().values_list("pk", flat=True)},
        reason=reason,
    )


@transaction.atomic
def _restatement_write(year_id: uuid.UUID, actor: User | None, done: Closing) -> None:
    year = _year_hold(year_id)
    due = RestatementDue.objects.filter(pk=year_id).first()
    if due is None:
        return
    statement = _restate(year, reason=", ".join(due.reasons), actor=actor)
    if statement is not None:
        done.restated.append(statement)


@transaction.atomic
def year_restate(*, year: ContractYear, reason: str, actor: User | None = None) -> Statement:
    """Writes the next revision of a closed year's statement at once, with a reason for people.

    Its incidents are placed anew first, so that a rule that was mended since counts, too; those of a large year are
    taken as they were placed. Raises DomainError if the year is not closed, the reason is empty, or nothing changed
    since the last statement.
    """
    if not reason.strip():
        raise DomainError(_("A restatement needs a reason."), code="reason_missing")
    held = _year_hold(year.pk)
    if not Statement.objects.filter(year=held).exists():
        raise DomainError(_("Only a closed year can be restated."), code="not_closed")
    if not year_is_large(year=held):
        _year_place(held, reason="placed_anew")
    statement = _restate(held, reason=reason.strip(), actor=actor)
    if statement is None:
        raise DomainError(_("Nothing has changed since the last statement."), code="nothing_changed")
    return statement


def year_is_large(*, year: ContractYear) -> bool:
    """Whether placing the year's incidents anew takes longer than a person waits: 1 to 4 ms each."""
    return Placement.objects.filter(year=year).order_by()[LARGE : LARGE + 1].exists()


def _restate(year: ContractYear, *, reason: str, actor: User | None) -> Statement | None:
    RestatementDue.objects.filter(pk=year.pk).delete()
    last = Statement.objects.filter(year=year).order_by("-revision").first()
    assert last is not None
    if not statement_differs(year=year, statement=last):
        return None
    statement = statement_write(year=year, reason=reason)
    _record(
        "year.restated",
        year,
        actor,
        statement=str(statement.pk),
        sha256=statement.sha256,
        revision=statement.revision,
        reason=reason,
    )
    outbox_record(
        kind="statement.restated",
        subject=statement,
        organisation_id=year.contract.organisation_id,
        payload={"year": str(year.pk), "statement": str(statement.pk)},
    )
    credit_restated(
        year=year,
        statement_id=statement.pk,
        statement_sha256=statement.sha256,
        short=statement.verdict == "short",
        actor=actor,
    )
    return statement


def _record(action: str, year: ContractYear, actor: User | None, **data: object) -> None:
    audit_record(
        action=action, actor=actor, subject=year, organisation_id=year.contract.organisation_id, data=dict(data)
    )

"""A contract's ledger and statements of account as plain data, for customers who check and for other systems."""

import csv
import io
from dataclasses import asdict
from typing import Any

from yoco.contracts.models import Contract
from yoco.core.downloads import cell
from yoco.core.money import Money
from yoco.credits.chain import GENESIS, timestamp
from yoco.credits.ledger import entry_of
from yoco.credits.models import LedgerTransaction
from yoco.credits.selectors import AccountStatement, credit_balances, credits_of_contract, transactions_of_contract


def ledger_export(*, contract: Contract) -> dict[str, Any]:
    """Everything needed to check a contract's chain and balances without this service; docs/ledger.md says how.

    Amounts are integers in minor units; times are UTC with microseconds, exactly as hashed.
    """
    credits = list(credits_of_contract(contract=contract))
    balances = credit_balances(credits=credits)
    transactions = [transaction_content(row) for row in transactions_of_contract(contract=contract)]
    return {
        "format": "yoco-ledger/1",
        "contract": {"id": str(contract.pk), "number": contract.number, "currency": contract.currency},
        "credits": [
            {
                "id": str(credit.pk),
                "year": str(credit.year_id),
                "state": credit.state,
                "statement": str(credit.statement_id),
                "statement_sha256": credit.statement_sha256,
                "balance": asdict(balances[credit.pk]),
            }
            for credit in credits
        ],
        "transactions": transactions,
        "head": transactions[-1]["hash"] if transactions else GENESIS,
    }


def transaction_content(row: LedgerTransaction) -> dict[str, Any]:
    """One entry with its postings, exactly as hashed, and its hash."""
    return {
        **asdict(entry_of(row)),
        "effective_at": timestamp(row.effective_at),
        "recorded_at": timestamp(row.recorded_at),
        "postings": [
            {
                "line": posting.line,
                "account": posting.account.kind,
                "currency": posting.account.currency,
                "minor": posting.minor,
                "credit": str(posting.credit_id),
                "order": str(posting.order_id) if posting.order_id else None,
            }
            for posting in sorted(row.postings.all(), key=lambda p: p.line)
        ],
        "version": row.version,
        "hash": row.hash,
    }


def account_statement_csv(*, statement: AccountStatement) -> str:
    """The statement of account as CSV: opening, movements, closing; amounts in major units with a decimal point."""
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(["effective_at", "kind", "credit", "order", "amount", "balance", "currency", "transaction", "hash"])

    def amount(minor: int) -> str:
        return str(Money(minor, statement.currency).decimal)

    def total(kind: str, at: str, minor: int) -> None:
        rows.writerow([at, kind, "", "", "", amount(minor), statement.currency, "", ""])

    total("opening", timestamp(statement.start), statement.opening)
    for line in statement.lines:
        rows.writerow(
            [
                timestamp(line.transaction.effective_at),
                line.transaction.kind,
                line.credit_id,
                cell(line.order_number or ""),
                amount(line.minor),
                amount(line.balance),
                statement.currency,
                line.transaction.pk,
                line.transaction.hash,
            ]
        )
    total("closing", timestamp(statement.end), statement.closing)
    return text.getvalue()

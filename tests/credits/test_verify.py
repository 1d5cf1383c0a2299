"""`ledger_verify` names the row after somebody with full rights over the database changed it."""

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from tests.append_only_flush import triggers_suspended
from tests.credits import books as make
from tests.credits.test_database_refuses import account, commit_checks, entry, post
from tests.guarantee.facts import at, incident, restart
from tests.people import World
from yoco.contracts.models import Order
from yoco.credits.models import Credit, LedgerTransaction, Posting, Seal
from yoco.credits.selectors import credit_balance
from yoco.credits.services import credit_apply, credit_approve, credit_issue, credits_fix, credits_reinstate
from yoco.credits.verify import ledger_verify
from yoco.guarantee.models import Statement
from yoco.guarantee.services import placements_refresh, years_close


@pytest.fixture
def filled(world: World, clock: object) -> World:
    """Two contracts: one with six transactions, one with two."""
    make.approved(world, world.year, make.year_fees(world.year, 4000))
    for amount in (100, 300):
        credit_apply(order_id=make.order(world.contract, amount).pk, actor=world.account_manager)
    first = Order.objects.order_by("number").first()
    assert first is not None
    make.cancel(first)
    credits_reinstate(order_id=first.pk, actor=None)
    stranger_year = world.stranger_contract.years.get()
    make.approved(world, stranger_year, make.year_fees(stranger_year, 4000))
    assert ledger_verify().holds
    return world


def tamper(statement: str, *parameters: Any) -> None:
    """Runs SQL as the database's superuser, with every trigger switched off."""
    commit_checks()
    with triggers_suspended(connection), connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        assert cursor.rowcount > 0
        commit_checks()


def key(value: Any) -> Any:
    """A UUID as the database stores it."""
    return value if connection.vendor == "postgresql" else value.hex


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("request_hash", "f" * 64),
        ("effective_at", "2027-11-02 09:30:01.000001+00:00"),
        ("recorded_at", "2027-11-02 09:30:01.000001+00:00"),
        ("statement_sha256", "e" * 64),
        ("reason", "8 of 1O"),
        ("kind", "expire"),
        ("version", 1),
        ("version", 9),
        ("grounds", "{}"),
        ("idempotency_key", "other"),
        ("previous_hash", "d" * 64),
        ("hash", "c" * 64),
        ("sequence", 77),
    ],
)
def test_any_changed_column_of_a_transaction_is_named(filled: World, column: str, value: Any) -> None:
    row = LedgerTransaction.objects.get(contract=filled.contract, sequence=3)
    tamper(f"UPDATE credits_ledgertransaction SET {column} = %s WHERE id = %s", value, key(row.pk))
    first = ledger_verify().broken[0]
    if column == "sequence":  # it now stands at the end, so the gap is noticed first
        assert "number 4" in first.row
        assert "expected number 3" in first.reason
    else:
        assert str(row.pk) in first.row


def test_one_changed_digit_of_an_amount_is_named(filled: World) -> None:
    row = LedgerTransaction.objects.get(contract=filled.contract, sequence=3)
    tamper("UPDATE credits_posting SET minor = minor * 2 WHERE transaction_id = %s", key(row.pk))
    verification = ledger_verify()
    assert str(row.pk) in verification.broken[0].row
    assert "does not match its hash" in verification.broken[0].reason
    tamper("UPDATE credits_posting SET minor = minor + 1 WHERE transaction_id = %s AND line = 1", key(row.pk))
    assert any("sum to 1, not zero" in b.reason for b in ledger_verify().broken)


@pytest.mark.parametrize("column", ["credit_id", "order_id", "account_id", "line"])
def test_a_posting_moved_elsewhere_is_named(filled: World, column: str) -> None:
    row = LedgerTransaction.objects.get(contract=filled.contract, sequence=3)
    other = Credit.objects.exclude(year=filled.year).get()
    second = Order.objects.order_by("number").last()
    assert second is not None
    value = {
        "credit_id": key(other.pk),
        "order_id": key(second.pk),
        "account_id": key(account(filled.contract, "forfeited").pk),
        "line": 9,
    }[column]
    tamper(f"UPDATE credits_posting SET {column} = %s WHERE transaction_id = %s AND line = 2", value, key(row.pk))
    assert str(row.pk) in ledger_verify().broken[0].row


def test_a_changed_account_is_named(filled: World) -> None:
    target = account(filled.contract, "available")
    tamper("UPDATE credits_ledgeraccount SET currency = 'USD' WHERE id = %s", key(target.pk))
    assert "number 2" in ledger_verify().broken[0].row


def test_a_removed_transaction_is_noticed_wherever_it_stood(filled: World) -> None:
    row = LedgerTransaction.objects.get(contract=filled.contract, sequence=2)
    for table, column in (("seal", "transaction_id"), ("posting", "transaction_id"), ("ledgertransaction", "id")):
        tamper(f"DELETE FROM credits_{table} WHERE {column} = %s", key(row.pk))
    first = ledger_verify().broken[0]
    assert "number 3" in first.row
    assert "missing" in first.reason


def test_a_removed_end_shows_in_the_credit_and_in_the_head(filled: World) -> None:
    before = ledger_verify().heads
    for row in LedgerTransaction.objects.filter(contract=filled.stranger_contract).order_by("-sequence"):
        for table, column in (("seal", "transaction_id"), ("posting", "transaction_id"), ("ledgertransaction", "id")):
            tamper(f"DELETE FROM credits_{table} WHERE {column} = %s", key(row.pk))
    verification = ledger_verify()
    assert any("granted its amount is missing" in b.reason for b in verification.broken)
    assert verification.heads != before


def test_postings_without_their_transaction_are_noticed(filled: World) -> None:
    row = LedgerTransaction.objects.filter(contract=filled.contract).order_by("-sequence").first()
    assert row is not None
    if connection.vendor == "postgresql":
        pytest.skip("PostgreSQL's own foreign keys stand even when the user's triggers are off")
    tamper("DELETE FROM credits_ledgertransaction WHERE id = %s", key(row.pk))
    assert any("belong to no transaction" in b.reason for b in ledger_verify().broken)
    for table in ("seal", "posting"):  # so that the test's own end finds no dangling key
        tamper(f"DELETE FROM credits_{table} WHERE transaction_id = %s", key(row.pk))


def test_a_removed_seal_and_a_removed_posting_are_named(filled: World) -> None:
    row = LedgerTransaction.objects.get(contract=filled.contract, sequence=3)
    tamper("DELETE FROM credits_seal WHERE transaction_id = %s", key(row.pk))
    assert [b.reason for b in ledger_verify().broken if str(row.pk) in b.row] == ["has no seal"]
    tamper("DELETE FROM credits_posting WHERE transaction_id = %s AND line = 1", key(row.pk))
    assert any("fewer than two" in b.reason for b in ledger_verify().broken)


def test_a_credit_changed_behind_the_ledger_is_named(filled: World) -> None:
    credit = Credit.objects.get(year=filled.year)
    tamper("UPDATE credits_credit SET state = 'expired', ended_at = approved_at WHERE id = %s", key(credit.pk))
    (broken,) = ledger_verify().broken
    assert broken.row == f"credit {credit.pk}"
    assert "still available" in broken.reason


def test_an_order_made_smaller_than_what_was_paid_is_named(filled: World) -> None:
    paid = Order.objects.order_by("number").last()
    assert paid is not None
    Order.objects.filter(pk=paid.pk).update(amount_minor=299)
    (broken,) = ledger_verify().broken
    assert (broken.row, broken.reason) == (f"order {paid.pk}", "was paid 300 of 299 by credits")


@pytest.fixture
def fixed(world: World, clock: object) -> Credit:
    """A credit whose amount its order fixed: 25 % of 4000. No entry of it was made by a person."""
    credit = make.approved(world, world.year, make.terms_version(world.contract))
    make.order(world.contract, 4000)
    make.order(world.contract, 4000)
    (credit,) = credits_fix(contract_id=world.contract.pk)
    assert ledger_verify().holds
    return credit


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("issued_by_id", "owner", "says issued_by"),
        ("approved_by_id", "owner", "says approved_by"),
        ("issued_at", "2027-11-02 09:30:00.000001+00:00", "says issued_at"),
        ("approved_at", "2027-11-02 09:30:00.000001+00:00", "says approved_at"),
        ("amount_order_id", "other order", "names another order"),
        ("amount_order_id", None, "the order it was computed from are missing"),
    ],
)
def test_a_superuser_who_changes_what_a_credit_rests_on_is_found(
    world: World, fixed: Credit, column: str, value: str | None, says: str
) -> None:
    other = Order.objects.exclude(pk=fixed.amount_order_id).get()
    named = {"owner": key(world.owner.pk), "other order": key(other.pk)}
    tamper(f"UPDATE credits_credit SET {column} = %s WHERE id = %s", named.get(value or "", value), key(fixed.pk))
    found = ledger_verify().broken
    assert any(broken.row == f"credit {fixed.pk}" and says in broken.reason for broken in found), found


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE contracts_order SET amount_minor = 4400", "grants 1000, but 25/100 of 4400 is 1100"),
        ("UPDATE contracts_guaranteeterms SET credit_rate_num = 30", "grants 1000, but 30/100 of 4000 is 1200"),
        ("UPDATE contracts_guaranteeterms SET credit_base = 'year_fees'", "its base is not that of its terms"),
        ("UPDATE contracts_guaranteeterms SET rounding = 'half_up'", "says rounding half_up"),
        ("UPDATE contracts_guaranteeterms SET version = version + 7", "says terms_version 9"),
    ],
)
def test_an_amount_that_does_not_follow_from_its_order_and_terms_is_found(
    fixed: Credit, statement: str, says: str
) -> None:
    tamper(statement)
    found = ledger_verify().broken
    assert any(broken.row == f"credit {fixed.pk}" and says in broken.reason for broken in found), found


def test_fees_changed_after_the_credit_was_issued_are_found(filled: World) -> None:
    credit = Credit.objects.get(year=filled.year)
    tamper("UPDATE contracts_contractyear SET fees_minor = 8000 WHERE id = %s", key(filled.year.pk))
    reasons = [broken.reason for broken in ledger_verify().broken if broken.row == f"credit {credit.pk}"]
    assert any("grants 1000, but 25/100 of 8000 is 2000" in reason for reason in reasons), reasons
    assert any("says base_minor 8000" in reason for reason in reasons), reasons


def test_a_cap_made_smaller_than_what_was_paid_is_found(filled: World) -> None:
    tamper("UPDATE contracts_guaranteeterms SET credit_cap_den = 2")
    (broken,) = ledger_verify().broken
    assert "was paid 300 by credits, more than its cap of 150" in broken.reason


@pytest.mark.parametrize("column", ["issued_by_id", "approved_by_id"])
def test_a_signature_changed_before_anything_is_posted_is_found(world: World, clock: object, column: str) -> None:
    credit = make.approved(world, world.year, make.terms_version(world.contract))
    assert ledger_verify().holds
    tamper(f"UPDATE credits_credit SET {column} = %s WHERE id = %s", key(world.owner.pk), key(credit.pk))
    (broken,) = ledger_verify().broken
    assert broken.row == f"credit {credit.pk}"
    assert "audit log does not say so" in broken.reason


@pytest.mark.parametrize("column", ["terms_id", "year_id"])
def test_a_proposal_moved_to_better_terms_or_another_year_is_found(world: World, clock: object, column: str) -> None:
    """Before it is issued no entry holds it: its own statement does."""
    credit = make.proposed(world.year, make.terms_version(world.contract))
    better = make.terms_version(world.contract, credit_rate_num=50)
    elsewhere = world.stranger_contract.years.get()
    value = {"terms_id": better.pk, "year_id": elsewhere.pk}[column]
    assert ledger_verify().holds
    tamper(f"UPDATE credits_credit SET {column} = %s WHERE id = %s", key(value), key(credit.pk))
    reasons = [broken.reason for broken in ledger_verify().broken if broken.row == f"credit {credit.pk}"]
    assert "its year or its terms are not those of its statement" in reasons


def test_a_short_year_whose_credit_is_gone_is_found(world: World, clock: object) -> None:
    row = incident(world.contract, **restart(at(1)))
    placements_refresh(incident_ids=[row.pk])
    years_close(as_of=make.NOW)
    call_command("ledger_verify")
    tamper("DELETE FROM credits_credit")
    with pytest.raises(CommandError, match=f"contracts_contractyear {world.year.pk}: fell short"):
        call_command("ledger_verify")


def test_entries_of_version_1_still_verify_and_name_who_acted(
    world: World, clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yoco.credits.ledger.VERSION", 1)
    credit = make.approved(world, world.year, make.year_fees(world.year, 4000))
    monkeypatch.undo()
    credit_apply(order_id=make.order(world.contract, 100).pk, actor=world.account_manager)
    assert ledger_verify().holds
    assert set(LedgerTransaction.objects.values_list("version", flat=True)) == {1, 2}
    tamper("UPDATE credits_credit SET approved_by_id = %s WHERE id = %s", key(world.owner.pk), key(credit.pk))
    (broken,) = ledger_verify().broken
    assert broken.row == f"credit {credit.pk}"
    assert f"says approved_by {world.owner.pk}" in broken.reason


def test_one_contract_can_be_checked_alone(filled: World) -> None:
    row = LedgerTransaction.objects.get(contract=filled.contract, sequence=3)
    tamper("UPDATE credits_ledgertransaction SET reason = 'x' WHERE id = %s", key(row.pk))
    assert ledger_verify(contract_id=filled.stranger_contract.pk).holds
    assert not ledger_verify(contract_id=filled.contract.pk).holds


def test_an_unsealed_transaction_counts_nowhere_on_sqlite(filled: World) -> None:
    if connection.vendor == "postgresql":
        pytest.skip("PostgreSQL refuses it at commit: see test_database_refuses")
    credit = Credit.objects.get(year=filled.year)
    before = credit_balance(credit=credit)
    with transaction.atomic():
        row = entry(filled.contract, credit)
        post(row, credit, (account(filled.contract, "granted"), -5), (account(filled.contract, "available"), 5))
    assert credit_balance(credit=credit) == before
    assert "has no seal" in [b.reason for b in ledger_verify().broken]
    assert (Posting.objects.filter(transaction=row).count(), Seal.objects.filter(transaction=row).count()) == (2, 0)


def test_the_command_names_the_first_broken_row_and_exits_with_1(
    world: World, clock: object, capsys: pytest.CaptureFixture[str]
) -> None:
    row = incident(world.contract, **restart(at(1)))
    placements_refresh(incident_ids=[row.pk])
    years_close(as_of=make.NOW)
    credit = Credit.objects.get()
    credit_issue(credit_id=credit.pk, actor=world.account_manager, reason="0 of 1")
    credit_approve(credit_id=credit.pk, actor=world.second_account_manager)
    credit_apply(order_id=make.order(world.contract, 4000).pk, actor=world.account_manager)
    call_command("ledger_verify")
    assert "Everything holds." in capsys.readouterr().out
    call_command("ledger_verify", contract=world.contract.number, format="json")
    assert '"holds": true' in capsys.readouterr().out
    with pytest.raises(CommandError) as usage:
        call_command("ledger_verify", contract="NO-SUCH")
    assert usage.value.returncode == 2

    paid = LedgerTransaction.objects.get(sequence=2)
    tamper("UPDATE credits_ledgertransaction SET request_hash = %s WHERE id = %s", "a" * 64, key(paid.pk))
    with pytest.raises(CommandError, match=str(paid.pk)) as broken:
        call_command("ledger_verify")
    assert broken.value.returncode == 1
    assert f"BROKEN  transaction {paid.pk}" in capsys.readouterr().out

    tamper("UPDATE contracts_guaranteeterms SET relapse_window_minutes = 31")
    with pytest.raises(CommandError):
        call_command("ledger_verify")
    said = capsys.readouterr().out
    assert (
        f"BROKEN  contracts_guaranteeterms {credit.terms_id}: its relapse_window_minutes is 31, but statement" in said
    )
    tamper("UPDATE contracts_guaranteeterms SET relapse_window_minutes = 30")

    statement = Statement.objects.get(pk=credit.statement_id)
    tamper(
        "UPDATE guarantee_statement SET canonical = %s WHERE id = %s",
        statement.canonical.replace('"counted":1', '"counted":2'),
        key(statement.pk),
    )
    with pytest.raises(CommandError, match=str(statement.pk)):
        call_command("ledger_verify")

"""What the database itself refuses in the ledger, on PostgreSQL and on SQLite. Migration 0002 installs it.

1. A transaction extends its contract's chain by one: next sequence, the last hash as its previous hash.
2. A posting goes into a transaction without a seal, and stays within its contract and currency.
3. A seal, inserted last, is refused unless the postings sum to zero per currency, there are at least two, no account of
   a credit runs below zero (`granted`: above zero) and no order is paid more than its amount.
4. PostgreSQL, at commit: every new transaction has its seal and sums to zero. SQLite has no deferred trigger; there an
   unsealed transaction counts nowhere and `ledger_verify` reports it.
5. A credit is never deleted, and what identifies or signs it never changes.
"""

_CHAIN_BROKEN = """
    NEW.sequence <> 1 + (SELECT coalesce(max(sequence), 0) FROM credits_ledgertransaction
                         WHERE contract_id = NEW.contract_id)
    OR NEW.previous_hash <> coalesce((SELECT hash FROM credits_ledgertransaction
                                      WHERE contract_id = NEW.contract_id ORDER BY sequence DESC LIMIT 1),
                                     '0000000000000000000000000000000000000000000000000000000000000000')
    OR (NEW.reverses_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM credits_ledgertransaction
        WHERE id = NEW.reverses_id AND contract_id = NEW.contract_id))
"""

_SEALED = "EXISTS (SELECT 1 FROM credits_seal WHERE transaction_id = NEW.transaction_id)"
_UNKNOWN = "NOT EXISTS (SELECT 1 FROM credits_ledgertransaction WHERE id = NEW.transaction_id)"
_NO_SEAL = "NOT EXISTS (SELECT 1 FROM credits_seal WHERE transaction_id = NEW.id)"

_POSTING_FOREIGN = """
    NOT EXISTS (
        SELECT 1 FROM credits_ledgertransaction t
        JOIN credits_ledgeraccount a ON a.id = NEW.account_id AND a.contract_id = t.contract_id
        JOIN credits_credit c ON c.id = NEW.credit_id AND c.currency = a.currency
        JOIN contracts_contractyear y ON y.id = c.year_id AND y.contract_id = t.contract_id
        WHERE t.id = NEW.transaction_id
          AND (NEW.order_id IS NULL OR EXISTS (SELECT 1 FROM contracts_order o
               WHERE o.id = NEW.order_id AND o.contract_id = t.contract_id AND o.currency = a.currency)))
"""

_NOT_BALANCED = """
    (SELECT count(*) FROM credits_posting WHERE transaction_id = {tx}) < 2
    OR EXISTS (SELECT 1 FROM credits_posting p JOIN credits_ledgeraccount a ON a.id = p.account_id
               WHERE p.transaction_id = {tx} GROUP BY a.currency HAVING sum(p.minor) <> 0)
"""

_BELOW_ZERO = """
    EXISTS (SELECT 1 FROM credits_posting p JOIN credits_ledgeraccount a ON a.id = p.account_id
            WHERE p.credit_id IN (SELECT credit_id FROM credits_posting WHERE transaction_id = NEW.transaction_id)
              AND (p.transaction_id = NEW.transaction_id
                   OR EXISTS (SELECT 1 FROM credits_seal s WHERE s.transaction_id = p.transaction_id))
            GROUP BY p.credit_id, a.kind
            HAVING CASE a.kind WHEN 'granted' THEN sum(p.minor) > 0 ELSE sum(p.minor) < 0 END)
"""

_ORDER_OVERPAID = """
    EXISTS (SELECT 1 FROM credits_posting p JOIN credits_ledgeraccount a ON a.id = p.account_id
            JOIN contracts_order o ON o.id = p.order_id
            WHERE a.kind = 'applied'
              AND (p.transaction_id = NEW.transaction_id
                   OR EXISTS (SELECT 1 FROM credits_seal s WHERE s.transaction_id = p.transaction_id))
              AND p.order_id IN (SELECT order_id FROM credits_posting WHERE transaction_id = NEW.transaction_id)
            GROUP BY o.id, o.amount_minor HAVING sum(p.minor) > o.amount_minor)
"""

_CREDIT_FIXED = ("year_id", "terms_id", "statement_id", "statement_sha256", "base", "currency", "proposed_at")
_CREDIT_SIGNED = ("issued_by_id", "issued_at", "approved_by_id", "approved_at", "ended_at")

CHAIN = "the ledger chain is broken: refused"
SEALED = "the transaction is sealed or unknown: posting refused"
FOREIGN = "the posting leaves its contract or currency: refused"
BALANCE = "the postings of a transaction must sum to zero per currency: refused"
BELOW_ZERO = "an account of a credit would run below zero: refused"
OVERPAID = "an order would be paid more than its amount: refused"
UNSEALED = "a ledger transaction without its seal: refused"
CREDIT = "a credit cannot be deleted, nor what identifies or signs it be changed: refused"


def _pg_raise(message: str) -> str:
    return f"RAISE EXCEPTION '{message}' USING ERRCODE = 'integrity_constraint_violation';"


def _pg_credit_changed() -> str:
    fixed = [f"NEW.{c} IS DISTINCT FROM OLD.{c}" for c in _CREDIT_FIXED]
    signed = [f"(OLD.{c} IS NOT NULL AND NEW.{c} IS DISTINCT FROM OLD.{c})" for c in _CREDIT_SIGNED]
    return " OR ".join(fixed + signed)


def _sqlite_credit_changed() -> str:
    fixed = [f"NEW.{c} IS NOT OLD.{c}" for c in _CREDIT_FIXED]
    signed = [f"(OLD.{c} IS NOT NULL AND NEW.{c} IS NOT OLD.{c})" for c in _CREDIT_SIGNED]
    return " OR ".join(fixed + signed)


def _pg_function(name: str, body: str) -> str:
    return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;"


POSTGRESQL = [
    _pg_function(
        "credits_transaction_extends_chain",
        # The row lock makes writers of one contract's books wait for each other, whatever the writer is.
        f"""PERFORM 1 FROM contracts_contract WHERE id = NEW.contract_id FOR NO KEY UPDATE;
            IF {_CHAIN_BROKEN} THEN {_pg_raise(CHAIN)} END IF; RETURN NEW;""",
    ),
    "CREATE TRIGGER credits_transaction_extends_chain BEFORE INSERT ON credits_ledgertransaction "
    "FOR EACH ROW EXECUTE FUNCTION credits_transaction_extends_chain();",
    _pg_function(
        "credits_posting_fits",
        # A transaction older than the snapshot of a REPEATABLE READ writer is unknown to it, and so refused too.
        f"""IF {_SEALED} OR {_UNKNOWN} THEN {_pg_raise(SEALED)} END IF;
            IF {_POSTING_FOREIGN} THEN {_pg_raise(FOREIGN)} END IF; RETURN NEW;""",
    ),
    "CREATE TRIGGER credits_posting_fits BEFORE INSERT ON credits_posting "
    "FOR EACH ROW EXECUTE FUNCTION credits_posting_fits();",
    _pg_function(
        "credits_seal_holds",
        f"""IF {_NOT_BALANCED.format(tx="NEW.transaction_id")} THEN {_pg_raise(BALANCE)} END IF;
            IF {_BELOW_ZERO} THEN {_pg_raise(BELOW_ZERO)} END IF;
            IF {_ORDER_OVERPAID} THEN {_pg_raise(OVERPAID)} END IF; RETURN NEW;""",
    ),
    "CREATE TRIGGER credits_seal_holds BEFORE INSERT ON credits_seal "
    "FOR EACH ROW EXECUTE FUNCTION credits_seal_holds();",
    _pg_function(
        "credits_transaction_complete",
        f"""IF {_NO_SEAL} THEN {_pg_raise(UNSEALED)} END IF;
            IF {_NOT_BALANCED.format(tx="NEW.id")} THEN {_pg_raise(BALANCE)} END IF; RETURN NULL;""",
    ),
    "CREATE CONSTRAINT TRIGGER credits_transaction_complete AFTER INSERT ON credits_ledgertransaction "
    "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION credits_transaction_complete();",
    _pg_function(
        "credits_credit_keeps_identity",
        f"""IF TG_OP IN ('DELETE', 'TRUNCATE') THEN {_pg_raise(CREDIT)} END IF;
            IF {_pg_credit_changed()} THEN {_pg_raise(CREDIT)} END IF; RETURN NEW;""",
    ),
    "CREATE TRIGGER credits_credit_keeps_identity BEFORE UPDATE OR DELETE ON credits_credit "
    "FOR EACH ROW EXECUTE FUNCTION credits_credit_keeps_identity();",
    "CREATE TRIGGER credits_credit_no_truncate BEFORE TRUNCATE ON credits_credit "
    "FOR EACH STATEMENT EXECUTE FUNCTION credits_credit_keeps_identity();",
]

UNDO_POSTGRESQL = [
    "DROP TRIGGER credits_transaction_extends_chain ON credits_ledgertransaction;",
    "DROP TRIGGER credits_posting_fits ON credits_posting;",
    "DROP TRIGGER credits_seal_holds ON credits_seal;",
    "DROP TRIGGER credits_transaction_complete ON credits_ledgertransaction;",
    "DROP TRIGGER credits_credit_keeps_identity ON credits_credit;",
    "DROP TRIGGER credits_credit_no_truncate ON credits_credit;",
    "DROP FUNCTION credits_transaction_extends_chain();",
    "DROP FUNCTION credits_posting_fits();",
    "DROP FUNCTION credits_seal_holds();",
    "DROP FUNCTION credits_transaction_complete();",
    "DROP FUNCTION credits_credit_keeps_identity();",
]


def _sqlite_trigger(name: str, event: str, checks: list[tuple[str, str]]) -> str:
    body = " ".join(f"SELECT RAISE(ABORT, '{message}') WHERE {condition};" for message, condition in checks)
    return f"CREATE TRIGGER {name} BEFORE {event} FOR EACH ROW BEGIN {body} END;"


SQLITE = [
    _sqlite_trigger(
        "credits_transaction_extends_chain", "INSERT ON credits_ledgertransaction", [(CHAIN, _CHAIN_BROKEN)]
    ),
    _sqlite_trigger(
        "credits_posting_fits",
        "INSERT ON credits_posting",
        [
            (SEALED, _SEALED),
            (FOREIGN, _POSTING_FOREIGN),
        ],
    ),
    _sqlite_trigger(
        "credits_seal_holds",
        "INSERT ON credits_seal",
        [
            (BALANCE, _NOT_BALANCED.format(tx="NEW.transaction_id")),
            (BELOW_ZERO, _BELOW_ZERO),
            (OVERPAID, _ORDER_OVERPAID),
        ],
    ),
    _sqlite_trigger("credits_credit_keeps_identity", "UPDATE ON credits_credit", [(CREDIT, _sqlite_credit_changed())]),
    _sqlite_trigger("credits_credit_no_delete", "DELETE ON credits_credit", [(CREDIT, "1")]),
]

UNDO_SQLITE = [
    "DROP TRIGGER credits_transaction_extends_chain;",
    "DROP TRIGGER credits_posting_fits;",
    "DROP TRIGGER credits_seal_holds;",
    "DROP TRIGGER credits_credit_keeps_identity;",
    "DROP TRIGGER credits_credit_no_delete;",
]

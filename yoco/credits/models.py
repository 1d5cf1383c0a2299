"""Credits and the double-entry ledger that says what each is worth. docs/ledger.md explains the books.

A credit row says who decided what and when; it holds no amount. What a credit granted, paid and forfeited is always the
sum of its postings. Ledger rows (account, transaction, posting, seal, request) are append-only.
"""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from yoco.accounts.models import User
from yoco.contracts.models import Contract, ContractYear, CreditBase, GuaranteeTerms, Order
from yoco.core.ids import uuid7

SHA256_HEX = 64


class CreditState(models.TextChoices):
    PROPOSED = "proposed", _("Proposed")
    ISSUED = "issued", _("Issued, awaiting approval")
    APPROVED = "approved", _("Approved")
    EXPIRED = "expired", _("Expired")
    REVERSED = "reversed", _("Reversed")


class Credit(models.Model):
    """One proposal, and what became of it. Every state but `reversed` is live: the year can have no second credit."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    year = models.ForeignKey(ContractYear, on_delete=models.PROTECT, related_name="credits", db_index=False)
    terms = models.ForeignKey(
        GuaranteeTerms,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="The statement's terms: rate, base, expiry.",
    )
    statement = models.ForeignKey("guarantee.Statement", on_delete=models.PROTECT, related_name="credits")
    statement_sha256 = models.CharField(max_length=SHA256_HEX)
    base = models.CharField(max_length=12, choices=CreditBase.choices)
    currency = models.CharField(max_length=3)
    state = models.CharField(max_length=8, choices=CreditState.choices, default=CreditState.PROPOSED)
    priority = models.PositiveSmallIntegerField(default=100, help_text="Lower is applied first.")
    proposed_at = models.DateTimeField(default=timezone.now)
    issued_at = models.DateTimeField(null=True, blank=True)
    issued_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    issue_reason = models.TextField(blank=True)
    approved_at = models.DateTimeField(null=True, blank=True)
    approved_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    amount_order = models.ForeignKey(
        Order,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="With base `next_order`: the order that fixed the amount.",
    )
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When it expired or was reversed.")
    ended_reason = models.TextField(blank=True)
    replaces = models.OneToOneField("self", null=True, blank=True, on_delete=models.PROTECT, related_name="replaced_by")
    review_since = models.DateTimeField(
        null=True, blank=True, help_text="Set while people must settle it; not applied."
    )
    review_reason = models.TextField(blank=True)
    review_statement = models.ForeignKey(
        "guarantee.Statement",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="The statement that raised the question; it justifies what the settlement posts.",
    )

    class Meta:
        ordering = ["proposed_at", "id"]
        indexes = [models.Index(fields=["year", "state"], name="credit_by_year")]
        constraints = [
            models.UniqueConstraint(fields=["year"], condition=~Q(state="reversed"), name="credit_one_live_per_year"),
            models.CheckConstraint(condition=Q(state__in=CreditState.values), name="credit_state_known"),
            models.CheckConstraint(
                condition=Q(approved_by=None) | Q(issued_by__isnull=False) & ~Q(approved_by=F("issued_by")),
                name="credit_four_eyes",
            ),
            models.CheckConstraint(
                condition=Q(issued_at=None, issued_by=None) | Q(issued_at__isnull=False, issued_by__isnull=False),
                name="credit_issue_complete",
            ),
            models.CheckConstraint(
                condition=Q(approved_at=None, approved_by=None)
                | Q(approved_at__isnull=False, approved_by__isnull=False, issued_at__isnull=False),
                name="credit_approval_complete",
            ),
            models.CheckConstraint(
                condition=Q(state="proposed", issued_at=None, approved_at=None)
                | Q(state="issued", issued_at__isnull=False, approved_at=None)
                | Q(state="approved", approved_at__isnull=False)
                | Q(state__in=["expired", "reversed"]),
                name="credit_state_has_people",
            ),
            models.CheckConstraint(
                condition=Q(state__in=["expired", "reversed"], ended_at__isnull=False)
                | ~Q(state__in=["expired", "reversed"]) & Q(ended_at=None),
                name="credit_ended_has_time",
            ),
            models.CheckConstraint(
                condition=Q(amount_order=None) | Q(base="next_order", approved_at__isnull=False),
                name="credit_order_fixes_approved",
            ),
            models.CheckConstraint(
                condition=Q(review_since=None, review_statement=None)
                | Q(review_since__isnull=False, review_statement__isnull=False),
                name="credit_review_complete",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.year} {self.state}"


class AccountKind(models.TextChoices):
    """A contract's accounts. `granted`, the vendor's side, is never positive; the others are never negative."""

    GRANTED = "granted", _("Granted by the vendor")
    AWAITING = "awaiting", _("Awaiting approval")
    AVAILABLE = "available", _("Available to the customer")
    APPLIED = "applied", _("Applied to orders")
    FORFEITED = "forfeited", _("Forfeited")


class LedgerAccount(models.Model):
    """One account of one contract in one currency."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="+", db_index=False)
    currency = models.CharField(max_length=3)
    kind = models.CharField(max_length=10, choices=AccountKind.choices)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["contract", "currency", "kind"], name="account_unique"),
            models.CheckConstraint(condition=Q(kind__in=AccountKind.values), name="account_kind_known"),
        ]


class TransactionKind(models.TextChoices):
    ISSUE = "issue", _("Issued")
    APPROVE = "approve", _("Approved")
    FIX = "fix", _("Amount fixed by an order")
    APPLY = "apply", _("Applied to an order")
    REINSTATE = "reinstate", _("Reinstated: order cancelled")
    EXPIRE = "expire", _("Forfeited")
    REVERSE = "reverse", _("Reversed")


class LedgerTransaction(models.Model):
    """One entry in a contract's books, linked to the one before it by hash. It counts once it has its seal."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="+", db_index=False)
    sequence = models.PositiveBigIntegerField(help_text="1, 2, 3 … within the contract.")
    kind = models.CharField(max_length=10, choices=TransactionKind.choices)
    idempotency_key = models.CharField(max_length=200, unique=True)
    request_hash = models.CharField(max_length=SHA256_HEX)
    effective_at = models.DateTimeField(help_text="When it takes effect in the books.")
    recorded_at = models.DateTimeField(help_text="When it was written.")
    statement = models.ForeignKey("guarantee.Statement", on_delete=models.PROTECT, related_name="+")
    statement_sha256 = models.CharField(max_length=SHA256_HEX)
    actor = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+", help_text="Null: the system."
    )
    reason = models.TextField(blank=True)
    reverses = models.OneToOneField("self", null=True, on_delete=models.PROTECT, related_name="reversed_by")
    grounds = models.TextField(  # noqa: DJ001 (the entries before version 2 have none, and null says so)
        null=True, help_text="What a granted amount rests on and who signed, as hashed; null for other entries."
    )
    version = models.PositiveSmallIntegerField(help_text="The version byte of the hashed form.")
    previous_hash = models.CharField(max_length=SHA256_HEX)
    hash = models.CharField(max_length=SHA256_HEX)

    class Meta:
        ordering = ["contract", "sequence"]
        constraints = [
            models.UniqueConstraint(fields=["contract", "sequence"], name="transaction_sequence_unique"),
            # No two entries follow the same one: the chain cannot fork even where locks fail.
            models.UniqueConstraint(fields=["contract", "previous_hash"], name="transaction_chain_unique"),
            models.CheckConstraint(condition=Q(kind__in=TransactionKind.values), name="transaction_kind_known"),
            models.CheckConstraint(condition=Q(sequence__gte=1), name="transaction_sequence_from_one"),
            models.CheckConstraint(condition=Q(version__gte=1, version__lte=255), name="transaction_version_byte"),
        ]


class Posting(models.Model):
    """An amount moved into (+) or out of (-) an account, in minor units of its currency, on behalf of one credit."""

    id = models.BigAutoField(primary_key=True)
    transaction = models.ForeignKey(
        LedgerTransaction, on_delete=models.PROTECT, related_name="postings", db_index=False
    )
    line = models.PositiveSmallIntegerField()
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="postings")
    minor = models.BigIntegerField()
    credit = models.ForeignKey(Credit, on_delete=models.PROTECT, related_name="postings")
    order = models.ForeignKey(Order, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["transaction", "line"]
        constraints = [
            models.UniqueConstraint(fields=["transaction", "line"], name="posting_line_unique"),
            models.CheckConstraint(condition=~Q(minor=0), name="posting_not_zero"),
        ]


class Seal(models.Model):
    """Inserted last. Its trigger sums the postings; after it the transaction takes no further posting."""

    transaction = models.OneToOneField(
        LedgerTransaction, primary_key=True, on_delete=models.PROTECT, related_name="seal"
    )


class LedgerRequest(models.Model):
    """An accepted request by its idempotency key: the same request again gets the same answer and does nothing."""

    key = models.CharField(max_length=120, primary_key=True)
    action = models.CharField(max_length=40)
    request_hash = models.CharField(max_length=SHA256_HEX)
    result = models.JSONField(default=dict, help_text="Ids of what the request made.")
    at = models.DateTimeField(default=timezone.now)

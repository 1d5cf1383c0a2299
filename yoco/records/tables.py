"""Which tables an organisation's export has, by which road a row belongs to it, and which columns stay behind."""

from dataclasses import dataclass

from django.db.models import Model

from yoco.accounts.models import AgentKey, Invitation, Membership, Organisation, User
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms, Order
from yoco.core.models import AuditEntry, OutboxEvent, OutboxPending
from yoco.credits.models import Credit, LedgerAccount, LedgerRequest, LedgerTransaction, Posting, Seal
from yoco.guarantee.models import (
    AnalyticsJob,
    ImportFile,
    Placement,
    Proposal,
    RestatementDue,
    Snapshot,
    Statement,
    StatementShare,
)
from yoco.incidents.models import (
    AgentBoot,
    Comment,
    Dispute,
    Exclusion,
    Incident,
    RawReport,
    Regrouping,
    RegroupingProposal,
    RootEvent,
    Run,
    StepHour,
)
from yoco.notify.models import (
    Endpoint,
    MailDelivery,
    MailPreference,
    WebhookAttempt,
    WebhookDelivery,
)


@dataclass(frozen=True, slots=True)
class Table:
    """One file of rows. `organisation` is the lookup path from a row to its organisation's id."""

    name: str
    model: type[Model]
    organisation: str
    omit: frozenset[str] = frozenset()  # what opens or signs something
    content: str = ""  # a column that is written as a file of its own, byte for byte


BY_CONTRACT = "contract__organisation"
BY_INCIDENT = "incident__contract__organisation"
BY_YEAR = "year__contract__organisation"
BY_MEMBER = "membership__organisation"

TABLES = [
    Table("organisation", Organisation, "pk"),
    Table("memberships", Membership, "organisation"),
    Table("invitations", Invitation, "organisation", frozenset({"digest"})),
    Table("keys", AgentKey, "organisation", frozenset({"digest", "pepper"})),
    Table("contracts", Contract, "organisation"),
    Table("terms", GuaranteeTerms, BY_CONTRACT),
    Table("contract_years", ContractYear, BY_CONTRACT),
    Table("orders", Order, BY_CONTRACT),
    Table("runs", Run, BY_CONTRACT),
    Table("agent_boots", AgentBoot, BY_CONTRACT),
    Table("step_hours", StepHour, "run__contract__organisation"),
    Table("raw_reports", RawReport, BY_CONTRACT),
    Table("import_files", ImportFile, BY_CONTRACT, content="content"),
    Table("root_events", RootEvent, BY_CONTRACT),
    Table("incidents", Incident, BY_CONTRACT),
    Table("exclusions", Exclusion, BY_INCIDENT),
    Table("disputes", Dispute, BY_INCIDENT),
    Table("comments", Comment, BY_INCIDENT),
    Table("regroupings", Regrouping, BY_INCIDENT),
    Table("regrouping_proposals", RegroupingProposal, BY_CONTRACT),
    Table("regrouping_proposal_incidents", RegroupingProposal.incidents.through, BY_INCIDENT),
    Table("placements", Placement, BY_INCIDENT),
    Table("statements", Statement, BY_YEAR, content="canonical"),
    Table("statement_shares", StatementShare, "statement__year__contract__organisation", frozenset({"digest"})),
    Table("restatements_due", RestatementDue, BY_YEAR),
    Table("snapshots", Snapshot, BY_YEAR, content="canonical"),
    Table("desk_proposals", Proposal, BY_CONTRACT),
    Table("credits", Credit, BY_YEAR),
    Table("webhook_endpoints", Endpoint, "organisation", frozenset({"seed", "pepper", "old_seed", "old_pepper"})),
    Table("webhook_deliveries", WebhookDelivery, "endpoint__organisation"),
    Table("webhook_attempts", WebhookAttempt, "delivery__endpoint__organisation"),
    Table("mail_deliveries", MailDelivery, BY_MEMBER),
    Table("mail_preferences", MailPreference, BY_MEMBER),
    Table("events", OutboxEvent, "organisation_id"),
    Table("audit_log", AuditEntry, "organisation_id"),
]

# Tables of ours without a file of their own, and why; a test names every other one.
ELSEWHERE: dict[type[Model], str] = {
    User: "people.jsonl has those whom a row names",
    LedgerTransaction: "ledger.jsonl",
    Posting: "ledger.jsonl, in their entry",
    LedgerAccount: "ledger.jsonl, by their kind in each posting",
    Seal: "ledger.jsonl has sealed entries only",
    LedgerRequest: "answers to repeated requests; what they did is in the ledger",
    OutboxPending: "events that wait for their deliveries: events.jsonl",
    AnalyticsJob: "computed from the rest",
}

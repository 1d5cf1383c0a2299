"""What the API shows of each object. Reading only: facts enter as reports, everything else at the desk."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.core.money import Money
from yoco.credits.models import Credit
from yoco.credits.selectors import CreditBalance
from yoco.guarantee.models import Placement, Statement
from yoco.incidents.models import Incident, RawReport, RootEvent

TERMS_FIELDS = [
    field.name for field in GuaranteeTerms._meta.fields if field.name not in {"id", "contract", "created_by"}
]


class TermsSerializer(serializers.ModelSerializer[GuaranteeTerms]):
    """One version of a contract's terms."""

    class Meta:
        model = GuaranteeTerms
        fields = TERMS_FIELDS


class ContractSerializer(serializers.ModelSerializer[Contract]):
    """A contract and every version of its terms."""

    organisation = serializers.CharField(source="organisation.slug")
    terms = TermsSerializer(many=True)

    class Meta:
        model = Contract
        fields = [
            "id",
            "number",
            "name",
            "organisation",
            "currency",
            "time_zone",
            "starts_on",
            "ends_on",
            "guarantee_from",
            "price_per_gpu_hour",
            "terms",
        ]


class ContractYearSerializer(serializers.ModelSerializer[ContractYear]):
    """A contract year; its figures are the report at its own address."""

    contract_number = serializers.CharField(source="contract.number")

    class Meta:
        model = ContractYear
        fields = [
            "id",
            "contract",
            "contract_number",
            "number",
            "starts_on",
            "ends_on",
            "starts_at",
            "ends_at",
            "guaranteed_from",
            "guaranteed_until",
            "state",
            "closed_at",
        ]


class ContractYearDetailSerializer(ContractYearSerializer):
    """A contract year with its report, as `guarantee_report --format json` prints it."""

    report = serializers.SerializerMethodField()

    class Meta(ContractYearSerializer.Meta):
        fields = [*ContractYearSerializer.Meta.fields, "report"]

    def get_report(self, year: ContractYear) -> dict[str, Any]:
        report: dict[str, Any] = self.context["report"].as_dict()
        return report


class RootEventSerializer(serializers.ModelSerializer[RootEvent]):
    """What happened, once."""

    class Meta:
        model = RootEvent
        fields = ["id", "named_id", "node", "cause", "first_at", "last_at"]


class PlacementSerializer(serializers.ModelSerializer[Placement]):
    """Where an incident was placed, by which rule, on what evidence. Incidents with one `unit_key` count once."""

    class Meta:
        model = Placement
        fields = ["year", "kind", "unit_key", "lead", "outcome", "rule", "without_loss", "evidence", "placed_at"]


INCIDENT_HIDDEN = {"public_id", "moved_to", "run", "root_event", "explained_by"}
INCIDENT_FACTS = [field.name for field in Incident._meta.fields if field.name not in INCIDENT_HIDDEN | {"id"}]


class IncidentSerializer(serializers.ModelSerializer[Incident]):
    """The facts of one incident, and where it was placed."""

    id = serializers.UUIDField(source="public_id")
    run_id = serializers.CharField(source="run.run_id")
    root_event = RootEventSerializer(allow_null=True)
    explained_by = serializers.UUIDField(source="explained_by.public_id", allow_null=True, default=None)
    placement = PlacementSerializer(allow_null=True, default=None)

    class Meta:
        model = Incident
        fields = ["id", "run_id", *INCIDENT_FACTS, "root_event", "explained_by", "placement"]


class RawReportSerializer(serializers.ModelSerializer[RawReport]):
    """A report as received; `body` is its text with every field."""

    class Meta:
        model = RawReport
        fields = [
            "report_id",
            "source",
            "type",
            "agent_id",
            "boot_id",
            "seq",
            "sent_at",
            "received_at",
            "conflict",
            "content_sha256",
            "body",
        ]


class IncidentDetailSerializer(IncidentSerializer):
    """An incident with every report about it, and the other incidents of its root event."""

    reports = serializers.SerializerMethodField()
    root_event_members = serializers.SerializerMethodField()

    class Meta(IncidentSerializer.Meta):
        fields = [*IncidentSerializer.Meta.fields, "root_event_members", "reports"]

    @extend_schema_field(RawReportSerializer(many=True))
    def get_reports(self, incident: Incident) -> Any:
        rows = RawReport.objects.filter(contract_id=incident.contract_id, incident_id=incident.public_id)
        return RawReportSerializer(rows.order_by("sent_at", "id"), many=True).data

    @extend_schema_field(serializers.ListSerializer(child=serializers.UUIDField()))
    def get_root_event_members(self, incident: Incident) -> list[str]:
        members = Incident.objects.filter(root_event_id=incident.root_event_id).order_by("started_at", "id")
        return [str(public_id) for public_id in members.values_list("public_id", flat=True)]


class StatementSerializer(serializers.ModelSerializer[Statement]):
    """The frozen result of a closed year. A later revision replaces an earlier one and says why."""

    contract = serializers.UUIDField(source="year.contract_id")
    terms_version = serializers.IntegerField(source="terms.version")

    class Meta:
        model = Statement
        fields = [
            "id",
            "contract",
            "year",
            "revision",
            "reason",
            "terms_version",
            "counted",
            "resolved",
            "verdict",
            "sha256",
            "created_at",
        ]


class StatementDetailSerializer(StatementSerializer):
    """A statement with the canonical JSON that `sha256` is of, as one text."""

    class Meta(StatementSerializer.Meta):
        fields = [*StatementSerializer.Meta.fields, "canonical"]


class MoneySerializer(serializers.Serializer[Any]):
    """An amount: integer minor units and its decimal text."""

    minor = serializers.IntegerField()
    currency = serializers.CharField()
    amount = serializers.CharField()


class BalanceSerializer(serializers.Serializer[Any]):
    """The books of a credit: granted = awaiting + available + applied + forfeited."""

    granted = MoneySerializer()
    awaiting = MoneySerializer()
    available = MoneySerializer()
    applied = MoneySerializer()
    forfeited = MoneySerializer()


class CreditSerializer(serializers.ModelSerializer[Credit]):
    """A credit and its balance. The balance is the sum of its postings."""

    contract = serializers.UUIDField(source="year.contract_id")
    balance = serializers.SerializerMethodField()

    class Meta:
        model = Credit
        fields = [
            "id",
            "contract",
            "year",
            "statement",
            "statement_sha256",
            "base",
            "currency",
            "state",
            "priority",
            "proposed_at",
            "issued_at",
            "approved_at",
            "ended_at",
            "ended_reason",
            "balance",
        ]

    @extend_schema_field(BalanceSerializer)
    def get_balance(self, credit: Credit) -> dict[str, dict[str, Any]]:
        balance: CreditBalance = self.context["balances"][credit.pk]
        return {kind: _money(money) for kind, money in balance.money.items()}


def _money(money: Money) -> dict[str, Any]:
    return {"minor": money.minor, "currency": money.currency, "amount": str(money.decimal)}

"""Raw reports (append-only), what agents have sent, incidents projected from reports, and people's reviews of them."""

from yoco.incidents.models.incident import (
    Incident,
    IncidentState,
    Kind,
    Origin,
    Resolution,
    RootEvent,
    Run,
    Signal,
)
from yoco.incidents.models.regrouping import Regrouping, RegroupingAction, RegroupingProposal
from yoco.incidents.models.reports import AgentBoot, RawReport, ReportSource
from yoco.incidents.models.review import Comment, Decision, Dispute, Exclusion
from yoco.incidents.models.steps import StepHour

__all__ = [
    "AgentBoot",
    "Comment",
    "Decision",
    "Dispute",
    "Exclusion",
    "Incident",
    "IncidentState",
    "Kind",
    "Origin",
    "RawReport",
    "Regrouping",
    "RegroupingAction",
    "RegroupingProposal",
    "ReportSource",
    "Resolution",
    "RootEvent",
    "Run",
    "Signal",
    "StepHour",
]

"""The wire format of reports and heartbeats: typed, bounded, and refused with the JSON path of what is wrong.

Unknown fields are ignored here and kept in the raw report. Pure: no database.
"""

import datetime
import json
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from django.utils.translation import gettext as _
from msgspec import UNSET, Meta, Struct, UnsetType

from yoco.incidents.phases import PHASE_ORDER

T = TypeVar("T")

SUPPORTED_MAJORS = (1,)
MAX_REPORT_BYTES = 256 * 1024
MAX_AHEAD = datetime.timedelta(minutes=5)
MAX_VALUES = 1_000_000  # in one body; 500 reports of the largest kind have half of that
MAX_DEPTH = 64  # far below what makes a database or an encoder fail, in the depth of any caller
# How long an agent may take to notice a failure: its watchdogs take minutes.
MAX_UNNOTICED = datetime.timedelta(days=1)
EARLIEST = datetime.datetime(1990, 1, 1, tzinfo=datetime.UTC)

INT32, INT64 = 2**31 - 1, 2**63 - 1
MAX_SEQ = 2**53  # beyond it, JSON parsers disagree on integers
MAX_GPUS = 1_000_000

Instant = Annotated[datetime.datetime, Meta(tz=True)]
Text40 = Annotated[str, Meta(max_length=40)]
Text80 = Annotated[str, Meta(max_length=80)]
Text128 = Annotated[str, Meta(max_length=128)]
Text200 = Annotated[str, Meta(max_length=200)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Count32 = Annotated[int, Meta(ge=0, le=INT32)]
Count64 = Annotated[int, Meta(ge=0, le=INT64)]
Gpus = Annotated[int, Meta(ge=1, le=MAX_GPUS)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]

Kind = Literal["unplanned", "preventive", "planned"]
Signal = Literal["process_exit", "heartbeat_lost", "hang", "xid", "ecc", "thermal", "power", "link", "operator"]
Resolution = Literal["live_migration", "path_failover", "checkpoint_restart", "abandoned"]
ReportType = Literal["incident.detected", "incident.resolved", "incident.amended"]
StateSource = Literal["replica", "leaving_worker", "redundant_shard", "storage"]


class Workload(Struct):
    run_id: Name
    gpus: Gpus
    name: Text200 | None = None
    framework: Text40 | None = None
    agent_version: Text40 | None = None
    world_size: Count32 | None = None
    gpu_model: Text80 | None = None
    gpus_per_node: Gpus | None = None
    strategy: Literal["ddp", "hsdp", "fsdp"] | None = None
    replicas: Count32 | None = None


class Trigger(Struct):
    signal: Signal
    xid: Count32 | None = None
    detail: dict[str, Any] | None = None


class Where(Struct):
    node: Text200 | None = None
    rank: Count32 | None = None
    gpu_uuid: Text80 | None = None


class Phases(Struct):
    started_at: Instant | None = None
    detected_at: Instant | None = None
    quiesced_at: Instant | None = None
    spare_ready_at: Instant | None = None
    state_moved_at: Instant | None = None
    state_verified_at: Instant | None = None
    resumed_at: Instant | None = None


class Progress(Struct):
    last_committed_step: Count64 | None = None
    first_step_after: Count64 | None = None
    samples_before: Count64 | None = None
    samples_after: Count64 | None = None
    samples_per_step: Count64 | None = None
    checkpoint_loaded: bool | None = None
    last_checkpoint_step: Count64 | None = None
    last_checkpoint_at: Instant | None = None
    step_seconds: Seconds | None = None


class State(Struct):
    source: StateSource | None = None
    bytes: Count64 | None = None
    digest_algorithm: Text40 | None = None
    digest_sent: Text128 | None = None
    digest_received: Text128 | None = None


class Preempted(Struct):
    run_id: Text200 | None = None
    gpus: Annotated[int, Meta(ge=0, le=MAX_GPUS)] | None = None
    lost_seconds: Seconds | None = None


class Spare(Struct):
    node: Text200 | None = None
    origin: Literal["pool", "preempted"] | None = None
    preempted: Preempted | None = None


class Attempt(Struct):
    at: Instant
    outcome: Text200
    reason: Annotated[str, Meta(max_length=2000)] | None = None


class Report(Struct):
    """One report. A field that is null says nothing; it never erases what another report said."""

    id: uuid.UUID
    agent_id: Name
    boot_id: uuid.UUID
    seq: Annotated[int, Meta(ge=1, le=MAX_SEQ)]
    type: ReportType
    incident_id: uuid.UUID
    sent_at: Instant
    workload: Workload
    kind: Kind
    trigger: Trigger
    where: Where | None = None
    phases: Phases | None = None
    progress: Progress | None = None
    state: State | None = None
    spare: Spare | None = None
    resolution: Resolution | None = None
    root_event_id: uuid.UUID | None = None
    attempts: Annotated[list[Attempt], Meta(max_length=1000)] | None = None
    schema_version: str | UnsetType = UNSET


class Heartbeat(Struct):
    """`seq` is the highest report number issued so far in this boot, 0 if none."""

    agent_id: Name
    boot_id: uuid.UUID
    seq: Annotated[int, Meta(ge=0, le=MAX_SEQ)]
    run_id: Name
    at: Instant
    step: Count64 | None = None
    workload: Workload | None = None
    run_ended: bool = False
    schema_version: str | UnsetType = UNSET


class Invalid(Exception):
    """The payload is refused. `path` is a JSON path such as `$.phases.resumed_at`."""

    def __init__(self, reason: str, path: str = "$") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A report that is JSON to Python but cannot be kept, such as one with NaN or half a surrogate pair."""

    reason: str
    path: str


def json_read(body: bytes) -> Any:
    """The value of a JSON text, with `Unreadable` in place of list items that hold NaN or lone surrogates.

    Raises Invalid when the text is not JSON at all, or of so many values that they would take a multiple of its size.
    """
    if sum(body.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:
        raise Invalid(f"A request may have {MAX_VALUES:,} values. Send fewer reports at once.")
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise Invalid("The JSON is nested too deeply.") from None
    except msgspec.MsgspecError as strict:
        # The lenient parser finds out which report is at fault, so that one cannot hold up the others.
        try:
            value = json.loads(body)
        except RecursionError:
            raise Invalid("The JSON is nested too deeply.") from None
        except ValueError:
            raise Invalid(f"This is not JSON: {strict}.") from None
    if isinstance(value, list):
        return [Unreadable(*fault) if (fault := _fault(item)) else item for item in value]
    if fault := _fault(value):
        return Unreadable(*fault)
    return value


def _fault(value: Any, path: str = "$") -> tuple[str, str] | None:
    """The first part of `value` that no database or strict parser would take, as (reason, path)."""
    todo = [(value, path)]
    while todo:
        item, at = todo.pop()
        if isinstance(item, dict):
            for name, inner in item.items():
                if fault := _text_fault(name):
                    return f"A field's name {fault}.", at
                todo.append((inner, f"{at}.{name}"))
        elif isinstance(item, list):
            todo.extend((inner, f"{at}[{index}]") for index, inner in enumerate(item))
        elif isinstance(item, str):
            if fault := _text_fault(item):
                return f"The text {fault}.", at
        elif isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
            return "NaN and infinite numbers are not JSON.", at
    return None


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return "contains the character U+0000"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "contains half of a surrogate pair"
    return None


def canonical_json(value: Any) -> bytes:
    """The JSON text of `value` with sorted names: equal contents give equal bytes. Raises Invalid if there is none."""
    try:
        text = msgspec.json.encode(value, order="deterministic")
    except RecursionError:
        raise Invalid("The JSON is nested too deeply.") from None
    except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, OverflowError) as error:
        reason, path = _fault(value) or (f"This cannot be written as JSON: {error}.", "$")
        raise Invalid(reason, path) from None
    if b"\\u0000" in text and (fault := _fault(value)):
        raise Invalid(*fault)
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and (deep := _too_deep(value)):
        raise Invalid(f"The JSON is nested more than {MAX_DEPTH} levels deep.", deep)
    return text


def _too_deep(value: Any) -> str | None:
    """Where `value` is nested beyond what is taken."""
    level: list[tuple[Any, str]] = [(value, "$")]
    for _depth in range(MAX_DEPTH):
        below: list[tuple[Any, str]] = []
        for item, at in level:
            if isinstance(item, dict):
                below += [(inner, f"{at}.{name}") for name, inner in item.items() if isinstance(inner, dict | list)]
            elif isinstance(item, list):
                below += [(inner, f"{at}[{n}]") for n, inner in enumerate(item) if isinstance(inner, dict | list)]
        level = below
    return level[0][1] if level else None


def _typed(value: Any, kind: type[T]) -> T:
    if not isinstance(value, dict):
        raise Invalid(f"Expected an object, got {json_kind(value)}.")
    version = value.get("schema_version")
    if version is not None:
        _version_check(version)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _at, path = str(error).partition(" - at `")
        raise Invalid(reason.replace("`", "") + ".", path.rstrip("`") or "$") from None
    except RecursionError:
        raise Invalid("The JSON is nested too deeply.") from None


def json_kind(value: Any) -> str:
    """What JSON calls the type of `value`."""
    kinds = {dict: "an object", list: "an array", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


def _version_check(version: Any) -> None:
    supported = ", ".join(f"{major}.x" for major in SUPPORTED_MAJORS)
    major = version.split(".")[0] if isinstance(version, str) else ""
    if not (major.isascii() and major.isdigit() and len(major) < 6):
        raise Invalid(f"Expected a version such as “1.0”; supported: {supported}.", "$.schema_version")
    if int(major) not in SUPPORTED_MAJORS:
        raise Invalid(f"Version {version[:20]} is not supported; supported: {supported}.", "$.schema_version")


def report_take(value: Any, *, received_at: datetime.datetime, witnessed: bool = False) -> tuple[Report, bytes]:
    """As `report_read`, with the text to keep. Raises Invalid for one that cannot be kept, too."""
    report = report_read(value, received_at=received_at, witnessed=witnessed)
    body = canonical_json(value)
    if len(body) > MAX_REPORT_BYTES:
        raise Invalid(f"A report may have {MAX_REPORT_BYTES // 1024} KiB.")
    return report, body


def report_read(value: Any, *, received_at: datetime.datetime, witnessed: bool = False) -> Report:
    """The typed report. Raises Invalid with the JSON path of the first thing that is wrong.

    `witnessed`: the sender was there, as an agent is, and does not copy an operator's record.
    """
    report = _typed(value, Report)
    latest = received_at + MAX_AHEAD
    _instant_check(report.sent_at, "$.sent_at", latest)
    if report.phases is not None:
        _phases_check(report.phases, latest)
        if witnessed:
            _start_check(report.phases, report.sent_at)
    if report.progress is not None:
        if (at := report.progress.last_checkpoint_at) is not None:
            _instant_check(at, "$.progress.last_checkpoint_at", latest)
        _progress_check(report.progress, report.resolution)
    for index, attempt in enumerate(report.attempts or ()):
        _instant_check(attempt.at, f"$.attempts[{index}].at", latest)
    return report


def heartbeat_read(value: Any, *, received_at: datetime.datetime) -> Heartbeat:
    """The typed heartbeat. Raises Invalid."""
    if isinstance(value, Unreadable):
        raise Invalid(value.reason, value.path)
    canonical_json(value)
    heartbeat = _typed(value, Heartbeat)
    _instant_check(heartbeat.at, "$.at", received_at + MAX_AHEAD)
    return heartbeat


def _instant_check(at: datetime.datetime, path: str, latest: datetime.datetime) -> None:
    if at > latest:
        raise Invalid(_("The time is more than 5 minutes in the future; set the clock of the sender."), path)
    if at < EARLIEST:
        raise Invalid(_("The time is before 1990."), path)


def _phases_check(phases: Phases, latest: datetime.datetime) -> None:
    for name in Phases.__struct_fields__:
        if (at := getattr(phases, name)) is not None:
            _instant_check(at, f"$.phases.{name}", latest)
    for before, after in PHASE_ORDER:
        first, second = getattr(phases, before), getattr(phases, after)
        if first is not None and second is not None and second < first:
            names = {"after": after, "before": before}
            raise Invalid(_("%(after)s is before %(before)s.") % names, f"$.phases.{after}")


def _start_check(phases: Phases, sent_at: datetime.datetime) -> None:
    """Without it one report could put a failure before the guarantee began, where it counts for nobody."""
    if phases.started_at is not None and (phases.detected_at or sent_at) - phases.started_at > MAX_UNNOTICED:
        raise Invalid(_("started_at is more than a day before the failure was noticed."), "$.phases.started_at")


def _progress_check(progress: Progress, resolution: str | None) -> None:
    # A step number that goes back is a fact when a checkpoint was loaded, and a contradiction in a migration.
    rolled_back = progress.checkpoint_loaded or resolution in ("checkpoint_restart", "abandoned")
    pairs = [("last_committed_step", "first_step_after"), ("samples_before", "samples_after")]
    for before, after in pairs:
        first, second = getattr(progress, before), getattr(progress, after)
        if first is not None and second is not None and second < first and not rolled_back:
            sentence = _("%(after)s is less than %(before)s, but no checkpoint is said to have been loaded.")
            raise Invalid(sentence % {"after": after, "before": before}, f"$.progress.{after}")

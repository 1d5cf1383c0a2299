"""Every route of the service with arguments that lead to Acme, and everyone who might ask for it."""

import datetime
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.apps import apps
from django.db import connection
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, resolve, reverse

from tests.people import PASSWORD, user
from tests.portal.scene import Scene
from tests.portal.test_access import PAGES
from yoco.accounts.models import AgentKey, Membership, Role, Scope, User
from yoco.accounts.services import agent_key_create, member_add, member_revoke
from yoco.guarantee.models import Statement
from yoco.guarantee.reviews import dispute_raise

# Text that only Acme's own people, keys and account managers may be told; no address holds any of it.
MARKERS = [b"ACME-7", b"Pre-training cluster", b"llm-7b-0412", b"olivia@example.com", b"node-004"]
# Written while a request is recognised, whatever it asks for.
BOOKKEEPING = ('"django_session"', '"usersessions_usersession"', '"accounts_agentkey" SET "last_used_at"')


@dataclass(frozen=True)
class Route:
    """One URL of the resolver. `objects` are its arguments that name a row of Acme; one without any is everyone's."""

    name: str
    path: str
    api: bool
    kwargs: dict[str, Any]

    @property
    def objects(self) -> dict[str, Any]:
        return {key: value for key, value in self.kwargs.items() if isinstance(value, uuid.UUID)}

    def with_own(self, own: dict[str, Any]) -> Iterator[str]:
        """The same address with one of its objects, and then another, replaced by the asker's own."""
        for key in self.objects.keys() & own.keys():
            if len(self.objects) > 1:
                yield reverse(self.name, kwargs={**self.kwargs, key: own[key]})


def routes(scene: Scene) -> list[Route]:
    """All of them. NoReverseMatch means that nobody listed the arguments of a route: add them here or to PAGES."""
    statement = Statement.objects.filter(year=scene.closed_year).earliest("revision")
    listed = {
        "api-contract-": scene.contract.pk,
        "api-contract-year-": scene.closed_year.pk,
        "api-incident-": scene.without_loss.public_id,
        "api-statement-": statement.pk,
        "api-credit-": scene.credit.pk,
    }
    # Where the page's classification names no real row, or one that cannot be written to.
    instead: dict[str, dict[str, Any]] = {
        "portal:member_change": {
            "membership_id": Membership.objects.get(user=scene.world.team_mate, revoked_at=None).pk
        },
        "portal:dispute": {"incident_id": scene.rolled_back.public_id},
    }
    dispute_raise(incident=scene.without_loss, text="Not so.", actor=scene.world.owner)  # to be withdrawn
    if "portal:invitation_withdraw" in PAGES:
        from yoco.accounts.invitations import invitation_create

        open_one = invitation_create(
            organisation=scene.world.organisation, email="new@example.com", role=Role.VIEWER, actor=scene.world.owner
        )
        instead["portal:invitation_withdraw"] = {"invitation_id": open_one.pk}
    rotated, _ = agent_key_create(organisation=scene.world.organisation, scope=Scope.READ, name="to rotate", actor=None)
    if "portal:key_rotate" in PAGES:
        instead["portal:key_rotate"] = {"key_id": rotated.pk}
    found = []
    for name, pattern, api in _patterns(get_resolver().url_patterns):
        if name.endswith("None"):
            path = "/api/v1/nowhere"
        elif api or name not in PAGES:
            wanted = pattern.pattern.converters
            longest = max((prefix for prefix in listed if name.startswith(prefix)), key=len, default="")
            path = reverse(name, kwargs=dict.fromkeys(wanted, listed.get(longest)))
        else:
            path = reverse(name, args=PAGES[name][0](scene))
            if name in instead:
                path = reverse(name, kwargs=resolve(path).kwargs | instead[name])
        found.append(Route(name, path, api, resolve(path).kwargs))
    return sorted(found, key=lambda route: not route.objects)


def methods_of(scene: Scene, everything: list[Route]) -> dict[str, list[str]]:
    """GET, POST and the others that a route takes: one that those who may do most are refused (405) nobody has."""
    most = [Asker(name, person=getattr(scene.world, name)) for name in ("owner", "account_manager")]
    return {
        route.name: ["get", "post"]
        + [
            method
            for method in ("put", "patch", "delete")
            if {asker.ask(method, route.path)[0].status_code for asker in most} != {405}
        ]
        for route in everything
    }


def _patterns(
    patterns: list[URLPattern | URLResolver], namespace: str = "", api: bool = False
) -> Iterator[tuple[str, URLPattern, bool]]:
    for pattern in patterns:
        inside = api or str(pattern.pattern).startswith("api/")
        if isinstance(pattern, URLResolver):
            inner = f"{namespace}{pattern.namespace}:" if pattern.namespace else namespace
            yield from _patterns(pattern.url_patterns, inner, inside)
        else:
            yield f"{namespace}{pattern.name}", pattern, inside


@dataclass
class Asker:
    """Somebody with a browser or a key. `own` are their objects by the names of URL arguments; `confirmed`
    ones have given their password again."""

    name: str
    person: User | None = None
    key: str = ""
    key_row: AgentKey | None = None
    own: dict[str, Any] = field(default_factory=dict)
    confirmed: bool = False
    client: Client | None = None

    def ask(self, method: str, path: str, body: Any = None, *, json: bool = False) -> tuple[Any, list[str]]:
        """One request, still signed in: the answer, and the statements that it wrote with."""
        client = self.client
        if client is None or (self.person and "_auth_user_id" not in client.session):
            client = self.client = Client(raise_request_exception=False)
            if self.person:
                client.force_login(self.person)
            if self.confirmed:
                client.post("/accounts/reauthenticate/", {"password": PASSWORD})
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        extra = {} if method == "get" or (method == "post" and not json) else {"content_type": "application/json"}
        writes = Writes()
        with connection.execute_wrapper(writes):
            answer = getattr(client, method)(path, body or {}, headers=headers, **extra)
        return answer, writes.statements


def askers(scene: Scene) -> list[Asker]:
    """Everyone who must not reach Acme."""
    world = scene.world
    other = world.stranger_contract.organisation
    own = {
        "organisation_id": other.pk,
        "contract_id": world.stranger_contract.pk,
        "year_id": world.stranger_contract.years.get().pk,
    }
    gone = user("gone@example.com")
    member_revoke(
        membership=member_add(organisation=world.organisation, user=gone, role=Role.ADMIN, actor=None),
        actor=world.owner,
    )
    key = partial(agent_key_create, contract=None, actor=world.owner)
    foreign_read, foreign_read_text = key(organisation=other, scope=Scope.READ, name="reader")
    foreign_ingest = AgentKey.objects.get(organisation=other, scope=Scope.INGEST)
    revoked, revoked_text = key(organisation=world.organisation, scope=Scope.READ, name="revoked")
    expired, expired_text = key(organisation=world.organisation, scope=Scope.READ, name="expired")
    past = world.contract.years.get().starts_at
    AgentKey.objects.filter(pk=revoked.pk).update(revoked_at=past)
    AgentKey.objects.filter(pk=expired.pk).update(expires_at=past + datetime.timedelta(days=1))
    return [
        Asker("anonymous"),
        Asker("signed in, no membership", person=user("nobody@example.com"), confirmed=True),
        Asker("member of another organisation", person=world.stranger, own=own, confirmed=True),
        Asker("revoked member", person=gone, confirmed=True),
        Asker("read key of another organisation", key=foreign_read_text, key_row=foreign_read, own=own),
        Asker("ingest key of another contract", key=world.stranger_key_text, key_row=foreign_ingest, own=own),
        Asker("revoked key", key=revoked_text, key_row=revoked),
        Asker("expired key", key=expired_text, key_row=expired),
    ]


def form_body(scene: Scene) -> dict[str, Any]:
    """What would make most forms of the portal valid, all in one."""
    return {
        "decision": "confirm",
        "name": "another",
        "scope": "read",
        "contract": scene.contract.pk,
        "role": "viewer",
        "text": "Not so.",
        "days": "7",
        "against": "placing",
        "note": "Because.",
        "reason": "Because.",
        "email": "newer@example.com",
        "url": "https://hooks.example.com/other",
        "state": "on",
        "key": str(uuid.uuid4()),
        "language": "en",
        "time_zone": "UTC",
        "ends_at": "2027-11-21T10:30",
    }


Rows = dict[tuple[str, Any], Any]


def rows_of_all_tables() -> Rows:
    """Every row of the database, sessions apart."""
    rows: Rows = {}
    for model in apps.get_models(include_auto_created=True):
        if model._meta.managed and model._meta.db_table not in ("django_session", "usersessions_usersession"):
            for row in model._base_manager.values_list("pk", *(f.attname for f in model._meta.concrete_fields)):
                rows[model._meta.label, row[0]] = row
    return rows


class Writes:
    """The statements that a request wrote with, except for BOOKKEEPING. Use with `connection.execute_wrapper`."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def __call__(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        text = str(sql).lstrip()
        if text.startswith(("INSERT", "UPDATE", "DELETE", "TRUNCATE")) and not any(t in text for t in BOOKKEEPING):
            self.statements.append(text[:120])
        return execute(sql, params, many, context)

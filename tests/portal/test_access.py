"""Who may open what: every URL name is classified here, and the test fails for a name that is not."""

import datetime
from collections.abc import Callable, Iterator
from typing import Any

from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from tests.portal.scene import NOW, Scene
from yoco.accounts.invitations import invitation_create
from yoco.accounts.models import Invitation, Membership, Role
from yoco.guarantee.models import ImportFile, Proposal, Snapshot, Statement, StatementShare
from yoco.guarantee.proposals import agreement_sha256, terms_propose
from yoco.guarantee.reviews import dispute_raise, exclusion_propose
from yoco.guarantee.sharing import statement_share
from yoco.guarantee.snapshots import snapshots_make
from yoco.guarantee.uploads import import_file_keep
from yoco.incidents.models import Dispute, Exclusion, RegroupingProposal
from yoco.incidents.services import regrouping_propose
from yoco.notify.endpoints import endpoint_create, endpoint_test
from yoco.notify.fan_out import events_fan_out
from yoco.notify.models import Endpoint, WebhookDelivery
from yoco.notify.preferences import stop_token

PEOPLE = ["owner", "team_mate", "viewer", "stranger", "anonymous", "account_manager"]
LOGIN = 302  # anonymous people are sent to sign in

# Expected status of GET for the people in that order.
OWN = [200, 200, 200, 404, LOGIN, 200]  # a page of the customer's own contract; account managers see all
DESK = [404, 404, 404, 404, LOGIN, 200]
MONEY = [404, 404, 404, 404, LOGIN, 302]  # what moves money or a verdict: the password is asked for first
MANAGED = [200, 403, 403, 404, LOGIN, 403]  # for those who manage the organisation
SIGNED_IN = [200, 200, 200, 200, LOGIN, 200]
POST_ONLY = [405, 405, 405, 405, 405, 405]
PUBLIC = [200, 200, 200, 200, 200, 200]
ENTRANCE = [302, 302, 302, 302, 200, 302]  # whoever is signed in goes on to the start
REDIRECT = [302, 302, 302, 302, 302, 302]
SWITCHED_OFF = [403, 403, 403, 403, LOGIN, 403]
NOT_SET_UP = [404, 404, 404, 404, LOGIN, 404]  # of a second factor that none of them has

Arguments = Callable[[Scene], list[Any]]


def nothing(scene: Scene) -> list[Any]:
    return []


def organisation(scene: Scene) -> list[Any]:
    return [scene.world.organisation.pk]


def key(scene: Scene) -> list[Any]:
    return [scene.world.organisation.pk, scene.world.key.pk]


def invitation(scene: Scene) -> list[Any]:
    world = scene.world
    row = Invitation.objects.first() or invitation_create(
        organisation=world.organisation, email="nina@example.com", role=Role.VIEWER, actor=world.owner
    )
    return [world.organisation.pk, row.pk]


def contract(scene: Scene) -> list[Any]:
    return [scene.contract.pk]


def year(scene: Scene) -> list[Any]:
    return [scene.contract.pk, scene.closed_year.pk]


def statement(scene: Scene) -> list[Any]:
    return [scene.contract.pk, scene.closed_year.pk, 1]


def snapshot(scene: Scene) -> list[Any]:
    if not Snapshot.objects.exists():
        snapshots_make(as_of=NOW)
    return [scene.contract.pk, scene.closed_year.pk, 2]


def incident(scene: Scene) -> list[Any]:
    return [scene.contract.pk, scene.without_loss.public_id]


def credit(scene: Scene) -> list[Any]:
    return [scene.credit.pk]


def some_exclusion(scene: Scene) -> Exclusion:
    return Exclusion.objects.first() or exclusion_propose(
        incident=scene.rolled_back, reason="user_error", note="Killed.", actor=scene.world.account_manager
    )


def some_regrouping(scene: Scene) -> RegroupingProposal:
    return RegroupingProposal.objects.first() or regrouping_propose(
        action="split", incidents=[scene.rolled_back], reason="Another feed.", actor=scene.world.account_manager
    )


def some_proposal(scene: Scene) -> Proposal:
    return Proposal.objects.first() or terms_propose(
        contract=scene.contract,
        effective_on=datetime.date(2028, 9, 1),
        fields={"threshold_num": 95},
        reason="Agreed.",
        actor=scene.world.account_manager,
        shown=agreement_sha256(scene.contract),
    )


def some_dispute(scene: Scene) -> Dispute:
    return Dispute.objects.first() or dispute_raise(incident=scene.rolled_back, text="Not so.", actor=scene.world.owner)


def some_share(scene: Scene) -> StatementShare:
    frozen = Statement.objects.get(year=scene.closed_year, revision=1)
    return StatementShare.objects.first() or statement_share(statement=frozen, days=7, actor=scene.world.owner)[0]


def webhook(scene: Scene) -> list[Any]:
    made = Endpoint.objects.first()
    if made is None:
        made, _secret = endpoint_create(
            organisation=scene.world.organisation,
            name="Ledger",
            url="https://hooks.example.com/yoco",
            kinds=[],
            actor=scene.world.owner,
        )
    return [scene.world.organisation.pk, made.pk]


def webhook_delivery(scene: Scene) -> list[Any]:
    arguments = webhook(scene)
    made = WebhookDelivery.objects.first()
    if made is None:
        endpoint_test(endpoint=Endpoint.objects.get(), actor=scene.world.owner)
        events_fan_out()
        made = WebhookDelivery.objects.get()
    return [*arguments, made.pk]


def own_membership(scene: Scene) -> Membership:
    return Membership.objects.get(organisation=scene.world.organisation, user=scene.world.owner)


def mine(scene: Scene) -> list[Any]:
    return [own_membership(scene).pk]


def import_file(scene: Scene) -> list[Any]:
    row = ImportFile.objects.first() or import_file_keep(
        contract=scene.contract,
        name="outages.csv",
        content=b"started_at,run_id,gpus\n2027-10-01T10:00:00Z,llm-7b,8\nyesterday,llm-7b,8\n",
        options={"format": "csv"},
        actor=scene.world.account_manager,
    )
    return [row.pk]


PAGES: dict[str, tuple[Arguments, list[int]]] = {
    "portal:home": (nothing, [200, 200, 200, 200, LOGIN, 302]),  # account managers: to the desk
    "portal:preferences": (nothing, POST_ONLY),
    "portal:scenario": (nothing, SIGNED_IN),
    "portal:scenario_file": (lambda scene: ["csv"], SIGNED_IN),
    "portal:settings": (nothing, SIGNED_IN),
    "portal:organisation": (organisation, OWN),
    "portal:key_create": (organisation, [302, 403, 403, 404, LOGIN, 403]),  # the password is asked for first
    "portal:key": (key, OWN),
    "portal:key_rotate": (key, POST_ONLY),
    "portal:key_revoke": (key, POST_ONLY),
    "portal:invite": (organisation, POST_ONLY),
    "portal:invitation_withdraw": (invitation, POST_ONLY),
    "portal:invitation": (lambda scene: ["not-a-token"], [404] * 6),
    "portal:sessions": (nothing, SIGNED_IN),
    "portal:session_end": (lambda scene: [1], POST_ONLY),
    "portal:sessions_end_others": (nothing, POST_ONLY),
    "portal:sign_on": (nothing, PUBLIC),
    "portal:first_run": (contract, OWN),
    "portal:fleet": (organisation, OWN),
    "portal:fleet_file": (lambda scene: [*organisation(scene), "contracts", "csv"], OWN),
    "portal:fleet_all": (nothing, DESK),
    "portal:fleet_all_file": (lambda scene: ["contracts", "parquet"], DESK),
    "portal:audit": (organisation, MANAGED),
    "portal:audit_csv": (organisation, MANAGED),
    "portal:audit_all": (nothing, DESK),
    "portal:audit_all_csv": (nothing, DESK),
    "portal:member_change": (lambda scene: [scene.world.organisation.pk, scene.world.owner.pk], POST_ONLY),
    "portal:webhooks": (organisation, MANAGED),
    "portal:webhook_new": (organisation, [302, 403, 403, 404, LOGIN, 403]),  # the password is asked for first
    "portal:webhook": (webhook, MANAGED),
    "portal:webhook_edit": (webhook, [302, 403, 403, 404, LOGIN, 403]),
    "portal:webhook_rotate": (webhook, POST_ONLY),
    "portal:webhook_switch": (webhook, POST_ONLY),
    "portal:webhook_test": (webhook, POST_ONLY),
    "portal:webhook_replay": (webhook, POST_ONLY),
    "portal:webhook_delivery": (webhook_delivery, MANAGED),
    "portal:webhook_delivery_replay": (webhook_delivery, POST_ONLY),
    "portal:mail_settings": (mine, [200, 404, 404, 404, LOGIN, 404]),
    # The signed link is the proof: mail programs open it without a session.
    "portal:mail_stop": (lambda scene: [stop_token(membership=own_membership(scene), topic="credits")], PUBLIC),
    "portal:year": (year, OWN),
    "portal:export": (year, OWN),
    "portal:analytics": (year, OWN),
    "portal:analytics_topic": (lambda scene: [*year(scene), "rates"], OWN),
    "portal:analytics_csv": (lambda scene: [*year(scene), "waste", "terms"], OWN),
    "portal:analytics_parquet": (lambda scene: [*year(scene), "waste", "terms"], OWN),
    "portal:statement": (statement, OWN),
    "portal:statement_pdf": (statement, OWN),
    "portal:statement_json": (statement, OWN),
    "portal:statement_csv": (statement, OWN),
    "portal:reports": (year, OWN),
    "portal:snapshot": (snapshot, OWN),
    "portal:snapshot_pdf": (snapshot, OWN),
    "portal:snapshot_json": (snapshot, OWN),
    "portal:snapshot_csv": (snapshot, OWN),
    "portal:statement_share": (statement, POST_ONLY),
    "portal:share_revoke": (lambda scene: [*statement(scene), some_share(scene).pk], POST_ONLY),
    # The link is the proof.
    "portal:shared": (lambda scene: ["not-a-token"], [404] * 6),
    "portal:shared_pdf": (lambda scene: ["not-a-token"], [404] * 6),
    "portal:incidents": (year, OWN),
    "portal:timeline": (year, OWN),
    "portal:incident_file": (lambda scene: [*year(scene), "csv"], OWN),
    "portal:incident": (incident, OWN),
    "portal:dispute": (incident, [200, 200, 403, 404, LOGIN, 403]),
    "portal:dispute_withdraw": (incident, POST_ONLY),
    "portal:comment": (incident, POST_ONLY),
    "portal:credits": (contract, OWN),
    "portal:credits_csv": (contract, OWN),
    "portal:ledger": (contract, OWN),
    "portal:terms": (contract, OWN),
    "desk:portfolio": (nothing, DESK),
    "desk:queue": (lambda scene: ["disputes"], DESK),
    "desk:contract": (contract, DESK),
    "desk:contract_new": (nothing, MONEY),
    "desk:terms_new": (contract, MONEY),
    "desk:guarantee_new": (contract, MONEY),
    "desk:contract_end": (contract, MONEY),
    "desk:year_fees": (year, MONEY),
    "desk:restate": (year, MONEY),
    "desk:proposal": (lambda scene: [some_proposal(scene).pk], MONEY),
    "desk:import": (contract, DESK),
    "desk:import_file": (import_file, DESK),
    "desk:import_rejects": (import_file, DESK),
    "desk:credit": (credit, DESK),
    "desk:merge": (incident, MONEY),
    "desk:split": (incident, MONEY),
    "desk:revert": (incident, MONEY),
    "desk:regrouping": (lambda scene: [some_regrouping(scene).pk], MONEY),
    "desk:exclude": (incident, MONEY),
    "desk:exclusion": (lambda scene: [some_exclusion(scene).pk], MONEY),
    "desk:exclusion_withdraw": (lambda scene: [some_exclusion(scene).pk], MONEY),
    "desk:dispute": (lambda scene: [some_dispute(scene).pk], MONEY),
    "desk:credit_step": (lambda scene: [scene.credit.pk, "issue"], MONEY),
    "desk:order_new": (contract, MONEY),
    "desk:order_cancel": (lambda scene: [scene.order.pk], MONEY),
    "desk:order_apply": (lambda scene: [scene.order.pk], MONEY),
    "account_login": (nothing, ENTRANCE),
    "account_logout": (nothing, [200, 200, 200, 200, 302, 200]),
    "account_signup": (nothing, ENTRANCE),
    "account_inactive": (nothing, PUBLIC),
    "account_reauthenticate": (nothing, SIGNED_IN),
    "account_email": (nothing, SIGNED_IN),
    "account_change_password": (nothing, SIGNED_IN),
    "account_set_password": (nothing, REDIRECT),
    "account_reset_password": (nothing, PUBLIC),
    "account_reset_password_done": (nothing, PUBLIC),
    "account_reset_password_from_key_done": (nothing, PUBLIC),
    "account_reset_password_from_key": (lambda scene: ["x", "y-z"], PUBLIC),
    "account_email_verification_sent": (nothing, PUBLIC),
    "account_confirm_email": (lambda scene: ["unknown"], PUBLIC),
    # By-code flows are not switched on.
    "account_request_reauthentication_code": (nothing, SWITCHED_OFF),
    "account_confirm_reauthentication_code": (nothing, SWITCHED_OFF),
    "account_confirm_login_code": (nothing, REDIRECT),
    "mfa_index": (nothing, SIGNED_IN),
    "mfa_authenticate": (nothing, REDIRECT),  # only between password and second factor
    "mfa_reauthenticate": (nothing, REDIRECT),
    "mfa_activate_totp": (nothing, REDIRECT),  # the password is asked for first, as for the following
    "mfa_deactivate_totp": (nothing, NOT_SET_UP),
    "mfa_view_recovery_codes": (nothing, NOT_SET_UP),
    "mfa_generate_recovery_codes": (nothing, REDIRECT),
    "mfa_download_recovery_codes": (nothing, NOT_SET_UP),
    "mfa_list_webauthn": (nothing, SIGNED_IN),
    "mfa_add_webauthn": (nothing, REDIRECT),
    "mfa_reauthenticate_webauthn": (nothing, REDIRECT),
    "mfa_remove_webauthn": (lambda scene: [1], REDIRECT),
    "mfa_edit_webauthn": (lambda scene: [1], REDIRECT),
    "mfa_login_webauthn": (nothing, REDIRECT),
    "socialaccount_login_cancelled": (nothing, PUBLIC),
    "socialaccount_login_error": (nothing, [401] * 6),
    "socialaccount_signup": (nothing, REDIRECT),
    "socialaccount_connections": (nothing, SIGNED_IN),
    # No provider of that name.
    "openid_connect_login": (lambda scene: ["nobody"], [404] * 6),
    "openid_connect_callback": (lambda scene: ["nobody"], [404] * 6),
    "saml_acs": (lambda scene: ["nobody"], REDIRECT),
    "saml_finish_acs": (lambda scene: ["nobody"], [404] * 6),
    "saml_sls": (lambda scene: ["nobody"], [404] * 6),
    "saml_metadata": (lambda scene: ["nobody"], [404] * 6),
    "saml_login": (lambda scene: ["nobody"], [404] * 6),
}


def names(patterns: list[URLPattern | URLResolver], namespace: str = "", prefix: str = "") -> Iterator[str]:
    """Every URL name outside the API, whose tests classify its own."""
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if route.startswith(("api/", "metrics", "health", "ready")):
            continue
        if isinstance(pattern, URLResolver):
            inner = f"{namespace}{pattern.namespace}:" if pattern.namespace else namespace
            yield from names(pattern.url_patterns, inner, route)
        else:
            yield f"{namespace}{pattern.name}"


def test_every_url_name_is_classified() -> None:
    assert set(names(get_resolver().url_patterns)) == set(PAGES)


def test_each_page_opens_for_those_it_is_for(client: Client, scene: Scene) -> None:
    # One scene for all pages: no GET changes anything.
    found: dict[str, list[int]] = {}
    for person in PEOPLE:
        client.logout()
        if person != "anonymous":
            client.force_login(getattr(scene.world, person))
        for name, (arguments, _) in PAGES.items():
            status = client.get(reverse(name, args=arguments(scene))).status_code
            if name == "account_logout" and person != "anonymous":
                assert client.session["_auth_user_id"]  # GET only asks
            found.setdefault(name, []).append(status)
    assert found == {name: expected for name, (_, expected) in PAGES.items()}

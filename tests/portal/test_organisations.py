"""Members and keys of an organisation through its pages: who may change what, and what then holds."""

import re

from django.test import Client
from django.urls import reverse

from tests.people import World, sign_in_confirmed, user
from tests.portal.test_pages import text_of
from yoco.accounts.models import AgentKey, Membership, Role, User
from yoco.accounts.services import agent_key_verify, member_add


def page(world: World) -> str:
    return reverse("portal:organisation", args=[world.organisation.pk])


def change(client: Client, world: World, person: User, role: str, actor: User) -> int:
    sign_in_confirmed(client, actor)
    membership = Membership.objects.get(organisation=world.organisation, user=person, revoked_at=None)
    return client.post(
        reverse("portal:member_change", args=[world.organisation.pk, membership.pk]), {"role": role}
    ).status_code


def role_of(world: World, person: User) -> str | None:
    return (
        Membership.objects.filter(organisation=world.organisation, user=person, revoked_at=None)
        .values_list("role", flat=True)
        .first()
    )


def test_a_key_is_shown_once_and_works(client: Client, world: World) -> None:
    sign_in_confirmed(client, world.owner)
    url = reverse("portal:key_create", args=[world.organisation.pk])
    fields = {"name": "Cluster B", "scope": "ingest", "contract": str(world.contract.pk)}
    answer = client.post(url, fields)
    assert answer.status_code == 201
    assert "no-store" in answer["cache-control"]
    text = re.search(r"yoco_ingest_[0-9A-Za-z]+_[0-9A-Za-z]+", answer.content.decode())
    assert text is not None
    key = agent_key_verify(text[0])
    assert key is not None
    assert (key.name, key.contract, key.created_by) == ("Cluster B", world.contract, world.owner)
    assert text[0] not in client.get(page(world)).content.decode()

    assert client.post(reverse("portal:key_revoke", args=[world.organisation.pk, key.pk])).status_code == 302
    assert agent_key_verify(text[0]) is None
    assert "Revoked" in text_of(client, page(world))


def test_a_key_cannot_name_another_tenants_contract(client: Client, world: World) -> None:
    sign_in_confirmed(client, world.owner)
    fields = {"name": "Theirs", "scope": "ingest", "contract": str(world.stranger_contract.pk)}
    before = AgentKey.objects.count()
    assert client.post(reverse("portal:key_create", args=[world.organisation.pk]), fields).status_code == 200
    assert AgentKey.objects.count() == before


def test_only_administrators_and_owners_change_things(client: Client, world: World) -> None:
    create = reverse("portal:key_create", args=[world.organisation.pk])
    revoke = reverse("portal:key_revoke", args=[world.organisation.pk, world.key.pk])
    for person, status in ((world.team_mate, 403), (world.viewer, 403), (world.stranger, 404)):
        client.force_login(person)
        assert [client.get(create).status_code, client.post(revoke).status_code] == [status, status]
        assert change(client, world, world.viewer, "admin", actor=person) == status
    assert agent_key_verify(world.key_text) is not None
    assert role_of(world, world.viewer) == Role.VIEWER
    client.force_login(world.viewer)
    assert "New key" not in text_of(client, page(world))


def test_a_member_who_is_removed_sees_nothing_at_once(client: Client, world: World) -> None:
    assert change(client, world, world.viewer, "none", actor=world.owner) == 302
    client.force_login(world.viewer)
    assert client.get(page(world)).status_code == 404


def test_the_last_owner_stays_and_only_owners_make_owners(client: Client, world: World) -> None:
    admin = user("ada@example.com")
    member_add(organisation=world.organisation, user=admin, role=Role.ADMIN, actor=world.owner)
    for role in ("none", "viewer"):
        assert change(client, world, world.owner, role, actor=world.owner) == 302
        assert role_of(world, world.owner) == Role.OWNER
    assert change(client, world, world.viewer, "owner", actor=admin) == 302
    assert role_of(world, world.viewer) == Role.VIEWER
    assert "Only an owner can make or remove an owner." in text_of(client, page(world))
    # An owner may, and then may go.
    assert change(client, world, world.team_mate, "owner", actor=world.owner) == 302
    assert role_of(world, world.team_mate) == Role.OWNER
    assert change(client, world, world.owner, "none", actor=world.owner) == 302
    assert role_of(world, world.owner) is None

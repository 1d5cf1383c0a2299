"""Single sign-on: OpenID Connect against a provider that answers on a port, SAML with really signed assertions.

Whom a provider may sign in is the same for both: an address of its own domains, with an account, an invitation, or a
claim of its organisation."""

import json
from collections.abc import Iterator

import httpx
import pytest
from allauth.socialaccount.models import SocialAccount
from django.core.exceptions import ImproperlyConfigured
from django.test import Client
from django.urls import reverse

from tests.accounts.identity_provider import CLIENT_ID, CLIENT_SECRET, OpenIDProvider, SAMLProvider
from tests.people import PASSWORD, World
from yoco.accounts.invitations import invitation_create
from yoco.accounts.models import Membership, Role, User
from yoco.accounts.sso import sso_for_allauth, sso_read

HOST = "yoco.example.com"


def configure(settings, **provider: object) -> None:
    settings.ALLOWED_HOSTS = [HOST, "testserver"]
    settings.SSO_PROVIDERS = sso_read(json.dumps([provider]))
    settings.SOCIALACCOUNT_PROVIDERS = sso_for_allauth(settings.SSO_PROVIDERS)


@pytest.fixture
def acme(settings) -> Iterator[OpenIDProvider]:
    """Acme's provider, which may speak for acme.example and example.com."""
    provider = OpenIDProvider()
    configure(
        settings,
        kind="oidc",
        id="acme",
        name="Acme",
        domains=["acme.example", "Example.com"],
        issuer=provider.issuer,
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
    )
    yield provider
    provider.close()


def sign_on(client: Client, provider: OpenIDProvider, email: str, name: str = "Nina Novák", sub: str = "") -> int:
    """The browser's way: from our sign-in page to the provider and back. The status of the page it ends on."""
    provider.claims = {"sub": sub or email, "email": email, "name": name, "email_verified": True}
    away = client.get(reverse("openid_connect_login", args=["acme"]))
    assert away["Location"].startswith(f"{provider.issuer}/authorize?")
    back = httpx.get(away["Location"]).headers["location"]
    return client.get(back.removeprefix("http://testserver"), follow=True).status_code


def roles(email: str) -> dict[str, str]:
    rows = Membership.objects.filter(user__email=email, revoked_at=None)
    return dict(rows.values_list("organisation__slug", "role"))


def signed_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


def test_the_address_leads_to_the_provider_and_no_page_lists_customers(
    client: Client, db: None, acme: OpenIDProvider
) -> None:
    start = reverse("portal:sign_on")
    page = client.get(reverse("account_login")).content.decode()
    assert start in page
    assert "Acme" not in page + client.get(start).content.decode()
    led = client.post(start, {"email": "nina@ACME.example", "next": "/settings/"})
    assert led["Location"] == reverse("openid_connect_login", args=["acme"]) + "?next=%2Fsettings%2F"
    away = client.post(start, {"email": "nina@acme.example", "next": "https://evil.example/"})
    assert away["Location"] == reverse("openid_connect_login", args=["acme"])
    assert "No sign-on is set up" in client.post(start, {"email": "x@else.example"}).content.decode()


def test_a_person_with_an_account_keeps_it_and_its_password(client: Client, world: World, acme: OpenIDProvider) -> None:
    assert sign_on(client, acme, "Olivia@example.com", sub="17") == 200
    assert client.session["_auth_user_id"] == str(world.owner.pk)
    client.logout()
    assert client.login(email=world.owner.email, password=PASSWORD)
    client.logout()
    # From now on the provider's own identifier counts.
    sign_on(client, acme, "olivia@example.com", sub="17")
    assert signed_in(client)
    assert SocialAccount.objects.get().user == world.owner


def test_a_stranger_is_told_what_to_do(client: Client, world: World, acme: OpenIDProvider) -> None:
    acme.claims = {}
    assert sign_on(client, acme, "nina@acme.example") == 403
    assert not User.objects.filter(email="nina@acme.example").exists()
    away = client.get(reverse("openid_connect_login", args=["acme"]), headers={"accept-language": "es"})
    back = httpx.get(away["Location"]).headers["location"].removeprefix("http://testserver")
    assert "nadie ha invitado esa dirección" in client.get(back, headers={"accept-language": "es"}).content.decode()
    assert not signed_in(client)


def test_an_invited_person_gets_an_account_and_the_role(client: Client, world: World, acme: OpenIDProvider) -> None:
    invitation_create(organisation=world.organisation, email="nina@acme.example", role=Role.ADMIN, actor=world.owner)
    assert sign_on(client, acme, "Nina@acme.example") == 200
    assert roles("nina@acme.example") == {"acme": "admin"}
    user = User.objects.get(email="nina@acme.example")
    assert (user.name, user.has_usable_password()) == ("Nina Novák", False)
    client.logout()
    sign_on(client, acme, "nina@acme.example")
    assert client.session["_auth_user_id"] == str(user.pk)


def test_people_of_a_claimed_domain_need_no_invitation(client: Client, world: World, acme, settings) -> None:
    configure(
        settings,
        kind="oidc",
        id="acme",
        name="Acme",
        domains=["acme.example"],
        issuer=acme.issuer,
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        organisation="acme",
    )
    assert sign_on(client, acme, "nina@acme.example") == 200
    assert roles("nina@acme.example") == {"acme": "viewer"}


def test_a_provider_speaks_for_its_own_domains_only(client: Client, world: World, acme: OpenIDProvider) -> None:
    """Acme's provider claims, as verified, the address of an account manager."""
    assert sign_on(client, acme, world.account_manager.email) == 403
    assert not signed_in(client)
    # Not by its identifier either, once the address changes.
    sign_on(client, acme, world.owner.email, sub="17")
    client.logout()
    assert sign_on(client, acme, world.account_manager.email, sub="17") == 403
    assert not signed_in(client)


def test_a_wrong_secret_ends_on_a_page(client: Client, world: World, acme: OpenIDProvider, settings) -> None:
    app = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]
    app["secret"] = "guessed"
    assert sign_on(client, acme, world.owner.email) == 401
    assert not signed_in(client)


@pytest.fixture
def globex(settings) -> SAMLProvider:
    provider = SAMLProvider()
    configure(
        settings,
        kind="saml",
        id="globex",
        name="Globex",
        domains=["example.com"],
        entity_id=provider.entity_id,
        sso_url="https://idp.globex.example/sso",
        certificate=provider.certificate,
    )
    return provider


def saml_sign_on(client: Client, provider: SAMLProvider, email: str, forged: SAMLProvider | None = None) -> int:
    away = client.get(reverse("saml_login", args=["globex"]), headers={"host": HOST})
    assert away["Location"].startswith("https://idp.globex.example/sso?SAMLRequest=")
    fields = {"SAMLResponse": (forged or provider).answer(away["Location"], email)}
    posted = client.post(reverse("saml_acs", args=["globex"]), fields, headers={"host": HOST})
    return client.get(posted["Location"], follow=True, headers={"host": HOST}).status_code


def test_saml_signs_in_whoever_has_an_account(client: Client, world: World, globex: SAMLProvider) -> None:
    assert saml_sign_on(client, globex, world.owner.email) == 200
    assert client.session["_auth_user_id"] == str(world.owner.pk)


def test_saml_refuses_a_forged_signature_and_foreign_addresses(
    client: Client, world: World, globex: SAMLProvider
) -> None:
    assert saml_sign_on(client, globex, world.owner.email, forged=SAMLProvider(key_number=2)) == 401
    assert not signed_in(client)
    assert saml_sign_on(client, globex, world.account_manager.email) == 403
    assert not signed_in(client)


def test_saml_metadata_for_the_other_side(client: Client, db: None, globex: SAMLProvider) -> None:
    answer = client.get(reverse("saml_metadata", args=["globex"]), headers={"host": HOST})
    assert answer.status_code == 200
    assert f"http://{HOST}/accounts/sso/saml/globex/acs/" in answer.content.decode()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "ldap"}, "kind is oidc or saml"),
        ({"issuer": ""}, "acme lacks issuer"),
        ({"domains": []}, "acme lacks domains"),
        ({"role": "owner"}, "role is"),
        ({"colour": "red"}, "colour"),
        ({"kind": "saml", "entity_id": "x"}, "metadata_url, or sso_url and certificate"),
    ],
)
def test_the_setting_says_what_is_wrong(changes: dict[str, object], message: str) -> None:
    good = {
        "kind": "oidc",
        "id": "acme",
        "name": "A",
        "domains": ["a.example"],
        "issuer": "https://i",
        "client_id": "c",
    }
    assert len(sso_read(json.dumps([good]))) == 1
    with pytest.raises(ImproperlyConfigured, match=message):
        sso_read(json.dumps([good | changes]))

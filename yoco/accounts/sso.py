"""Single sign-on by settings: which identity providers there are, and whom each may speak for. No Django model here."""

from typing import Any

import msgspec
from django.core.exceptions import ImproperlyConfigured


class SSOProvider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One identity provider, as `SSO_PROVIDERS` names it.

    `domains` are the e-mail domains it may speak for: an address outside of them is refused, so that one customer's
    provider cannot sign in another customer's people. With `organisation` (a slug) that organisation has claimed the
    domains: its people need no invitation and begin with `role`.
    """

    kind: str
    id: str
    name: str
    domains: list[str]
    # OpenID Connect
    issuer: str = ""
    client_id: str = ""
    client_secret: str = ""
    # SAML
    entity_id: str = ""
    sso_url: str = ""
    certificate: str = ""
    metadata_url: str = ""
    organisation: str = ""
    role: str = "viewer"


def sso_read(text: str) -> list[SSOProvider]:
    """The providers of `SSO_PROVIDERS`, a JSON list. Raises ImproperlyConfigured with the member that is wrong."""
    if not text.strip():
        return []
    try:
        providers = msgspec.json.decode(text, type=list[SSOProvider])
    except msgspec.DecodeError as error:
        raise ImproperlyConfigured(f"SSO_PROVIDERS: {error}") from error
    for provider in providers:
        needed = {"oidc": ("issuer", "client_id"), "saml": ("entity_id",)}.get(provider.kind)
        if needed is None:
            raise ImproperlyConfigured(f"SSO_PROVIDERS: {provider.id}: kind is oidc or saml, not {provider.kind!r}")
        missing = [name for name in ("id", "name", "domains", *needed) if not getattr(provider, name)]
        if provider.kind == "saml" and not (provider.metadata_url or (provider.sso_url and provider.certificate)):
            missing.append("metadata_url, or sso_url and certificate")
        if missing:
            raise ImproperlyConfigured(f"SSO_PROVIDERS: {provider.id or '?'} lacks {', '.join(missing)}")
        if provider.role not in ("admin", "member", "viewer"):
            raise ImproperlyConfigured(f"SSO_PROVIDERS: {provider.id}: role is admin, member or viewer")
    domains = [domain.lower() for provider in providers for domain in provider.domains]
    if len(set(domains)) < len(domains):
        raise ImproperlyConfigured("SSO_PROVIDERS: two providers name one domain")
    if len({provider.id for provider in providers}) < len(providers):
        raise ImproperlyConfigured("SSO_PROVIDERS: two providers have one id")
    return providers


def sso_for_allauth(providers: list[SSOProvider]) -> dict[str, Any]:
    """The same as allauth's SOCIALACCOUNT_PROVIDERS."""
    found: dict[str, Any] = {}
    for provider in providers:
        app: dict[str, Any] = {"name": provider.name, "provider_id": provider.id}
        # An address of its domains is taken as verified; `SingleSignOnAdapter` refuses every other.
        settings: dict[str, Any] = {"verified_email": provider.domains, "email_authentication": True}
        if provider.kind == "oidc":
            app |= {"client_id": provider.client_id, "secret": provider.client_secret}
            settings |= {"server_url": provider.issuer, "oauth_pkce_enabled": True}
            found.setdefault("openid_connect", {"APPS": []})["APPS"].append({**app, "settings": settings})
        else:
            idp = {"entity_id": provider.entity_id}
            if provider.metadata_url:
                idp["metadata_url"] = provider.metadata_url
            else:
                idp |= {"sso_url": provider.sso_url, "x509cert": provider.certificate}
            advanced = {"want_assertion_signed": True, "reject_idp_initiated_sso": True, "strict": True}
            settings |= {"idp": idp, "advanced": advanced, "use_nameid_for_email": True}
            found.setdefault("saml", {"APPS": []})["APPS"].append(
                {**app, "client_id": provider.id, "settings": settings}
            )
    return found


def provider_of(email: str, providers: list[SSOProvider]) -> SSOProvider | None:
    """The provider that may speak for this address."""
    domain = domain_of(email)
    return next((each for each in providers if domain in {name.lower() for name in each.domains}), None)


def domain_of(email: str) -> str:
    """What stands after the @, lower case."""
    return email.rpartition("@")[2].lower()

"""Whom an identity provider may sign in: people of its own domains who have an account, an invitation, or whose
organisation has claimed the domain. Everyone else gets a page that says what to do."""

from typing import Any

from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from django.conf import settings
from django.db import transaction
from django.forms import Form
from django.http import HttpRequest
from django.shortcuts import render
from django.utils.translation import get_language

from yoco.accounts.invitations import invitation_take, invitations_open
from yoco.accounts.models import Organisation, Role, User
from yoco.accounts.services import member_add
from yoco.accounts.sso import SSOProvider, domain_of


class SingleSignOnAdapter(DefaultSocialAccountAdapter):
    """An address counts only within the domains that the settings give to the provider."""

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        if not _own_address(sociallogin):
            _refuse(request, sociallogin, "outside")

    def authenticate_by_email(self, sociallogin: SocialLogin) -> tuple[User, str] | None:
        email = _own_address(sociallogin)
        user = User.objects.filter(email=email).first() if email else None
        return None if user is None else (user, email)

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        email = _own_address(sociallogin)
        if not invitations_open(email=email).exists() and not _provider(sociallogin).organisation:
            _refuse(request, sociallogin, "stranger")
        return True

    def populate_user(self, request: HttpRequest, sociallogin: SocialLogin, data: dict[str, Any]) -> User:
        user: User = super().populate_user(request, sociallogin, data)
        user.email = user.email.lower()
        both = f"{data.get('first_name') or ''} {data.get('last_name') or ''}"
        user.name = (data.get("name") or both).strip()[:120]
        user.language = get_language() or ""
        return user

    @transaction.atomic
    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Form | None = None) -> User:
        """The person with the memberships that the invitations name, else with the one that the domain claims."""
        user: User = super().save_user(request, sociallogin, form)
        invitations = list(invitations_open(email=user.email))
        for invitation in invitations:
            invitation_take(invitation=invitation, user=user)
        provider = _provider(sociallogin)
        if not invitations and provider.organisation:
            organisation = Organisation.objects.get(slug=provider.organisation)
            member_add(organisation=organisation, user=user, role=Role(provider.role), actor=user)
        return user


def _provider(sociallogin: SocialLogin) -> SSOProvider:
    return next(each for each in settings.SSO_PROVIDERS if each.id == sociallogin.account.provider)


def _own_address(sociallogin: SocialLogin) -> str:
    """The person's address within the provider's domains, lower case; empty if there is none."""
    domains = {domain.lower() for domain in _provider(sociallogin).domains}
    addresses = [address.email.lower() for address in sociallogin.email_addresses]
    return next((address for address in addresses if domain_of(address) in domains), "")


def _refuse(request: HttpRequest, sociallogin: SocialLogin, reason: str) -> None:
    emails = [address.email for address in sociallogin.email_addresses]
    context = {"reason": reason, "email": emails[0] if emails else "", "provider": _provider(sociallogin).name}
    raise ImmediateHttpResponse(render(request, "account/sso_refused.html", context, status=403))

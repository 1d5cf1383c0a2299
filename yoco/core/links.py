"""Addresses that people get by e-mail or hand on, and the secrets in some of them."""

import hashlib
import secrets

from django.conf import settings
from django.urls import reverse


def absolute(name: str, *arguments: object) -> str:
    """The full address of a page of the service."""
    site: str = settings.SITE_URL
    return site.rstrip("/") + reverse(name, args=arguments)


def link_token() -> tuple[str, str]:
    """A token that nobody guesses, and its digest, which alone is stored."""
    token = secrets.token_urlsafe(32)
    return token, token_digest(token)


def token_digest(token: str) -> str:
    """What a token is found by."""
    return hashlib.sha256(token.encode()).hexdigest()

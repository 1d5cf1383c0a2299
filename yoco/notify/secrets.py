"""Signing secrets of endpoints: derived from a pepper of the settings and a random seed, so the database holds none."""

import base64
import datetime
import hashlib
import hmac

from django.conf import settings
from standardwebhooks import Webhook

from yoco.notify.models import Endpoint


class SecretLost(Exception):
    """The pepper that an endpoint's secret was derived with is not in the settings any more."""


def secret_text(endpoint: Endpoint) -> str:
    """The secret as its owner puts it into the receiver: `whsec_` and 32 bytes in base64. Raises SecretLost."""
    return _derive(endpoint, endpoint.seed, endpoint.pepper)


def signatures(endpoint: Endpoint, *, message_id: str, at: datetime.datetime, body: str) -> str:
    """The `webhook-signature` header: one signature, or two while the former secret is still accepted."""
    secrets = [secret_text(endpoint)]
    if endpoint.old_until is not None and endpoint.old_pepper is not None and endpoint.old_until > at:
        secrets.append(_derive(endpoint, endpoint.old_seed, endpoint.old_pepper))
    return " ".join(Webhook(secret).sign(message_id, at, body) for secret in secrets)


def _derive(endpoint: Endpoint, seed: str, pepper: int) -> str:
    key = settings.KEY_PEPPERS.get(pepper)
    if key is None:
        raise SecretLost(f"KEY_PEPPERS has no number {pepper} any more; rotate the secret of this endpoint.")
    digest = hmac.new(key.encode(), f"webhook:{endpoint.pk}:{seed}".encode(), hashlib.sha256).digest()
    return "whsec_" + base64.b64encode(digest).decode()

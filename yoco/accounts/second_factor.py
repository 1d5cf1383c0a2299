"""How second factors are kept: TOTP secrets and recovery codes encrypted under SECRET_KEY."""

import base64

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from cryptography.fernet import Fernet, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.utils.encoding import force_bytes
from django.utils.translation import gettext as _

from yoco.accounts.models import User


def _box(secret: str) -> Fernet:
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"yoco second factors").derive(force_bytes(secret))
    return Fernet(base64.urlsafe_b64encode(derived))


class SecondFactorAdapter(DefaultMFAAdapter):
    """Encrypts at rest, so that a copy of the database alone does not sign anybody in."""

    def encrypt(self, text: str) -> str:
        return self._boxes().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        return self._boxes().decrypt(encrypted_text.encode()).decode()

    def _boxes(self) -> MultiFernet:
        return MultiFernet([_box(secret) for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)])

    def generate_authenticator_name(self, user: User, type: Authenticator.Type) -> str:
        count = Authenticator.objects.filter(user=user, type=type).count()
        return _("Passkey %(number)d") % {"number": count + 1}

    def get_public_key_credential_rp_entity(self) -> dict[str, str]:
        return {**super().get_public_key_credential_rp_entity(), "name": "YOCO"}

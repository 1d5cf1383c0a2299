"""Bearer keys for machines. A wrong secret answers exactly like an unknown key."""

from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from structlog.contextvars import bind_contextvars

from yoco.accounts.models import AgentKey
from yoco.accounts.services import agent_key_verify


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer yoco_<kind>_<lookup>_<secret><checksum>`; `request.user` is then the AgentKey."""

    def authenticate(self, request: Request) -> tuple[AgentKey, AgentKey] | None:
        header = get_authorization_header(request).split()
        if not header or header[0].lower() != b"bearer":
            return None
        key = agent_key_verify(header[1].decode("latin-1")) if len(header) == 2 else None
        if key is None:
            raise AuthenticationFailed(
                "This key is unknown, expired or revoked. "
                "Create one under Settings, Keys, or with `manage.py agent_key_create`."
            )
        bind_contextvars(key=key.lookup, organisation_id=str(key.organisation_id))
        return key, key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"

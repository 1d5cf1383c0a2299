from allauth.usersessions.apps import UserSessionsConfig
from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "yoco.accounts"
    default = True


class SessionsConfig(UserSessionsConfig):
    """allauth's table of sessions, written by `SessionNotesMiddleware`: allauth's own would write at every request."""

    def ready(self) -> None:
        """No signal is connected."""

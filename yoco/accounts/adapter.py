"""How allauth behaves here: no open sign-up."""

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest


class ClosedSignupAdapter(DefaultAccountAdapter):
    """Accounts are made by invitation or by the operator."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

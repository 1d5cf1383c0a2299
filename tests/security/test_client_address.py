"""Whose address counts behind proxies: the n-th from the right, which the client cannot write."""

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings

from yoco.core.middleware import ClientAddressMiddleware

PROXY = "10.0.0.9"


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, None, PROXY),
        (0, "198.51.100.1", PROXY),  # nobody is trusted: the header is the client's own word
        (1, "198.51.100.1", "198.51.100.1"),
        (1, "1.2.3.4, 5.6.7.8, 198.51.100.1", "198.51.100.1"),  # what the client claims stands further left
        (2, "1.2.3.4, 198.51.100.1, 10.0.0.1", "198.51.100.1"),
        (2, "198.51.100.1", PROXY),  # came past one of the proxies
        (1, "", PROXY),
        (1, "unknown", PROXY),
        (1, "198.51.100.1:4711", "198.51.100.1"),
        (1, "[2001:DB8::1]:4711", "2001:db8::1"),
        (1, "2001:db8:0:0::1", "2001:db8::1"),
        (1, "198.51.100.1<script>", PROXY),
    ],
)
def test_the_address_is_the_one_that_the_nth_proxy_saw(proxies: int, forwarded: str | None, address: str) -> None:
    seen: list[Any] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append((request.META["REMOTE_ADDR"], request.META.get("HTTP_X_FORWARDED_FOR")))
        return HttpResponse()

    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    with override_settings(TRUSTED_PROXIES=proxies):
        ClientAddressMiddleware(view)(RequestFactory().get("/", REMOTE_ADDR=PROXY, headers=headers))
    assert seen == [(address, None)]


@pytest.mark.django_db
@pytest.mark.parametrize("proxies", [0, 1])
def test_failed_sign_ins_are_counted_by_that_address(proxies: int) -> None:
    """A client that claims another address each time is stopped all the same."""
    answers = []
    with override_settings(TRUSTED_PROXIES=proxies, ACCOUNT_RATE_LIMITS={"login_failed": "3/m/ip"}):
        for number in range(5):
            claimed = f"192.0.2.{number}, 198.51.100.77"
            answer = Client(REMOTE_ADDR=f"198.51.100.{78 if proxies else 79}").post(
                "/accounts/login/",
                {"login": f"somebody{number}@example.com", "password": "wrong wrong wrong"},
                headers={"X-Forwarded-For": claimed},
            )
            answers.append(b"Too many failed login attempts" in answer.content)
    assert answers == [False, False, False, True, True]

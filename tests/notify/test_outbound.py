"""Where a webhook may not reach: into the operator's network, whatever the name says and however it is written."""

import ipaddress
import socket
from typing import Any

import pytest
from pytest_django import Settings

from tests.notify.receiver import Receiver
from yoco.notify.outbound import Refused, address_check, post, url_check

INSIDE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "192.0.0.192", "198.18.0.1", "240.0.0.1", "168.63.129.16", "::1", "::", "fe80::1",
    "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
    "2002:a9fe:a9fe::",
    "::127.0.0.1", "2001:db8::1", "fec0::1",
]  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_is_refused(address: str) -> None:
    with pytest.raises(Refused):
        address_check(ipaddress.ip_address(address))
    with pytest.raises(Refused):
        url_check(f"https://[{address}]/" if ":" in address else f"https://{address}/")


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_public_address_is_allowed(address: str) -> None:
    address_check(ipaddress.ip_address(address))


def test_the_operator_may_allow_a_network(settings: Settings) -> None:
    settings.WEBHOOK_ALLOWED_NETWORKS = ["10.20.0.0/16", "fd12::/64"]
    address_check(ipaddress.ip_address("10.20.3.4"))
    address_check(ipaddress.ip_address("::ffff:10.20.3.4"))
    address_check(ipaddress.ip_address("fd12::7"))
    with pytest.raises(Refused):
        address_check(ipaddress.ip_address("10.21.3.4"))


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "https://",
        "https://me:secret@example.com/",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:99999/",
        "javascript:alert(1)",
        "//example.com/",
    ],
)
def test_an_address_that_is_never_called(url: str) -> None:
    with pytest.raises(Refused):
        url_check(url)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "[::ffff:7f00:1]"])
def test_other_spellings_of_this_machine_are_refused_when_called(
    receiver: Receiver, settings: Settings, host: str
) -> None:
    settings.WEBHOOK_ALLOWED_NETWORKS = []
    with pytest.raises(Refused):
        post(f"http://{host}:{receiver.port}/", headers={}, body=b"{}", timeout=2)
    assert receiver.requests == []


def test_a_name_is_resolved_once_and_the_judged_address_is_called(
    receiver: Receiver, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name server that answers with an allowed address first, and with another one ever after.
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])
    asked: list[str] = []

    def resolve(host: str, port: int, *args: Any, **more: Any) -> list[Any]:
        if host != "hook.example":
            return real(host, port, *args, **more)
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(answers)]

    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    settings.WEBHOOK_ALLOWED_NETWORKS = ["127.0.0.1/32"]
    url = f"http://hook.example:{receiver.port}/"
    assert post(url, headers={}, body=b"{}", timeout=2).status == 204
    assert asked == ["hook.example"]
    assert receiver.requests[0][0]["Host"] == f"hook.example:{receiver.port}"
    with pytest.raises(Refused, match=r"127\.0\.0\.2"):
        post(url, headers={}, body=b"{}", timeout=2)


def test_one_bad_address_among_good_ones_spoils_the_name(
    settings: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WEBHOOK_ALLOWED_NETWORKS = ["127.0.0.1/32"]
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, receiver.port)) for ip in ("127.0.0.1", "169.254.169.254")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: found)
    with pytest.raises(Refused, match="169"):
        post(f"http://hook.example:{receiver.port}/", headers={}, body=b"{}", timeout=2)
    assert receiver.requests == []

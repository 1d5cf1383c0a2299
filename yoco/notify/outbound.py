"""One POST to an address that a customer chose, so that it cannot reach into the operator's own network.

The host is resolved once, every address is judged, and the connection goes to the judged address: a name that
resolves differently a moment later changes nothing. No redirect is followed, no proxy asked, the answer is cut off,
and one deadline holds for everything together.
"""

import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import certifi
import httpcore
from django.conf import settings
from django.utils.translation import gettext as _

EXCERPT_BYTES = 1000
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# Not marked as private, yet not the public internet: Azure's host, which answers every virtual machine; protocol
# assignments, among them Oracle's metadata.
INSIDE = [ipaddress.ip_network(network) for network in ("168.63.129.16/32", "192.0.0.0/24")]
PUBLIC_V6 = ipaddress.ip_network("2000::/3")
NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Refused(Exception):
    """The address must not be called. The message is a sentence for the endpoint's owner."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    excerpt: str


def url_check(url: str) -> None:
    """Raises Refused for a URL that is never called, whatever its host resolves to."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Refused(_("This is not a valid address.")) from None
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        raise Refused(_("The address begins with https:// and names a host."))
    if parts.scheme == "http" and not settings.WEBHOOK_ALLOW_HTTP:
        raise Refused(_("Only https:// is allowed, so that nobody on the way reads along."))
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise Refused(_("The address must not hold a password or a “#”."))
    try:
        address = ipaddress.ip_address(parts.hostname)
    except ValueError:
        return
    address_check(address)


def address_check(address: Address) -> None:
    """Raises Refused unless the address is public, or of a network in WEBHOOK_ALLOWED_NETWORKS."""
    inner = _inside(address)
    if any(inner in network for network in _allowed(tuple(settings.WEBHOOK_ALLOWED_NETWORKS))):
        return
    public = inner.is_global and not inner.is_multicast and not inner.is_reserved
    if inner.version == 6:
        public = public and inner in PUBLIC_V6
    if not public or any(inner in network for network in INSIDE):
        raise Refused(_("The address %(address)s is not on the public internet.") % {"address": address})


def _inside(address: Address) -> Address:
    """The IPv4 address that an IPv6 one carries, for every way there is of carrying one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None) or address


@cache
def _allowed(networks: tuple[str, ...]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(network) for network in networks]


def post(url: str, *, headers: dict[str, str], body: bytes, timeout: float) -> Answer:
    """Sends and returns the answer, whatever its status. Raises Refused, or httpcore's and OSError's exceptions."""
    url_check(url)
    backend = JudgedBackend(deadline=time.monotonic() + timeout)
    with (
        httpcore.ConnectionPool(ssl_context=_tls(), network_backend=backend, http2=False, retries=0) as pool,
        pool.stream(
            "POST", url, headers=list(headers.items()), content=body, extensions={"timeout": _timeouts(timeout)}
        ) as answer,
    ):
        return Answer(answer.status, _excerpt(answer.iter_stream()))


def _excerpt(parts: Iterable[bytes]) -> str:
    """How the body begins. What does not come, or is no text, is left out: the status has already told the outcome."""
    found = b""
    try:
        for part in parts:
            found += part
            if len(found) >= EXCERPT_BYTES:
                break
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
        pass
    return found[:EXCERPT_BYTES].decode(errors="replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")


def _timeouts(seconds: float) -> dict[str, float]:
    return dict.fromkeys(("connect", "read", "write", "pool"), seconds)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certifi.where())


class JudgedBackend(httpcore.SyncBackend):
    """Connects to a judged address only, and to nothing once the deadline has passed."""

    def __init__(self, *, deadline: float) -> None:
        self.deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error}") from error
        addresses = list(dict.fromkeys(str(sockaddr[0]) for *_rest, sockaddr in found))
        for address in addresses:  # one that is not allowed spoils them all
            address_check(ipaddress.ip_address(address.partition("%")[0]))
        for address in addresses[:-1]:
            try:
                return self._connect(address, port)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return self._connect(addresses[-1], port)

    def _connect(self, address: str, port: int) -> httpcore.NetworkStream:
        stream = super().connect_tcp(address, port, timeout=seconds_left(self.deadline))
        return DeadlineStream(stream, self.deadline)

    def connect_unix_socket(self, *_args: Any, **_more: Any) -> httpcore.NetworkStream:
        raise Refused("Sockets of this machine are not called.")


class DeadlineStream(httpcore.NetworkStream):
    """A connection on which no step lasts beyond the deadline, so that a byte now and then holds up nobody."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self.stream = stream
        self.deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.stream.read(max_bytes, seconds_left(self.deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.stream.write(buffer, seconds_left(self.deadline))

    def close(self) -> None:
        self.stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        inner = self.stream.start_tls(ssl_context, server_hostname, seconds_left(self.deadline))
        return DeadlineStream(inner, self.deadline)

    def get_extra_info(self, info: str) -> Any:
        return self.stream.get_extra_info(info)


def seconds_left(deadline: float) -> float:
    """Raises httpcore.ReadTimeout once the deadline has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("The whole attempt took too long.")
    return left

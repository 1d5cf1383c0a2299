"""Where this host's processes listen, and under which address others find it."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from agent.wire import Address

Ports = tuple[int, int]
"""Lowest and highest port that may be used; (0, 0): any that is free."""
ANY_PORT: Ports = (0, 0)
_WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 (compared with, not bound)
_SIOCGIFADDR = 0x8915


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of a host, under which nobody can be found."""
    return host in _WILDCARDS


def parse_ports(text: str) -> Ports:
    """`7100-7199`. Raises ValueError with a sentence for the user."""
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit() and 0 < int(low) <= int(high) < 65536):
        raise ValueError(f"{text!r} is no range of ports; write LOW-HIGH, e.g. 7100-7199")
    return int(low), int(high)


def listen(host: str, ports: Ports = ANY_PORT) -> socket.socket:
    """A listening socket on this address only. Raises OSError that says what is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(ports[0], ports[1] + 1):
        try:
            return socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            failure = error
    if ports[0] == ports[1]:
        raise failure
    raise OSError(f"no port of {ports[0]}-{ports[1]} is free on {host}: {failure.strerror}")


def address_towards(peer: Address) -> str:
    """This host's address on the way to `peer`. Raises OSError where there is no way."""
    family, kind, protocol, _, target = socket.getaddrinfo(*peer, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # sends nothing: it only chooses a route
        return str(probe.getsockname()[0])


def interface_of(host: str) -> str | None:
    """The network interface that has this address, for gloo, which cannot be told an address. None if unknown."""
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return None
    if ":" in str(address):
        packed = socket.inet_pton(socket.AF_INET6, str(address).partition("%")[0]).hex()
        table = Path("/proc/net/if_inet6")
        lines = table.read_text().splitlines() if table.exists() else []
        return next((line.split()[5] for line in lines if line.startswith(packed)), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(found) == address or (name == "lo" and str(address).startswith("127.")):
                return name
    return None

"""Authenticated sockets and JSON messages between coordinator, node agents and workers.

Every connection begins with a mutual proof of the job's secret (HMAC-SHA256 over two fresh nonces), so
nothing a stranger sends is ever interpreted. After it, a message is a 4-byte big-endian length and a JSON
object; nothing is unpickled. Below it there may be TLS (`agent.tls`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import ssl
import struct
import threading
import weakref
from typing import Any

from agent import tls

Message = dict[str, Any]
Address = tuple[str, int]
Connection = socket.socket | tls.TlsSocket

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
HANDSHAKE_SECONDS = 5.0
_NONCE = 32
_PROOF = 32
_LENGTH = struct.Struct(">I")
_KEEPALIVE = (
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 10),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 5),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 4),
    ((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), 30_000),
)

own_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""The agent's own connections in this process, so that aborting a group never cuts one of them."""


class PeerRefused(ConnectionError):
    """The other side does not know the job's secret, or speaks something else."""


def parse_address(text: str) -> Address:
    """`host:port` as a pair. Raises ValueError with a sentence for the user."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address; write host:port, e.g. 10.0.0.1:7000")
    return host.strip("[]"), int(port)


def format_address(address: Address) -> str:
    """The inverse of `parse_address`."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _proof(secret: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, side + first + second, hashlib.sha256)


def _encode(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"message {message.get('type')!r} of {len(body)} bytes is too long")
    return _LENGTH.pack(len(body)) + body


def _decode(body: bytes) -> Message:
    message = json.loads(body)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise PeerRefused("the peer sent something that is not a message")
    return message


def receive_exactly(sock: Connection, size: int) -> bytes:
    """`size` bytes. Raises ConnectionError where the peer closed before."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = sock.recv_into(view)
        if count == 0:
            raise ConnectionError("the peer closed the connection")
        view = view[count:]
    return bytes(buffer)


def dial(address: Address, secret: bytes, timeout: float = HANDSHAKE_SECONDS) -> Connection:
    """A connected and mutually authenticated socket without time-out; the caller sets its own.

    Raises PeerRefused if the server cannot prove the secret, OSError if it cannot be reached.
    """
    raw = socket.create_connection(address, timeout=timeout)
    sock: Connection = raw
    try:
        sock = _prepare(raw, server=False)
        mine = secrets.token_bytes(_NONCE)
        sock.sendall(mine)
        answer = receive_exactly(sock, _NONCE + _PROOF)
        theirs, proof = answer[:_NONCE], answer[_NONCE:]
        if not hmac.compare_digest(proof, _proof(secret, b"server", mine, theirs)):
            raise PeerRefused(f"{format_address(address)} does not know this job's secret")
        sock.sendall(_proof(secret, b"client", theirs, mine))
        sock.settimeout(None)
    except ssl.SSLEOFError:
        sock.close()
        raise  # it went away
    except ssl.SSLError as error:
        sock.close()
        raise PeerRefused(f"no TLS with {format_address(address)}: {error.reason or error}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def admit(raw: socket.socket, secret: bytes, timeout: float = HANDSHAKE_SECONDS) -> Connection:
    """The server's side of `dial`, on an accepted socket, which it takes over. Raises PeerRefused or OSError."""
    sock: Connection = raw
    try:
        raw.settimeout(timeout)
        sock = _prepare(raw, server=True)
        theirs = receive_exactly(sock, _NONCE)
        mine = secrets.token_bytes(_NONCE)
        sock.sendall(mine + _proof(secret, b"server", theirs, mine))
        if not hmac.compare_digest(receive_exactly(sock, _PROOF), _proof(secret, b"client", mine, theirs)):
            raise PeerRefused("a peer does not know this job's secret")
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def _prepare(raw: socket.socket, *, server: bool) -> Connection:
    """Options of every connection, and TLS where it is on."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A host that vanished answers no probe: the kernel ends the connection after half a minute.
    for option, value in _KEEPALIVE:
        raw.setsockopt(*option, value)
    sock = tls.wrap(raw, server=server)
    own_sockets.add(sock.raw if isinstance(sock, tls.TlsSocket) else sock)
    return sock


async def admit_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> None:
    """`admit` for an asyncio connection."""
    async with asyncio.timeout(HANDSHAKE_SECONDS):
        theirs = await reader.readexactly(_NONCE)
        mine = secrets.token_bytes(_NONCE)
        writer.write(mine + _proof(secret, b"server", theirs, mine))
        await writer.drain()
        proof = await reader.readexactly(_PROOF)
    if not hmac.compare_digest(proof, _proof(secret, b"client", mine, theirs)):
        raise PeerRefused("a peer does not know this job's secret")


class Link:
    """One end of a message connection; any thread may send, one thread receives."""

    def __init__(self, sock: Connection) -> None:
        self.sock = sock
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Raises OSError where the connection is gone, or was closed because half a message could not be sent."""
        data = _encode(message)
        try:
            with self._sending:
                self.sock.sendall(data)
        except OSError:
            self.close()
            raise

    def receive(self) -> Message:
        """The next message. Raises ConnectionError at the end of the stream."""
        (size,) = _LENGTH.unpack(receive_exactly(self.sock, _LENGTH.size))
        if size > MAX_MESSAGE_BYTES:
            raise PeerRefused(f"the peer announced a message of {size} bytes")
        return _decode(receive_exactly(self.sock, size))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # already gone
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


async def receive_message(reader: asyncio.StreamReader) -> Message:
    """The next message of an asyncio connection; raises IncompleteReadError at its end."""
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if size > MAX_MESSAGE_BYTES:
        raise PeerRefused(f"the peer announced a message of {size} bytes")
    return _decode(await reader.readexactly(size))


def write_message(writer: asyncio.StreamWriter, message: Message) -> None:
    """Queue a message; a dead peer is noticed by its reader."""
    if not writer.is_closing():
        writer.write(_encode(message))

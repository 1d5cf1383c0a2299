"""The text of agent keys: generation, checksum, and the HMAC that is stored. Pure functions."""

import hashlib
import hmac
import secrets
import string
import zlib
from dataclasses import dataclass

ALPHABET = string.digits + string.ascii_letters
LOOKUP_LENGTH = 12
SECRET_LENGTH = 32
CHECKSUM_LENGTH = 6


@dataclass(frozen=True, slots=True)
class KeyParts:
    scope: str
    lookup: str
    secret: str


def _checksum(text: str) -> str:
    value, digits = zlib.crc32(text.encode()), ""
    for _ in range(CHECKSUM_LENGTH):
        value, digit = divmod(value, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def key_generate(scope: str) -> KeyParts:
    """New random parts: 71 bits of lookup, 190 bits of secret."""
    return KeyParts(scope=scope, lookup=_random(LOOKUP_LENGTH), secret=_random(SECRET_LENGTH))


def key_text(parts: KeyParts) -> str:
    """The key as it is shown once; its checksum lets a secret scanner recognise it without a database."""
    body = f"yoco_{parts.scope}_{parts.lookup}_{parts.secret}"
    return body + _checksum(body)


def key_parse(text: str) -> KeyParts | None:
    """The parts of a well-formed key, or None for anything else."""
    pieces = text.split("_")
    if len(pieces) != 4 or pieces[0] != "yoco":
        return None
    _, scope, lookup, tail = pieces
    if len(lookup) != LOOKUP_LENGTH or len(tail) != SECRET_LENGTH + CHECKSUM_LENGTH or not tail.isascii():
        return None
    parts = KeyParts(scope=scope, lookup=lookup, secret=tail[:SECRET_LENGTH])
    return parts if hmac.compare_digest(key_text(parts).encode(), text.encode()) else None


def key_digest(secret: str, pepper: str) -> str:
    """HMAC-SHA-256 of the secret under a pepper, hexadecimal."""
    return hmac.new(pepper.encode(), secret.encode(), hashlib.sha256).hexdigest()

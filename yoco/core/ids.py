"""Identifiers: UUIDv7, which sort by creation time and so keep indexes dense."""

import uuid

import uuid_utils.compat


def uuid7() -> uuid.UUID:
    """A new UUIDv7 (RFC 9562)."""
    return uuid_utils.compat.uuid7()

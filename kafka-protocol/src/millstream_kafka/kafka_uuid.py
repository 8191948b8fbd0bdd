"""A UUID as Kafka writes it: its 16 bytes in URL-safe base64 without padding, 22 characters (Kafka's `Uuid`)."""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode


def uuid_text(value: uuid.UUID) -> str:
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def uuid_from(text: str) -> uuid.UUID:
    """ValueError for any other text."""
    return uuid.UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))

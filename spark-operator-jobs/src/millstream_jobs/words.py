"""Numbers in messages."""

from __future__ import annotations


def count_of(number: int, what: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"

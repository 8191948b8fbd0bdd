"""Numbers in messages."""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"

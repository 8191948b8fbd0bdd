"""Numbers in messages; pure."""

from __future__ import annotations


def count_of(number: int, what: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"

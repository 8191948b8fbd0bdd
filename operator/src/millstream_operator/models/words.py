"""Numbers in messages; pure."""

from __future__ import annotations


def count_of(number: int, what: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def size_of(number: int) -> str:
    """Bytes, in the largest unit of which there is at least one: ``512 B``, ``1.5 MiB``."""
    size, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"

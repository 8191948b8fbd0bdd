"""What an append has done."""

from __future__ import annotations

from typing import NamedTuple


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    log_append_time: int  # -1 unless message.timestamp.type=LogAppendTime
    log_start_offset: int
    duplicate: bool = False
    """An idempotent producer's retry: the log wrote nothing; the offsets are those of the first attempt."""

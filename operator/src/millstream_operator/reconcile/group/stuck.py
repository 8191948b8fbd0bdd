"""Whether a group is stuck: its lag grows and it commits nothing for a time; pure, the caller passes the time.

The operator remembers since when the group's positions are unchanged. The status keeps that only while the group is
stuck. So after a restart a stuck group stays stuck until it commits, and any other group is observed again for
the whole time: a restart raises no false alarm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime

from ...kafka.records import Partition
from ...models import Standstill


def digest_of(committed: Mapping[Partition, int], topic_ids: Mapping[str, str | None]) -> str:
    """A digest of positions; a position in another topic of the same name is another one."""
    found = sorted((*one, offset, topic_ids.get(one.topic)) for one, offset in committed.items())
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def standing(before: Standstill | None, positions: str, records: int, now: datetime) -> Standstill:
    """The time since which the group stands at these positions. ``records`` is its lag now."""
    if before is None or before.positions != positions or not records or now < before.since:
        return Standstill(since=now, positions=positions, records=records)
    return before


def is_stuck(standstill: Standstill, records: int, now: datetime, after_s: int) -> bool:
    """Whether the group has committed nothing for ``after_s`` seconds although its lag has grown meanwhile."""
    return records > standstill.records and (now - standstill.since).total_seconds() >= after_s

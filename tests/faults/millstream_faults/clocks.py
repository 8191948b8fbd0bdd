"""A broker's clock is wrong: it jumps while the broker runs, stays wrong if the broker restarts, and jumps back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

from .plan import Fault
from .roles import Roles

HOUR_NS = 3_600_000_000_000


@contextlib.contextmanager
def shifted(roles: Roles, fault: Fault, by_ns: int) -> Iterator[str]:
    """The clock of a leader, a follower or the controller."""
    find = random.Random(fault.target).choice((roles.leader, roles.follower, roles.controller))
    number = find(fault)
    broker = roles.lab.brokers[number]
    broker.shift_clock(by_ns)
    try:
        yield f"broker {number}"
    finally:
        broker.shift_clock(0)

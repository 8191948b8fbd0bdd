"""Slows down guessing of passwords, by principal and address. Pure: time is an argument, in seconds.

The first FREE failures of a user from an address cost nothing but the usual delay. From then on, attempts of that user
from that address take turns, at most one in an interval that doubles with each failure, up to a limit. A success ends
this, and so does a quarter of an hour without a failure. Others are not affected: a user elsewhere, or another user
behind the same address.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

FREE = 10
FIRST_S, LONGEST_S = 0.1, 2.0
"""The interval between attempts, at first and at most."""
MOST_WAIT_S = 10.0
"""An attempt that would wait longer fails at once, unverified."""
FORGET_S = 15 * 60.0
MOST_KNOWN = 10_000

LONGEST_NAME = 256
"""Longest name that is kept as it is: clients choose names, of up to half a megabyte, that nobody needs to have."""

Key = tuple[str, str]
"""Address and user, see `brake_key`."""


def brake_key(host: str, user: str) -> Key:
    """A key of bounded size."""
    if len(user) > LONGEST_NAME:
        user = hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
    return host, user


class Failures(NamedTuple):
    times: int
    last_at: float
    free_at: float
    """When the next attempt may be verified."""


class Brake:
    """The failures of one broker's clients."""

    def __init__(self) -> None:
        self._failures: dict[Key, Failures] = {}

    def wait_s(self, key: Key, now: float) -> float | None:
        """How long an attempt has to wait; None: it fails at once."""
        known = self._failures.get(key)
        if known is None or now - known.last_at > FORGET_S or known.times < FREE:
            return 0.0
        turn = max(now, known.free_at)
        if turn - now > MOST_WAIT_S:
            return None
        interval = min(LONGEST_S, FIRST_S * 2.0 ** min(known.times - FREE, 10))
        self._failures[key] = known._replace(free_at=turn + interval)
        return turn - now

    def failed(self, key: Key, now: float) -> None:
        known = self._failures.pop(key, None)
        if known is None or now - known.last_at > FORGET_S:
            known = Failures(0, now, now)
        self._failures[key] = known._replace(times=known.times + 1, last_at=now)
        if len(self._failures) > MOST_KNOWN:
            del self._failures[next(iter(self._failures))]

    def succeeded(self, key: Key) -> None:
        self._failures.pop(key, None)

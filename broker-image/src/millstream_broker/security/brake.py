"""Slows down guessing of passwords, by principal and address. Pure: time is an argument, in seconds.

The first FREE failures of a user from an address cost nothing but the usual delay. From then on, attempts of that user
from that address take turns, at most one in an interval that doubles with each failure, up to a limit. A success ends
this, and so does a quarter of an hour without a failure.

Whoever tries a few passwords of many users is slowed, too: after FREE_OF_ADDRESS failures from an address, whatever the
users, attempts from there take turns in a fixed interval. Users who have logged in from that address go on as before,
since many clients may share one, behind a load balancer. All IPv6 addresses of a network of 64 bits count as one.

A user is not slowed because of failures elsewhere: otherwise anybody could lock out anybody.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, TypeVar

from millstream_process.listening import network_of

FREE, FREE_OF_ADDRESS = 10, 100
FIRST_S, LONGEST_S = 0.1, 2.0
"""The interval between attempts of a user, at first and at most."""
OF_ADDRESS_S = 0.1
"""The interval between attempts from an address."""
MOST_WAIT_S = 10.0
"""An attempt that would wait longer fails at once, unverified."""
FORGET_S = 15 * 60.0
MOST_KNOWN = 10_000

LONGEST_NAME = 256
"""Characters of the longest name in memory; of a longer one, its hash. A client may send half a megabyte."""

K = TypeVar("K")
Key = tuple[str, str]
"""Address and user, see `brake_key`."""


def brake_key(host: str, user: str) -> Key:
    """A key of bounded size."""
    if len(user) > LONGEST_NAME:
        user = hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
    return network_of(host), user


class Failures(NamedTuple):
    times: int
    last_at: float
    free_at: float
    """When the next attempt may be verified."""

    @property
    def interval_s(self) -> float:
        """Between attempts of a user."""
        return min(LONGEST_S, FIRST_S * 2.0 ** min(self.times - FREE, 10))


class Brake:
    """The failures of one broker's clients."""

    def __init__(self) -> None:
        self._failures: dict[Key, Failures] = {}
        self._of_addresses: dict[str, Failures] = {}
        self._succeeded: dict[Key, None] = {}
        """Users that have logged in, and from where; the latest is the last."""

    def wait_s(self, key: Key, now: float) -> float | None:
        """How long an attempt has to wait; None: it fails at once."""
        user = _slowed(self._failures.get(key), FREE, now)
        address = None
        if key not in self._succeeded:
            address = _slowed(self._of_addresses.get(key[0]), FREE_OF_ADDRESS, now)
        slowed = [each for each in (user, address) if each is not None]
        if not slowed:
            return 0.0
        turn = max(now, *(each.free_at for each in slowed))
        if turn - now > MOST_WAIT_S:
            return None
        if user is not None:
            self._failures[key] = user._replace(free_at=turn + user.interval_s)
        if address is not None:
            self._of_addresses[key[0]] = address._replace(free_at=turn + OF_ADDRESS_S)
        return turn - now

    def failed(self, key: Key, now: float) -> None:
        _count(self._failures, key, now)
        _count(self._of_addresses, key[0], now)

    def succeeded(self, key: Key) -> None:
        self._failures.pop(key, None)
        self._succeeded.pop(key, None)
        self._succeeded[key] = None
        if len(self._succeeded) > MOST_KNOWN:
            del self._succeeded[next(iter(self._succeeded))]


def _slowed(known: Failures | None, free: int, now: float) -> Failures | None:
    """The failures, if they slow down an attempt."""
    return None if known is None or known.times < free or now - known.last_at > FORGET_S else known


def _count(failures: dict[K, Failures], key: K, now: float) -> None:
    known = failures.pop(key, None)
    if known is None or now - known.last_at > FORGET_S:
        known = Failures(0, now, now)
    failures[key] = known._replace(times=known.times + 1, last_at=now)
    if len(failures) > MOST_KNOWN:
        del failures[next(iter(failures))]

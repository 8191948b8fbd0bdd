"""How long a consumer may be sure of its session, by its own clock.

ZooKeeper ends a session, and a group's coordinator removes a member, when it has not heard from the client for the
session's timeout. A client that is cut off or paused does not notice that, so it counts itself: if a request got a
response, the session was alive when the request was sent, and lives at least for another timeout. A consumer stops at
two thirds of it. The rest covers clocks that differ, and ZooKeeper's followers, which report sessions to the leader
only every half tick.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 2 / 3
RENEW_EVERY: Final = 1 / 8


class Lease:
    """Written by the thread that renews it, read by all threads; times are those of `clock.now`."""

    def __init__(self) -> None:
        self.until = 0.0
        self._session: int | None = None

    def begin(self, session: int) -> None:
        """From now on, everything is owned in this session; renewals of other sessions no longer count."""
        self.until = 0.0
        self._session = session

    def renew(self, session: int, sent_at: float, timeout_s: float) -> None:
        """The server that ends sessions has responded to a request that this session sent at that time."""
        if session == self._session and timeout_s > 0:
            self.until = max(self.until, sent_at + timeout_s * SHARE)

    def end(self) -> None:
        """The session may be over."""
        self._session = None
        self.until = 0.0

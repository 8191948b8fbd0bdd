"""How long a consumer may be sure of its session, by its own clock.

ZooKeeper ends a session when it has not heard from the client for the session's timeout, and a group's coordinator
removes a member. A client that is cut off or paused does not see that, so it counts itself: a request that was answered
was sent at a time when the session was alive, and the session lives at least until the timeout after that. A consumer
stops at two thirds of it. The rest covers clocks that differ, and ZooKeeper's followers, which tell the leader of
sessions every half tick only.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 2 / 3
RENEW_EVERY: Final = 1 / 8


class Lease:
    """Written by the thread that renews it, read by all; times are those of `clock.now`."""

    def __init__(self) -> None:
        self.until = 0.0
        self._session: int | None = None

    def begin(self, session: int) -> None:
        """What is owned from now on is owned in this session; renewals of another one count no more."""
        self.until = 0.0
        self._session = session

    def renew(self, session: int, sent_at: float, timeout_s: float) -> None:
        """A request that this session sent at that time was answered by who ends sessions."""
        if session == self._session and timeout_s > 0:
            self.until = max(self.until, sent_at + timeout_s * SHARE)

    def end(self) -> None:
        """The session may be over."""
        self._session = None
        self.until = 0.0

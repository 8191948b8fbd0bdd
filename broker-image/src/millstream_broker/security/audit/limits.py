"""How many lines the audit log may have. Pure: time is an argument, in seconds.

Each kind of event has a rate of its own, so that no flood of denied requests hides an administrative one. One source
may use a tenth of the rate of logins and denied requests, so that it does not hide others. A source is an address, with
the principal of a client that has authenticated; never a name that clients choose freely. Ten seconds' worth may come
at once. What is left out is counted by kind and source.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

ADMINISTRATIVE, DENIED, LOGIN = "administrative", "denied", "login"
KINDS = (ADMINISTRATIVE, DENIED, LOGIN)
SHARE = {ADMINISTRATIVE: 1.0, DENIED: 0.1, LOGIN: 0.1}
"""Of the rate of its kind, for each source."""
BURST_S = 10.0
MOST_SOURCES = 10_000
MOST_COUNTED = 20
"""Sources whose suppressed events are counted separately; the others' are added up."""


class EventSource(NamedTuple):
    principal: str
    host: str


OTHERS = EventSource("", "")


class _Bucket:
    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens, self.at = tokens, at

    def has_token(self, rate: float, now: float) -> bool:
        self.tokens = min(rate * BURST_S, self.tokens + max(0.0, now - self.at) * rate)
        self.at = now
        return self.tokens >= 1.0


class LineLimits:
    """The limits of one broker's audit log."""

    def __init__(self, per_second: int) -> None:
        self._rate = float(per_second)
        self._of_kind: dict[str, _Bucket] = {}
        self._of_source: OrderedDict[tuple[str, EventSource], _Bucket] = OrderedDict()
        self._suppressed: dict[tuple[str, EventSource], int] = {}

    def admits(self, kind: str, source: EventSource, now: float) -> bool:
        """Whether an event gets a line. If not, it is counted."""
        whole, share = self._rate, self._rate * SHARE[kind]
        of_kind = self._of_kind.get(kind)
        if of_kind is None:
            of_kind = self._of_kind[kind] = _Bucket(whole * BURST_S, now)
        key = kind, source
        of_source = self._of_source.pop(key, None) or _Bucket(share * BURST_S, now)
        self._of_source[key] = of_source
        if len(self._of_source) > MOST_SOURCES:
            self._of_source.popitem(last=False)
        if of_source.has_token(share, now) and of_kind.has_token(whole, now):
            of_source.tokens -= 1
            of_kind.tokens -= 1
            return True
        if key not in self._suppressed and len(self._suppressed) >= MOST_COUNTED:
            key = kind, OTHERS
        self._suppressed[key] = self._suppressed.get(key, 0) + 1
        return False

    def take_suppressed(self) -> dict[tuple[str, EventSource], int]:
        """How many events got no line since the last call."""
        taken, self._suppressed = self._suppressed, {}
        return taken

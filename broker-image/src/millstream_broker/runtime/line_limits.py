"""How many lines a log may have, by kind and source. Pure: time is an argument, in seconds.

Each kind of event has a rate of its own, so that no flood of one kind hides another, and a source has a share of it, so
that it does not hide others. A source is what a client cannot choose freely. A burst may come at once. What is left out
is counted by kind and source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MOST_SOURCES = 10_000
MOST_COUNTED = 20
"""Sources whose suppressed events are counted separately; the others' are added up."""

Kind = TypeVar("Kind", bound=Hashable)
Source = TypeVar("Source", bound=Hashable)


class _Bucket:
    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens, self.at = tokens, at

    def has_token(self, rate: float, most: float, now: float) -> bool:
        self.tokens = min(most, self.tokens + max(0.0, now - self.at) * rate)
        self.at = now
        return self.tokens >= 1.0


class LineLimits(Generic[Kind, Source]):
    """The limits of one log. The number of kinds has to be bounded."""

    def __init__(self, per_second: float, burst: float, share: Callable[[Kind], float]) -> None:
        """`share` of the rate and the burst of a kind is for one source."""
        self._rate = per_second
        self._burst = burst
        self._share = share
        self._of_kind: dict[Kind, _Bucket] = {}
        self._of_source: OrderedDict[tuple[Kind, Source], _Bucket] = OrderedDict()
        self._suppressed: dict[tuple[Kind, Source | None], int] = {}

    def admits(self, kind: Kind, source: Source, now: float) -> bool:
        """Whether an event gets a line. If not, it is counted."""
        rate, burst, share = self._rate, self._burst, self._share(kind)
        of_kind = self._of_kind.get(kind)
        if of_kind is None:
            of_kind = self._of_kind[kind] = _Bucket(burst, now)
        key = kind, source
        of_source = self._of_source.pop(key, None) or _Bucket(burst * share, now)
        self._of_source[key] = of_source
        if len(self._of_source) > MOST_SOURCES:
            self._of_source.popitem(last=False)
        if of_source.has_token(rate * share, burst * share, now) and of_kind.has_token(rate, burst, now):
            of_source.tokens -= 1
            of_kind.tokens -= 1
            return True
        counted: tuple[Kind, Source | None] = key
        if counted not in self._suppressed and len(self._suppressed) >= MOST_COUNTED:
            counted = kind, None
        self._suppressed[counted] = self._suppressed.get(counted, 0) + 1
        return False

    def take_suppressed(self) -> dict[tuple[Kind, Source | None], int]:
        """How many events got no line since the last call; without a source: those of all others of the kind."""
        taken, self._suppressed = self._suppressed, {}
        return taken

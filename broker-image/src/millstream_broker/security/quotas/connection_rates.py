"""How many connections a second a broker, a listener and an address may open.

A connection beyond the rate of the broker or of its listener waits to be accepted, and the listener's others with it.
One beyond the rate of its address is not served: it is closed after its throttle time, so that the client does not
connect again at once, and does not count. Both times are one window at most, as in Kafka.

The listener for brokers does not wait for the broker's rate if there are others: clients must not keep brokers apart.
"""

from __future__ import annotations

from collections.abc import Callable

from .quotas import Quotas
from .rates import SampledRate, Windows
from .sensors import Sensors

UNLIMITED = 2**31 - 1
BROKER = None
"""In place of a listener's name: the broker as a whole."""


class ConnectionRates:
    """The rates at which connections to one broker are opened."""

    def __init__(
        self,
        quotas: Quotas,
        windows: Windows,
        limit_of: Callable[[str | None], int],
        protected: str | None = None,
    ) -> None:
        """`limit_of` returns the limit of a listener or of the BROKER; `protected` is the listener for brokers."""
        self._quotas = quotas
        self._windows = windows
        self._limit_of = limit_of
        self.protected = protected
        self._listeners: dict[str | None, SampledRate] = {}
        self._addresses: Sensors[str, SampledRate] = Sensors(lambda: SampledRate(windows))

    def wait_ms(self, listener: str, now_ms: int) -> int:
        """Count a connection; returns the time before it is accepted."""
        return max(
            (self._add(subject, limit, now_ms) for subject, limit in self._limits(listener)), default=0
        )

    def refused_ms(self, listener: str, address: str, now_ms: int) -> int:
        """Count an accepted connection for its address; a time: it is not served, and closed after that time."""
        if not self._quotas.connections or (limit := self._quotas.connections.of_ip(address)) is None:
            return 0
        rate = self._addresses.get(address, now_ms).measure
        rate.record(1, now_ms)
        if not (throttle_ms := min(rate.throttle_ms(limit, now_ms), self._windows.size_ms)):
            return 0
        rate.record(-1, now_ms)
        for subject, _ in self._limits(listener):
            if (
                counted := self._listeners.get(subject)
            ) is not None:  # None: the limit is newer than the connection
                counted.record(-1, now_ms)
        return throttle_ms

    def _limits(self, listener: str) -> list[tuple[str | None, int]]:
        """The limits of a connection."""
        subjects = (listener,) if listener == self.protected else (BROKER, listener)
        limits = ((subject, self._limit_of(subject)) for subject in subjects)
        return [(subject, limit) for subject, limit in limits if limit < UNLIMITED]

    def _add(self, subject: str | None, limit: int, now_ms: int) -> int:
        rate = self._listeners.setdefault(subject, SampledRate(self._windows))
        rate.record(1, now_ms)
        return min(rate.throttle_ms(limit, now_ms), self._windows.size_ms)

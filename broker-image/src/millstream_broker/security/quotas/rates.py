"""Kafka's measures of use: a rate over sampled windows, and a token bucket (KIP-599).

Throttle times depend on how samples begin, overlap and expire, so both follow Kafka's to the millisecond: the sums of
a client's use are kept in samples of `size_ms`, of which `number` count. A rate is the sum over the time since the
oldest sample began, but over at least `number - 1` whole windows: so the first ten seconds' worth passes at once.

Times are milliseconds of any clock that does not go back.
"""

from __future__ import annotations

from typing import NamedTuple


class Windows(NamedTuple):
    """How use is sampled: `quota.window.num` and `quota.window.size.seconds`."""

    number: int = 11
    size_ms: int = 1000

    @property
    def full_seconds(self) -> float:
        """Seconds' worth of a quota that pass at once: all windows but the current one."""
        return max(self.number - 1, 0) * self.size_ms / 1000

    @property
    def total_ms(self) -> int:
        return self.number * self.size_ms


class _Sample:
    """The use in one window, from its first record on."""

    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.value = 0.0
        self.start_ms = self.last_ms = now_ms


class SampledRate:
    """Use per second."""

    __slots__ = ("_current", "_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, amount: float, now_ms: int) -> None:
        """Add use; a negative amount takes it back."""
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._current]
        if now_ms - sample.start_ms >= self._windows.size_ms:
            # One more sample than counts: the oldest may overlap the beginning of the measured time.
            self._current = (self._current + 1) % (self._windows.number + 1)
            if self._current == len(samples):
                samples.append(_Sample(now_ms))
            sample = samples[self._current]
            sample.reset(now_ms)
        sample.value += amount
        sample.last_ms = now_ms

    def measure(self, now_ms: int) -> tuple[float, int]:
        """The rate, and the milliseconds over which it was measured."""
        number, size_ms = self._windows
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        expired_ms = now_ms - number * size_ms
        total, start_ms = 0.0, now_ms
        for sample in samples:
            if sample.last_ms <= expired_ms:
                sample.reset(now_ms)
            total += sample.value
            start_ms = min(start_ms, sample.start_ms)
        elapsed_ms = now_ms - start_ms
        missing = number - 1 - elapsed_ms // size_ms
        if missing > 0:
            elapsed_ms += missing * size_ms
        elapsed_ms = max(elapsed_ms, 1)
        return total * 1000 / elapsed_ms, elapsed_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Time after which the rate would be at the limit; 0 if it is not above."""
        rate, elapsed_ms = self.measure(now_ms)
        return _rounded((rate - limit) / limit * elapsed_ms) if rate > limit else 0


class MutationTokens:
    """Tokens that refill at the quota's rate, up to what its windows allow. They may become negative."""

    __slots__ = ("_filled_ms", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = 0.0
        self._filled_ms: int | None = None

    def record(self, amount: float, limit: float, now_ms: int) -> None:
        self._tokens = min(self._burst(limit), self.tokens(limit, now_ms) - amount)

    def tokens(self, limit: float, now_ms: int) -> float:
        """Tokens that are left."""
        if self._filled_ms is None:
            self._tokens = self._burst(limit)
        else:
            refilled = self._tokens + limit * (now_ms - self._filled_ms) / 1000
            self._tokens = min(self._burst(limit), refilled)
        self._filled_ms = now_ms
        return self._tokens

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Time until no tokens are owed; 0 if none are."""
        tokens = self.tokens(limit, now_ms)
        return _rounded(-tokens / limit * 1000) if tokens < 0 else 0

    def _burst(self, limit: float) -> float:
        return self._windows.total_ms / 1000 * limit


def _rounded(value: float) -> int:
    """As Java rounds; no longer than a response can say."""
    return int(min(value + 0.5, 0x7FFFFFFF))

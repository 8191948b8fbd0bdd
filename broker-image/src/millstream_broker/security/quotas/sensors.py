"""The use of each client that has a quota, and how often it was throttled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

MOST_SENSORS = 10_000
"""Sensors of one kind of quota: client ids are the clients' choice. Beyond them, the longest unused is forgotten."""
UNUSED_MS = 3_600_000
"""Time after which an unused sensor is forgotten, as in Kafka."""

K = TypeVar("K")
M = TypeVar("M")


class Sensor(Generic[M]):
    """The use of those who are counted together."""

    __slots__ = ("measure", "throttled", "throttled_ms", "used_ms")

    def __init__(self, measure: M) -> None:
        self.measure = measure
        self.used_ms = 0
        self.throttled = 0
        """Number of requests that were throttled."""
        self.throttled_ms = 0
        """The sum of their throttle times."""

    def throttle(self, throttle_ms: int) -> int:
        """Note a throttle time, which may be 0."""
        if throttle_ms:
            self.throttled += 1
            self.throttled_ms += throttle_ms
        return throttle_ms


class Sensors(Generic[K, M]):
    """The sensors of one kind of quota."""

    __slots__ = ("_by_key", "_create", "_most")

    def __init__(self, create: Callable[[], M], most: int = MOST_SENSORS) -> None:
        self._create = create
        self._most = most
        self._by_key: OrderedDict[K, Sensor[M]] = OrderedDict()
        """The last used one is at the end."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[tuple[K, Sensor[M]]]:
        return iter(list(self._by_key.items()))

    def get(self, key: K, now_ms: int) -> Sensor[M]:
        """The sensor of a key, which is used now."""
        sensor = self._by_key.get(key)
        if sensor is None:
            self.expire(now_ms)
            if len(self._by_key) >= self._most:
                self._by_key.popitem(last=False)
            sensor = self._by_key[key] = Sensor(self._create())
        else:
            self._by_key.move_to_end(key)
        sensor.used_ms = now_ms
        return sensor

    def expire(self, now_ms: int) -> None:
        """Forget sensors that are unused."""
        by_key = self._by_key
        while by_key and now_ms - next(iter(by_key.values())).used_ms >= UNUSED_MS:
            by_key.popitem(last=False)

    def forget(self, key: K) -> None:
        self._by_key.pop(key, None)

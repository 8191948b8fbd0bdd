"""A producer's undelivered records since the last report: bounded, whatever fails and however often."""

from __future__ import annotations

import threading
from typing import Any

from millstream.errors import NotDelivered, Undelivered
from millstream.retriable import is_retriable

KEYS = 3
"""Limit of kept keys for each topic, partition and reason."""
REASONS = 100
"""Limit of kept reasons; further failures count under the last one."""


class Failures:
    """Failed deliveries; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int, str], tuple[int, list[bytes | None], bool]] = {}

    def add(self, topic: str, partition: int, key: bytes | None, error: Any) -> None:
        """Count a record; ``error`` is a KafkaError."""
        where = (topic, partition, error.str())
        with self._lock:
            if where not in self._found and len(self._found) >= REASONS:
                where = next(reversed(self._found))
            count, keys, retriable = self._found.get(where, (0, [], True))
            if len(keys) < KEYS:
                keys.append(key)
            self._found[where] = (count + 1, keys, retriable and is_retriable(error))

    def raise_any(self) -> None:
        """NotDelivered if there are any, which then count as reported."""
        with self._lock:
            found, self._found = self._found, {}
        if found:
            raise NotDelivered(
                [
                    Undelivered(topic, partition, reason, count, tuple(keys), retriable)
                    for (topic, partition, reason), (count, keys, retriable) in found.items()
                ]
            )

"""The lags of groups and loads as last measured, for the metrics: statuses do not show every change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..models.keys import Key


class Measured(NamedTuple):
    """A measured lag. ``at``: a time by ``Lags.clock``; no part of it was measured earlier."""

    records: int
    seconds: int
    at: float


@dataclass(slots=True)
class Lags:
    """Thread-safe. ``clock`` returns seconds and never goes back."""

    clock: Callable[[], float] = time.monotonic
    _lags: dict[Key, Measured] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: Key, lag: Measured) -> None:
        with self._lock:
            self._lags[key] = lag

    def forget(self, key: Key) -> None:
        with self._lock:
            self._lags.pop(key, None)

    def all(self) -> dict[Key, Measured]:
        with self._lock:
            return dict(self._lags)

"""Counts a producer's records, by topic and window of time, as reports that `millstream-audit` compares with topics.

    counts = Counts(lambda report: producer.produce("audits", report), server="web-1")
    producer.produce("flights", value, headers={"server": "web-1"}, on_delivery=counts.delivered)
    …
    counts.close()
    producer.flush()

A report has the records that were acknowledged since the last one, and its own id: reports add up, and a repeated
one counts once. If a process dies, its records that it has not reported are in the topic, and the audit calls them
Unreported.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from confluent_kafka import KafkaError, Message

from millstream.errors import BadInput

WINDOW_S = 600


class Counts:
    """Counts of one producer; for any number of threads.

    ``send`` appends a report, JSON, to the topic of reports. `delivered` calls it, too, so it may not flush or poll a
    producer of confluent-kafka. ``window_s`` is the length of a window in seconds; one of the audit's windows must be a
    multiple of it. BadInput if it is below 1.
    """

    def __init__(
        self,
        send: Callable[[bytes], object],
        *,
        server: str = "",
        window_s: int = WINDOW_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if window_s < 1:
            raise BadInput(f"window_s: {window_s} is not allowed", "write a number of seconds above zero")
        self._send, self._server, self._window_s, self._clock = send, server, window_s, clock
        self._id, self._reports = uuid.uuid4().hex, 0
        self._counts: Counter[tuple[str, int]] = Counter()  # by topic and begin of the window, in seconds
        self._lock = threading.Lock()
        self._due = self._window(clock()) + window_s

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Count an acknowledged record; a delivery callback for confluent-kafka."""
        topic, (_, timestamp) = message.topic(), message.timestamp()
        if error is None and topic is not None:
            self.add(topic, timestamp)

    def add(self, topic: str, timestamp: int, count: int = 1) -> None:
        """Count acknowledged records of one time, in milliseconds since 1970; reports windows that have ended.

        The time is that of the audit: the record's own, or the field that the audit's ``time`` names.
        """
        with self._lock:
            self._counts[topic, self._window(timestamp / 1000)] += count
        if self._clock() >= self._due:
            self.report()

    def report(self) -> int:
        """Report windows that have ended; returns the number of reports. Call it if nothing is sent for long."""
        now = self._clock()
        with self._lock:
            self._due = self._window(now) + self._window_s
            return self._report([key for key in self._counts if key[1] + self._window_s <= now])

    def close(self) -> int:
        """Report everything left, including open windows; then flush the producer of ``send``."""
        with self._lock:
            return self._report(list(self._counts))

    def _report(self, keys: list[tuple[str, int]]) -> int:
        for topic, begin in keys:
            report = {
                "topic": topic,
                "windowStart": f"{datetime.fromtimestamp(begin, UTC):%Y-%m-%dT%H:%M:%SZ}",
                "windowSeconds": self._window_s,
                "server": self._server,
                "count": self._counts[topic, begin],
                "producer": f"{self._id}-{self._reports}",
                "sequence": 0,
            }
            self._send(json.dumps(report).encode())  # if it raises, the count stays for the next report
            self._reports += 1
            del self._counts[topic, begin]
        return len(keys)

    def _window(self, seconds: float) -> int:
        return int(seconds // self._window_s) * self._window_s

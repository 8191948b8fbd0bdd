"""How long a stream waits for brokers and for its group before it logs that and raises Unreachable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError

from millstream.connection import Cluster
from millstream.consuming.clock import now
from millstream.errors import Unreachable

SAY_S: Final = 0.5
"""How long ownership must be uncertain before the log says so."""
log = logging.getLogger("millstream.streams")


class Patience:
    """The patience of one stream."""

    def __init__(self, topic: str, cluster: Cluster, limit_s: float) -> None:
        self.topic = topic
        self.uncertain_since = 0.0
        self._cluster = cluster
        self._limit_s = limit_s
        self._heard = 0.0
        self._down = False  # whether a connection failed since the last message
        self._waits = False  # whether the log says that it is uncertain

    def failed(self, error: KafkaError) -> None:
        """Handle librdkafka's report of a failed connection, among others: it heals, or no broker responds for long."""
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
            self._down = True

    def heard(self) -> None:
        """Messages have arrived."""
        self._heard, self._down = now(), False

    def check_brokers(self) -> None:
        """No message has arrived: raise Unreachable if no broker has responded for too long."""
        at = now()
        if not self._down:
            self._heard = at
        elif at - self._heard > self._limit_s:
            self._heard = at
            if not self._cluster.why_unreachable():
                self._down = False
                return
            raise Unreachable(
                f"no broker at {self._cluster.bootstrap} has answered for {self._limit_s:g} s",
                "start one, then iterate again",
            )

    def is_down(self) -> bool:
        return self._down and bool(self._cluster.why_unreachable())

    def uncertain(self, silence: str, partitions: Callable[[], str]) -> None:
        """Wait while it is uncertain whether the stream owns its partitions; raise Unreachable after too long."""
        at = now()
        self.uncertain_since = self.uncertain_since or at
        waited = at - self.uncertain_since
        if waited > SAY_S and not self._waits:
            self._waits = True
            log.warning(
                "%s: others may own partitions %s now, so no message is returned: %s",
                self.topic,
                partitions(),
                silence,
            )
        if waited > self._limit_s:
            self.uncertain_since = 0.0
            raise Unreachable(f"{silence} for {self._limit_s:g} s", "iterate again once it does")

    def certain(self, partitions: Callable[[], str]) -> None:
        self.uncertain_since = 0.0
        if self._waits:
            self._waits = False
            log.info("%s: continues with partitions %s", self.topic, partitions())

"""librdkafka's reports of a producer's records: for the record's callback, for the audit, or as failures to name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from millstream.errors import MillstreamError
from millstream.producing.undelivered import Failures

log = logging.getLogger("millstream.producer")


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a record is in the log. ``timestamp``: milliseconds since 1970.

    With ``acks=0`` it says only that the record was sent: ``offset`` is -1, and ``timestamp`` the record's own.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


OnDelivery: TypeAlias = Callable[[Delivery | None, MillstreamError | None], object]
"""Called once for each record: with its place, or with the reason why it was not delivered."""


class Deliveries:
    """Of one producer; ``delivered``, if any, gets each message that was delivered."""

    def __init__(self, delivered: Callable[[Any], None] | None) -> None:
        self.failures = Failures()
        """Of records without their own callback."""
        self._delivered = delivered

    def reported(self, error: Any, message: Any) -> None:
        """Handle the report of a record without its own callback."""
        if error is not None:
            self.failures.add(message.topic(), _partition(message), message.key(), error)
        elif self._delivered is not None:
            self._delivered(message)

    def callback(self, on_delivery: OnDelivery) -> Callable[[Any, Any], None]:
        """The same for a record with its own callback."""

        def called(error: Any, message: Any) -> None:
            if error is not None:
                failures = Failures()
                failures.add(message.topic(), _partition(message), message.key(), error)
                try:
                    failures.raise_any()
                except MillstreamError as found:
                    _call(on_delivery, None, found)
                return
            offset, (_, timestamp) = message.offset(), message.timestamp()
            delivery = Delivery(
                message.topic(), message.partition(), -1 if offset is None else offset, timestamp
            )
            _call(on_delivery, delivery, None)
            if self._delivered is not None:
                self._delivered(message)

        return called


def _call(on_delivery: OnDelivery, delivery: Delivery | None, error: MillstreamError | None) -> None:
    """Call the user's callback; its exceptions are logged, because nothing could catch them."""
    try:
        on_delivery(delivery, error)
    except Exception:
        log.exception("a delivery callback failed")


def _partition(message: Any) -> int:
    found = message.partition()
    return -1 if found is None else int(found)

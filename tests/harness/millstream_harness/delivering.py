"""A first record that reaches the broker although the machine is slow and the producer's delivery timeout short."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import millstream
from millstream.errors import NotDelivered


def deliver(producer: millstream.Producer, topic: str, **record: Any) -> None:
    """Send a record until the broker has acknowledged it; it may be in the topic more than once."""
    while True:
        with suppress(NotDelivered):
            producer.submit(topic, b"first", **record).result()
            return


async def deliver_async(producer: millstream.AsyncProducer, topic: str, **record: Any) -> None:
    """`deliver` with an async producer."""
    while True:
        with suppress(NotDelivered):
            await (await producer.submit(topic, b"first", **record))
            return

"""The producer for asyncio: waiting for room, for reports and at the end does not block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from millstream.client_config import DEFAULT_BOOTSTRAP
from millstream.connection import Cluster
from millstream.errors import BufferFull, Closed, MillstreamError
from millstream.producing.deliveries import Delivery, OnDelivery
from millstream.producing.producer import Headers, Producer
from millstream.serdes import Serializer

if TYPE_CHECKING:
    from millstream.consuming.stream import MessageStream

ROOM_POLL_S = 0.005


class AsyncProducer:
    """A `Producer` for one event loop; the same options and errors.

    async with AsyncProducer("localhost:9092") as producer:
        await producer.send("flights", b"UA1545 departed")
    """

    def __init__(
        self,
        bootstrap: str | Cluster = DEFAULT_BOOTSTRAP,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        buffer_timeout_s: float = 60,
        **options: Any,
    ) -> None:
        self._buffer_timeout_s = buffer_timeout_s
        self._make = lambda: Producer(
            bootstrap,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            buffer_timeout_s=0,  # this class waits itself
            **options,
        )
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    async def start(self) -> Self:
        """Connect; the same errors as those of a Producer's constructor. `send` does it if needed."""
        await self._started()
        return self

    async def _started(self) -> Producer:
        async with self._starting:
            if self._closed:
                raise Closed("the producer is closed", "create another one")
            if self._producer is None:
                self._producer = await asyncio.to_thread(self._make)
            return self._producer

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Like `Producer.send`; other tasks run while it waits. ``on_delivery`` runs in the producer's thread."""
        producer = self._producer or await self._started()
        if producer.must_learn(topic):
            await asyncio.to_thread(producer.learn, topic)
        record = producer.prepare(topic, value, key, headers, partition, timestamp, on_delivery)
        try:
            producer.hand_over(record)
        except BufferFull:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self._buffer_timeout_s
            while True:
                await asyncio.sleep(ROOM_POLL_S)
                try:
                    producer.hand_over(record)
                except BufferFull as full:
                    if loop.time() >= deadline:
                        waited = full.problem.replace("within 0 s", f"within {self._buffer_timeout_s:g} s")
                        raise BufferFull(waited, full.next_step) from None
                else:
                    return

    async def submit(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[Delivery]:
        """Send, and get a future of the report: ``delivery = await (await producer.submit(…))``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Delivery] = loop.create_future()

        def settle(delivery: Delivery | None, error: MillstreamError | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            elif delivery is not None:
                future.set_result(delivery)

        def reported(delivery: Delivery | None, error: MillstreamError | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, delivery, error)

        await self.send(
            topic, value, key, headers=headers, partition=partition, timestamp=timestamp, on_delivery=reported
        )
        return future

    @contextlib.asynccontextmanager
    async def transaction(self, stream: MessageStream | None = None) -> AsyncIterator[None]:
        """Like `Producer.transaction`, for ``async with``."""
        producer = self._producer or await self._started()
        transaction = producer.transaction(stream)
        await asyncio.to_thread(transaction.__enter__)
        try:
            yield
        except BaseException as error:
            await asyncio.to_thread(transaction.__exit__, type(error), error, None)
            raise
        await asyncio.to_thread(transaction.__exit__, None, None, None)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Like `Producer.flush`."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.flush, timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Like `Producer.close`."""
        async with self._starting:
            self._closed = True
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close, timeout_s)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except MillstreamError as undelivered:
            if error is None:
                raise
            error.add_note(str(undelivered))

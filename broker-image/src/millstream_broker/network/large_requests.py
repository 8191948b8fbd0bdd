"""Requests with many elements: decoded, handled and encoded in slices.

A request of any API with more than FEW_ELEMENTS (`protocol.api`) comes here; its connection is not read meanwhile. A
handler that works on many elements is a generator, or yields to others itself (`slices`). A Produce or MirrorAppend
reaches its handler in parts.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

from millstream_kafka.protocol import mirror_append, produce
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.mirror_append import (
    MirrorAppendRequest,
    MirrorAppendResponse,
    MirrorTopic,
    MirrorTopicResponse,
)
from millstream_kafka.protocol.produce import (
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

from ..runtime.request_memory import RequestMemory
from ..runtime.slices import begin, cooperatively, finish
from ..runtime.steps import Steps
from .charge import Charge
from .handlers import Bound, CloseConnection, RequestContext

T = TypeVar("T")

PRODUCED_AT_ONCE = 5
"""Partitions to append to in one step: each takes some system calls."""

BROKERS_SLICE_S = 0.002
"""For followers' fetches: the first of a session names all its partitions, and must end within its time limit."""

MOST_QUEUED = 1000
"""Limit of clients' waiting requests, together with `queued.max.request.bytes`; beyond it, clients are disconnected."""

Parts = list[Any]
"""An encoded response: buffers and ranges of files, to be sent in order."""
Encode = Callable[[Any], Steps[Parts]]


class LargeRequests:
    """Large requests of many connections, processed one at a time: an element takes a hundred bytes."""

    def __init__(self, memory: RequestMemory, *, is_of_brokers: bool = False) -> None:
        """Brokers are few and must keep up: they get longer slices and no limit on requests."""
        self._memory = memory
        self._is_bounded = not is_of_brokers
        self._slice_s = BROKERS_SLICE_S if is_of_brokers else None
        self._turn = asyncio.Lock()
        self._turn_of_small = asyncio.Lock()
        """Small requests that cause much work: they do not wait for large ones."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._queued: set[asyncio.Task[Any]] = set()
        """Requests that have not had their turn yet."""
        self._queued_bytes = 0

    def started(
        self, registration: Bound, version: int, steps: Steps[Any], charge: Charge | None = None
    ) -> Any:
        """Start a handler in steps: returns the response if one slice was enough, otherwise a future of it, encoded."""
        if (done := begin(steps, self._slice_s)) is not None:
            return done[0]
        if charge is not None:
            steps = charge.timed_steps(steps)
        return self._own(self._finished(steps, _encoder(registration.api, version, charge)))

    def answer(
        self,
        registration: Bound,
        context: RequestContext,
        frame: bytearray,
        offset: int,
        charge: Charge | None = None,
    ) -> asyncio.Task[Any]:
        """Resolves to the encoded response; None if there is none. Raises whatever decoders and handlers raise.

        Raises CloseConnection if too many requests wait already.
        """
        queued, size = self._queued, len(frame)
        is_too_much = len(queued) >= MOST_QUEUED or self._queued_bytes + size > self._memory.limit
        if queued and is_too_much and self._is_bounded:
            raise CloseConnection(f"a large {registration.api.name}: {len(queued)} others wait already")
        self._queued_bytes += size
        work = self._answer(registration, context, frame, offset, charge)
        task = self._own(work)
        queued.add(task)
        task.add_done_callback(lambda task: self._has_its_turn(task, size))
        return task

    def _has_its_turn(self, task: asyncio.Task[Any] | None, size: int) -> None:
        if task is not None and task in self._queued:
            self._queued.discard(task)
            self._queued_bytes -= size

    async def close(self) -> None:
        """Stop handling requests: there is nobody to respond to."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _own(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _finished(self, steps: Steps[Any], encode: Encode) -> Parts | None:
        async with self._turn_of_small:
            response = await self._finish(steps)
            if not inspect.isawaitable(response):
                return await self._finish(encode(response))
        return await self._encoded(response, self._turn_of_small, encode)

    async def _encoded(self, answer: Awaitable[Any], turn: asyncio.Lock, encode: Encode) -> Parts | None:
        """Encode the response in its turn. It may come late, perhaps from the controller, without delaying others."""
        response = await answer
        if response is None:
            return None
        async with turn:
            return await self._finish(encode(response))

    async def _finish(self, steps: Steps[T]) -> T:
        return await finish(steps, self._slice_s)

    async def _answer(
        self,
        registration: Bound,
        context: RequestContext,
        frame: bytearray,
        offset: int,
        charge: Charge | None,
    ) -> Parts | None:
        api, size = registration.api, len(frame)
        self._memory.hold(size)
        try:
            async with self._turn:
                self._has_its_turn(asyncio.current_task(), size)
                steps = api.decode_request_in_steps(context.version, memoryview(frame), offset)
                request = await self._finish(steps if charge is None else charge.timed_steps(steps))
                handled = self._handled(registration, context, request)
                found = await (handled if charge is None else charge.timed(handled))
                del request
                if found is None:
                    return None
                encode = _encoder(api, context.version, charge)
                if not inspect.isawaitable(found):
                    return await self._finish(encode(found))
                del steps, frame  # no longer needed
        finally:
            self._memory.free(size)
        return await self._encoded(found, self._turn, encode)

    async def _handled(self, registration: Bound, context: RequestContext, request: Any) -> Any:
        """The response, or a future of it."""
        if registration.api is produce.API:
            return _together(await self._in_parts(registration, context, _parts(request)), request.acks)
        if registration.api is mirror_append.API:
            return _all_mirrored(await self._in_parts(registration, context, _mirrored_parts(request)))
        found = registration.handle(context, request)
        return await self._finish(found) if isinstance(found, Generator) else found

    async def _in_parts(
        self, registration: Bound, context: RequestContext, parts: Iterator[Any]
    ) -> list[asyncio.Future[Any]]:
        """Append now; the results resolve to the parts' responses once everything is acknowledged."""
        answers: list[asyncio.Future[Any]] = []
        async for part in cooperatively(parts):
            found = registration.handle(context, part)
            if inspect.isawaitable(found):
                answers.append(asyncio.ensure_future(found))
            else:
                answers.append(asyncio.get_running_loop().create_future())
                answers[-1].set_result(found)
            answers[-1].add_done_callback(_retrieve_error)
        return answers


def _encoder(api: Api[Any, Any], version: int, charge: Charge | None) -> Encode:
    """Encodes a response of the API, once its request is charged."""
    encode: Encode = partial(api.encode_response_in_steps, version)
    return encode if charge is None else charge.before(encode)


def _retrieve_error(answer: asyncio.Future[Any]) -> None:
    """Retrieve the error of a part: after another error, the connection is closed and nothing awaits this one."""
    if not answer.cancelled():
        answer.exception()


async def _together(answers: list[asyncio.Future[Any]], acks: int) -> ProduceResponse | None:
    topics: list[TopicProduceResponse] = []
    async for answer in cooperatively(answers):
        try:
            response = await answer
        except asyncio.CancelledError:  # the broker stops: none of them may append afterwards
            for other in answers:
                other.cancel()
            raise
        for topic in () if response is None else response.responses:
            if topics and (topics[-1].name, topics[-1].topic_id) == (topic.name, topic.topic_id):
                topics[-1].partition_responses += topic.partition_responses
            else:
                topics.append(topic)
    return ProduceResponse(topics) if acks else None


async def _all_mirrored(answers: list[asyncio.Future[Any]]) -> MirrorAppendResponse:
    topics: list[MirrorTopicResponse] = []
    async for answer in cooperatively(answers):
        topics += (await answer).topics
    return MirrorAppendResponse(topics)


def _mirrored_parts(request: MirrorAppendRequest) -> Iterator[MirrorAppendRequest]:
    """The request, as requests for at most PRODUCED_AT_ONCE partitions of one topic each."""
    for topic in request.topics:
        for start in range(0, len(topic.partitions), PRODUCED_AT_ONCE):
            some = topic.partitions[start : start + PRODUCED_AT_ONCE]
            part = MirrorTopic(topic.name, topic.source_topic_id, some)
            yield MirrorAppendRequest(request.source_cluster_id, request.timeout_ms, [part])


def _parts(request: ProduceRequest) -> Iterator[ProduceRequest]:
    """The request, as requests for PRODUCED_AT_ONCE partitions."""
    topics, room = list[TopicProduceData](), PRODUCED_AT_ONCE
    for topic in request.topic_data:
        start = 0
        while start < len(topic.partition_data) or start == 0:
            some = topic.partition_data[start : start + room]
            topics.append(TopicProduceData(topic.name, topic.topic_id, some))
            start, room = start + max(len(some), 1), room - max(len(some), 1)
            if room <= 0:
                yield _with(request, topics)
                topics, room = [], PRODUCED_AT_ONCE
    if topics:
        yield _with(request, topics)


def _with(request: ProduceRequest, topics: list[TopicProduceData]) -> ProduceRequest:
    return ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, topics)

"""Fetch: read record batches, waiting up to `max_wait_ms` for `min_bytes`.

The same sessions (`fetch_sessions`), which have the rules, serve consumers and followers. Records are not read here:
the response refers to ranges of segment files, which the server sends with sendfile.

A consumer with a quota gets at most what may pass at once after a pause. Beyond its quota, of bytes or of requests, it
gets a response without topics, which tells the throttle time and does not count as use. Only a response that alone
exceeds all that may pass is sent, if there was no use before, and throttles afterwards: a batch larger than that would
never be read.
"""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import isawaitable
from time import perf_counter
from typing import Any

from millstream_kafka.acl import AclOperation, ResourceType
from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.fetch import FetchRequest, FetchResponse

from ..network.handlers import Answer, RequestContext, handler
from ..replication.fetch_session import CONSUMER
from ..replication.fetch_sessions import Sessions
from ..runtime.slices import finish
from ..runtime.steps import Steps
from ..security.acl.rights import Right
from ..security.quotas.quotas import Quotas

SIZE_BYTES = 4
"""Kafka counts a response with its size."""


@handler(
    fetch.API,
    ends_with_connection=True,
    rights=[
        Right(AclOperation.READ, ResourceType.TOPIC, "each topic; of followers: only brokers of the cluster"),
    ],
)
def handle(
    fetch_sessions: Sessions, quotas: Quotas, context: RequestContext, request: FetchRequest
) -> Answer:
    if context.version >= fetch.STATE_SINCE:
        request.replica_id = CONSUMER if request.replica_state is None else request.replica_state.replica_id
    if quotas.is_active and context.session.peer_broker is None:
        return _Charged(fetch_sessions, quotas, context).answer(request)
    return fetch_sessions.answer(request, context.session, context.connection_id, context.version)


class _Charged:
    """A consumer's request while there are quotas."""

    __slots__ = ("_context", "_quotas", "_seconds", "_sessions")

    def __init__(self, sessions: Sessions, quotas: Quotas, context: RequestContext) -> None:
        self._sessions = sessions
        self._quotas = quotas
        self._context = context
        self._seconds = 0.0

    def answer(self, request: FetchRequest) -> Steps[Any]:
        context = self._context
        if (most := self._quotas.fetch.most(context.session, context.client_id)) is not None:
            request.max_bytes = min(request.max_bytes, int(most))
            request.min_bytes = min(request.min_bytes, request.max_bytes)
        answering = self._sessions.answer(request, context.session, context.connection_id, context.version)
        answer: FetchResponse | Awaitable[FetchResponse] | None = None
        while answer is None:
            started = perf_counter()
            try:
                next(answering)
            except StopIteration as end:
                answer = end.value
            finally:
                self._seconds += perf_counter() - started
            if answer is None:
                yield
        if isawaitable(answer):
            return self._later(answer)
        return (yield from self._charged(answer))

    async def _later(self, answer: Awaitable[FetchResponse]) -> FetchResponse:
        response = await answer
        return await finish(self._charged(response))

    def _charged(self, response: FetchResponse) -> Steps[FetchResponse]:
        """The response, or one without topics."""
        quotas, client = self._quotas, (self._context.session, self._context.client_id)
        size, now = 0, quotas.now_ms()
        if quotas.fetch.most(*client) is not None:
            parts = yield from fetch.API.encode_response_in_steps(self._context.version, response)
            size, now = SIZE_BYTES + sum(map(len, parts)), quotas.now_ms()
        is_first = quotas.fetch.is_unused(*client, now)
        of_requests = quotas.request.record(*client, self._seconds * 100, now)
        of_bytes = quotas.fetch.record(*client, size, now)
        response.throttle_time_ms = throttle_ms = max(of_requests, of_bytes)
        if not throttle_ms or (is_first and not of_requests):
            return response
        quotas.fetch.take_back(*client, size, now)
        yield from self._sessions.take_back(response)
        return FetchResponse(throttle_ms, response.error_code, response.session_id)

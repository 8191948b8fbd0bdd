"""What a client's request uses of its quotas, and the throttle time that its response tells (KIP-219).

A request is charged once, when its response is known. Its time is that of the loop and of the handler's steps, not of
waits. Fetch charges itself, because a response beyond a quota has no records (`api.fetch`); the others only add time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from time import perf_counter
from typing import Any, TypeVar

from millstream_kafka.protocol import fetch, mirror_append, produce
from millstream_kafka.protocol.api import Api

from ..runtime.steps import Steps
from ..security.quotas.quotas import Quotas
from ..security.session import ClientSession

T = TypeVar("T")

NOT_CHARGED = {fetch.API.key, mirror_append.API.key}
"""Fetch charges itself; mirrors write as followers do, without a quota."""


class Charge:
    """One request of a client, until its response is known."""

    __slots__ = ("_api", "_client_id", "_quotas", "_session", "_size", "seconds", "throttle_ms")

    def __init__(
        self,
        quotas: Quotas,
        session: ClientSession,
        client_id: str | None,
        api: Api[Any, Any],
        size: int,
    ) -> None:
        """`size` is that of the request with its header, in bytes."""
        self._quotas = quotas
        self._session = session
        self._client_id = client_id
        self._api = api
        self._size = size
        self.seconds = 0.0
        """The time that the request has taken."""
        self.throttle_ms: int | None = None
        """None until the request is charged."""

    def settle(self, response: Any) -> int:
        """Charge the request, and return its throttle time, which the response then tells, too."""
        if self.throttle_ms is not None:
            return self.throttle_ms
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        quotas, session, client_id, now = self._quotas, self._session, self._client_id, self._quotas.now_ms()
        key = self._api.key
        if key == produce.API.key:
            throttle_ms = max(throttle_ms, quotas.produce.record(session, client_id, self._size, now))
        if key not in NOT_CHARGED and response is not None:
            throttle_ms = max(throttle_ms, quotas.request.record(session, client_id, self.seconds * 100, now))
        if throttle_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_ms
        self.throttle_ms = throttle_ms
        return throttle_ms

    def before(self, encode: Callable[[Any], T]) -> Callable[[Any], T]:
        """`encode`, which charges the request first."""

        def charged(response: Any) -> T:
            self.settle(response)
            return encode(response)

        return charged

    def timed_steps(self, steps: Steps[T]) -> Steps[T]:
        """The same steps, whose time is the request's."""
        while True:
            started = perf_counter()
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.seconds += perf_counter() - started
            yield

    def timed(self, answer: Awaitable[T]) -> Awaitable[T]:
        """The same answer; its time is the request's, except while it waits."""
        return _Timed(answer, self)


class _Timed(Awaitable[T]):
    """An awaitable that adds the time of its steps."""

    __slots__ = ("_awaited", "_charge")

    def __init__(self, awaited: Awaitable[T], charge: Charge) -> None:
        self._awaited = awaited
        self._charge = charge

    def __await__(self) -> Generator[Any, Any, T]:
        steps: Any = self._awaited.__await__()
        error: BaseException | None = None
        while True:
            started = perf_counter()
            try:
                waiting = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._charge.seconds += perf_counter() - started
            error = None
            try:
                yield waiting
            except BaseException as raised:
                error = raised

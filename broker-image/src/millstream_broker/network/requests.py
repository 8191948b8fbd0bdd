"""The requests of one connection: handled as they are received, answered in their order.

Requests whose handlers keep parts of them are copied first (all but those with records, which are appended when the
handler returns).

While a handler waits (a long poll, a join), no other request is handled, as in Kafka. But a Produce may follow a
Produce, so that several wait for the disk together. Responses are sent as they become ready (`outbox`).

A client beyond its quota is answered at once, and then its connection is muted (`mute`).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Generator
from time import perf_counter
from typing import Any, Protocol

from millstream_kafka.protocol import MalformedRequest
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.header import decode_request_header
from millstream_kafka.protocol.schema import Struct, TooManyElements

from .admission import Admission
from .charge import Charge
from .connection_lines import LineCause, LineKind
from .fetch_shortcut import FetchShortcut
from .handlers import CloseConnection, RequestContext, error_response
from .large_requests import LargeRequests, Parts
from .login import LoginReply
from .mute import Mute
from .outbox import Outbox
from .pending import Known, Pending
from .produce_runs import MOST, Run, find_run
from .produce_shortcut import ProduceShortcut
from .routes import API_VERSIONS, Route, response_frame
from .shared import Shared

PIPELINE_DEPTH = 256
PRODUCE, FETCH = 0, 1

_SIZE = struct.Struct(">i")
_KEY_AND_VERSION = struct.Struct(">hh")


class Requester(Protocol):
    """A connection, to its requests."""

    def feed(self) -> None:
        """Continue with received requests: an earlier one is done."""

    def unmute(self) -> None: ...

    def fail(self, error: Exception) -> None: ...

    def close(self, reason: str = "", level: int = ...) -> None: ...


class ConnectionRequests:
    """Those of one connection, until it is closed."""

    __slots__ = (
        "_admission",
        "_connection",
        "_context",
        "_fetches",
        "_mute",
        "_out",
        "_server",
        "_shortcut",
        "connection_id",
        "pending",
        "route",
    )

    def __init__(
        self, server: Shared, connection: Requester, admission: Admission, out: Outbox, mute: Mute
    ) -> None:
        self._server = server
        self.connection_id = next(server.connection_ids)
        self._connection: Requester | None = connection
        """None once it is closed."""
        self._admission = admission
        self._out = out
        self._mute = mute
        self._context: RequestContext | None = None
        """The last request's, which the next ones share while nothing in it differs."""
        self._shortcut = ProduceShortcut()
        self._fetches = FetchShortcut()
        self.route: Route | None = None
        """The last request's."""
        self.pending: deque[Pending] = deque()

    def may_follow(self, view: memoryview | None = None, begin: int = 0, end: int = 0) -> bool:
        """Whether a request may be handled although an earlier one waits."""
        last, is_alone = self.pending[-1].route.registration, self.pending[-1].is_alone
        if not last.pipelined or is_alone or len(self.pending) >= PIPELINE_DEPTH:
            return False
        if self._server.memory.is_full:
            return False
        if view is None or end - begin < 2:
            return True
        return int.from_bytes(view[begin : begin + 2], "big") == last.api.key

    def may_send(self, size: int) -> bool:
        """Whether a frame is a token without a request around it, or has to wait until that is known."""
        if self.pending and self.pending[-1].route is self._server.of_login:
            return True
        return (
            self._admission.authentication.is_bare and 0 <= size <= self._admission.access.max_request_bytes
        )

    def handle(self, frame: memoryview, started: float) -> None:
        """Handle a frame, without its size. Raises what closes the connection."""
        try:
            route = self._admission.access.routes.get(_KEY_AND_VERSION.unpack_from(frame))
        except struct.error:  # a token without a request around it
            route = None
        if route is None:
            if self._admission.is_of_login(frame):
                self._log_in(frame, started)
            else:
                self._refuse(frame)
            return
        self.route = route
        version, registration = route.version, route.registration
        answer: Any
        request: Any
        produced = self._shortcut.find(frame, version) if registration.pipelined else None
        known: Known | None = produced
        if produced is not None:
            request = produced.request
        elif registration.api.key == FETCH and (fetched := self._fetches.find(frame, version)) is not None:
            known, request = fetched
        if known is not None:
            context = self._context_of(version, known.client_id)
            charge = self._charge(route, context, len(frame)) if self._server.quotas.is_active else None
            (correlation_id,) = _SIZE.unpack_from(frame, _KEY_AND_VERSION.size)
        else:
            if route.copied:
                frame = memoryview(bytes(frame))
            (_, _, correlation_id, client_id), offset = decode_request_header(frame)
            context = self._context_of(version, client_id)
            charge = self._charge(route, context, len(frame)) if self._server.quotas.is_active else None
            try:
                request = registration.api.decode_few(version, frame, offset)
            except TooManyElements:
                waiting = self._large.answer(registration, context, bytearray(frame), offset, charge)
                waiting.set_name(registration.api.name)
                self.pending.append(
                    Pending(route, correlation_id, started, waiting, charge=charge, is_alone=True)
                )
                waiting.add_done_callback(self._answered)
                return
            if registration.api.key == FETCH:
                self._fetches.learn(frame, offset, version, client_id, request)
        try:
            answer = registration.handle(context, request)
            if not (answer is None or isinstance(answer, Struct)) and isinstance(answer, Generator):
                answer = self._large.started(registration, version, answer, charge)
        except ApiError as error:
            answer = error_response(route.registration.api, error)
        except Exception as error:
            raise self._failed(route, error) from None
        if produced is not None:
            produced.data.records = None
        elif registration.api.key == PRODUCE and registration.pipelined:
            # A request that is not pipelined may wait for the controller, and still needs its records.
            self._shortcut.learn(frame, version, client_id, request)
        if charge is not None:
            charge.seconds += perf_counter() - started
        self._take(route, correlation_id, answer, started, known, charge)

    def find_run(self, view: memoryview, start: int, end: int) -> Run | None:
        """See `produce_runs`: within the depth of the pipeline."""
        return find_run(self._shortcut, view, start, end, min(MOST, PIPELINE_DEPTH - len(self.pending)))

    def handle_run(self, run: Run, size: int, started: float) -> bool:
        """Handle requests of `size` bytes together; returns whether that was possible. If not, nothing has changed."""
        known = run.known
        route = self._admission.access.routes.get((PRODUCE, known.version))
        if route is None or (handle := route.registration.run) is None:
            return False
        try:
            context = self._context_of(known.version, known.client_id)
            answers = handle(context, known.request, run)
        except Exception as error:
            raise self._failed(route, error) from None
        if answers is None:
            return False
        self.route = route
        charge, is_charged, count = None, self._server.quotas.is_active, len(answers)
        seconds = perf_counter() - started if is_charged else 0.0
        for correlation_id, answer in zip(run.correlation_ids, answers, strict=True):
            if is_charged and (charge := self._charge(route, context, size // count - _SIZE.size)):
                charge.seconds = seconds / count
            self._take(route, correlation_id, answer, started, known, charge)
        return True

    def _refuse(self, frame: memoryview) -> None:
        """Refuse an unsupported API or version. ApiVersions gets a response in v0, so that the client can retry."""
        key, version = _KEY_AND_VERSION.unpack_from(frame)
        registration = self._server.handlers.get(key)
        if key == API_VERSIONS and registration is not None:
            (correlation_id,) = _SIZE.unpack_from(frame, _KEY_AND_VERSION.size)
            context = self._context_of(version, None)
            response = registration.handle(context, registration.api.request())
            self._out.put(response_frame(registration.api, 0, correlation_id, response))
            return
        if registration is None:
            raise CloseConnection(f"a request of the unknown API {key} (version {version})")
        low, high = registration.api.served
        raise CloseConnection(
            f"a request of {registration.api.name} in version {version}: expected {low} to {high}"
        )

    def _log_in(self, frame: memoryview, started: float) -> None:
        server = self._server
        reply = server.login.reply(self._admission.authentication, bytes(frame), self._context_of)
        waiting = asyncio.ensure_future(reply)
        self.pending.append(Pending(server.of_login, 0, started, waiting))
        waiting.add_done_callback(self._answered)

    def _logged_in(self, connection: Requester, reply: LoginReply) -> None:
        """Send a response of `login`, which may be the last one."""
        if reply.frame:
            self._out.put(reply.frame)
        if reply.problem:
            self._out.send()
            connection.close(f"authentication failed: {reply.problem}", logging.INFO)
            return
        self._admission.update(connection.close)

    def _take(
        self,
        route: Route,
        correlation_id: int,
        answer: Any,
        started: float,
        known: Known | None,
        charge: Charge | None,
    ) -> None:
        """Send a handler's answer after those to the earlier requests."""
        waiting: asyncio.Future[Any]
        if answer is None or isinstance(answer, Struct):
            if not self.pending:
                self._respond(route, correlation_id, answer, started, known, charge)
                return
            waiting = self._server.loop.create_future()
            waiting.set_result(answer)
        else:
            if isinstance(answer, asyncio.Future):
                waiting = answer
            else:
                waiting = asyncio.ensure_future(answer if charge is None else charge.timed(answer))
            if isinstance(waiting, asyncio.Task):
                waiting.set_name(route.registration.api.name)
        self.pending.append(Pending(route, correlation_id, started, waiting, known, charge))
        waiting.add_done_callback(self._answered)

    def _answered(self, _: Any) -> None:
        """Send the responses that are ready, in order, then continue reading."""
        pending = self.pending
        while pending and pending[0].response.done():
            request = pending.popleft()
            try:
                answer = request.outcome()
            except Exception as error:
                failure = self._failed(request.route, error)
                if (connection := self._connection) is not None:
                    connection.fail(failure)
                error.__traceback__ = None  # its frames hold the request, and the connection
                continue
            if (connection := self._connection) is None:
                continue
            try:
                if isinstance(answer, LoginReply):
                    self._logged_in(connection, answer)
                    continue
                self._respond(
                    request.route,
                    request.correlation_id,
                    answer,
                    request.started,
                    request.known,
                    request.charge,
                )
            except Exception as error:
                connection.fail(error)
        if (connection := self._connection) is None:
            return
        try:
            if not self._out.blocked:
                self._out.send()
        except OSError as error:
            connection.fail(error)
        connection.feed()

    def _respond(
        self,
        route: Route,
        correlation_id: int,
        response: Struct | Parts | None,
        started: float,
        known: Known | None = None,
        charge: Charge | None = None,
    ) -> None:
        connection = self._connection
        if charge is not None and (throttle_ms := charge.settle(response)) and connection is not None:
            self._mute.begin(throttle_ms, connection.unmute)
        encoded = None if known is None else known.encode(correlation_id, response)
        if isinstance(encoded, bytes):
            self._out.put(encoded)
        elif encoded is not None:
            self._out.put_all(encoded, sum(map(len, encoded)))
        elif response is not None:
            if isinstance(response, list):
                parts = response
            else:
                parts = route.registration.api.encode_response_parts(route.version, response)
            size = 0
            for part in parts:
                size += len(part)
            head = route.head
            first = head.pack(size + head.size - _SIZE.size, correlation_id)
            if parts and type(parts[0]) is bytes:
                size -= len(parts[0])
                self._out.put(first + parts[0])
                del parts[0]
            else:
                self._out.put(first)
            if parts:
                self._out.put_all(parts, size)
        route.stats.observe(perf_counter() - started)

    def _charge(self, route: Route, context: RequestContext, size: int) -> Charge | None:
        """The charge of a client's request; brokers have no quotas."""
        session = context.session
        if session.peer_broker is not None:
            return None
        api = route.registration.api
        return Charge(self._server.quotas, session, context.client_id, api, size)

    def _context_of(self, version: int, client_id: str | None) -> RequestContext:
        context, session = self._context, self._admission.authentication.session
        if (
            context is None
            or context.version != version
            or context.client_id != client_id
            or context.session is not session
        ):
            session = self._admission.authentication.identify(client_id)
            context = self._context = RequestContext(
                version, client_id, session, self._admission.authentication, self.connection_id
            )
        return context

    @property
    def _large(self) -> LargeRequests:
        is_client = self._admission.authentication.session.peer_broker is None
        return self._server.large if is_client else self._server.large_of_brokers

    def close(self) -> None:
        """Answer nothing more. Running handlers finish, except waits that end with the connection."""
        self._connection = None  # breaks a reference cycle
        for request in self.pending:
            if request.route.registration.ends_with_connection:
                request.response.cancel()

    def _failed(self, route: Route, error: Exception) -> CloseConnection | MalformedRequest:
        if isinstance(error, CloseConnection | MalformedRequest):
            return error
        session, name = self._admission.authentication.session, route.registration.api.name
        kind = LineKind(session.listener, LineCause.FAILURE, name)
        message = "%s version %d failed"
        self._server.lines.write(kind, session.host, logging.ERROR, message, name, route.version, error=error)
        return CloseConnection(f"{name} failed in the broker")

"""One client's connection: frames in, responses out, in order and within bounds.

A frame is an int32 size and that many bytes. All connections receive into one shared buffer, and whole frames are
handled there at once. Only for an incomplete frame does a connection get its own buffer, which receives the rest
(`request_memory`): an idle connection holds no buffer.
Requests whose handlers keep parts of them are copied first (all but those with records, which are appended when the
handler returns). They are small, and may not exceed MAX_CONTROL_BYTES, because they become objects ten times as large.

A client beyond its quota is answered at once, and then its connection is muted: not read for the throttle time
(KIP-219).

While a handler waits (a long poll, a join), its connection is not read, as in Kafka. But a Produce may follow a
Produce, so that several wait for the disk together. Responses are sent as they become ready (`outbox`). While
the client does not read them, nothing more is read from it, so nothing piles up.

A violation of the protocol (a frame too long, an unknown API, bytes that do not parse) closes the connection with one
line in the log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import struct
from collections import deque
from time import perf_counter
from types import GeneratorType
from typing import Any

from millstream_kafka.protocol import MalformedRequest, mirror_append
from millstream_kafka.protocol.errors import ApiError
from millstream_kafka.protocol.header import decode_request_header
from millstream_kafka.protocol.schema import Struct, TooManyElements
from millstream_process.listening import host_port

from ..runtime.request_memory import CutOffFrame
from ..security.authentication import Authentication
from .channel import ClientChannel
from .charge import Charge
from .handlers import CloseConnection, RequestContext, error_response
from .large_requests import LargeRequests, Parts
from .login import LoginReply
from .other_protocols import MAGIC_BYTES, recognise
from .outbox import Outbox
from .pending import Pending
from .produce_runs import LARGEST, MOST, Run, find_run
from .produce_shortcut import Known, ProduceShortcut
from .routes import API_VERSIONS, OF_LOGIN, Route, response_frame
from .shared import AUTHENTICATION_S, MAX_UNAUTHENTICATED_BYTES, SMALL_BYTES, Shared

PIPELINE_DEPTH = 256
TURN_S = 0.02
"""Longest time one connection may hold the event loop with pipelined requests."""
MAX_CONTROL_BYTES = 8 * 1024 * 1024
"""Largest request without records, in bytes."""
PRODUCE = 0
WITH_RECORDS = {PRODUCE, mirror_append.API.key}

_SIZE = struct.Struct(">i")
_SIZE_AND_KEY = struct.Struct(">ih")
_KEY_AND_VERSION = struct.Struct(">hh")

log = logging.getLogger(__name__)


class ClientConnection:
    """One client."""

    __slots__ = (
        "_access",
        "_backlog",
        "_channel",
        "_context",
        "_frame",
        "_held",
        "_muted",
        "_muted_until",
        "_out",
        "_prefix",
        "_route",
        "_server",
        "_shortcut",
        "_timer",
        "active_at",
        "authentication",
        "connection_id",
        "host",
        "listener",
        "peer",
        "pending",
    )

    def __init__(
        self, server: Shared, channel: ClientChannel, authentication: Authentication, port: int
    ) -> None:
        self._server = server
        self._channel = channel
        self.authentication = authentication
        self.connection_id = next(server.connection_ids)
        self.host = authentication.session.host
        self.listener = authentication.session.listener
        self.peer = host_port(self.host, port)
        self._access = server.before_authentication if authentication.is_required else server.full
        self._timer: asyncio.TimerHandle | None = None
        """Before authentication: its time limit; afterwards: the end of the session, if it has one."""
        self._held = 0
        """Bytes that count before authentication."""
        self._context: RequestContext | None = None
        """The last request's, which the next ones share while nothing in it differs."""
        self.active_at = server.loop.time()
        self.pending: deque[Pending] = deque()
        self._frame: CutOffFrame | None = None
        self._shortcut = ProduceShortcut()
        self._route: Route | None = None
        """The last request's route, for `__repr__`."""
        self._prefix = b""
        """Received bytes, fewer than a frame's size and API key take."""
        self._backlog: memoryview | None = None
        """Received bytes that wait for earlier requests."""
        self._muted: asyncio.TimerHandle | None = None
        """Ends the time in which nothing is read, because of a quota."""
        self._muted_until = 0.0
        self._out = Outbox(channel, server.loop, server.stats, self._drained, self._fail)
        if authentication.is_required:
            self._timer = server.loop.call_later(AUTHENTICATION_S, self._is_too_slow)
        channel.watch_readable(self._readable)

    def __repr__(self) -> str:
        last = "nothing yet" if self._route is None else f"{self._route.registration.api.name} last"
        return f"the connection of {self.peer} ({last})"

    # Receiving

    def _readable(self) -> None:
        """Receive, handle the complete frames, and send their responses."""
        server = self._server
        if (
            self._backlog is not None
            or self._out.blocked
            or self._muted is not None
            or (self.pending and not self._may_follow())
        ):
            self._check_for_end()
            return
        view = server.view
        try:
            if (frame := self._frame) is not None:
                if not server.memory.may_receive(self):
                    self._channel.unwatch_readable()  # until `feed`
                    return
                buffers = frame.buffers(view)
                count = self._channel.receive_into(buffers)
            elif prefix := self._prefix:
                view[: len(prefix)] = prefix
                count = self._channel.receive(view[len(prefix) :])
            else:
                count = self._channel.receive(view)
            if not count:
                raise CloseConnection
            server.stats.bytes_in += count
            start = 0
            if frame is not None:
                received = min(count, len(buffers[0]))
                frame.received(received)
                count -= received
                if (start := min(count, frame.missing)) > 0:
                    frame.take(view[:start])
                if frame.missing:
                    return
                self._frame = None
                try:
                    self._handle(frame.whole()[_SIZE.size :], perf_counter())
                finally:
                    server.memory.end(self)
                    self._release()
            elif prefix:
                count += len(prefix)
                self._prefix = b""
            self.active_at = server.loop.time()
            self._consume(view, start, count)
            if not self._out.blocked:
                self._out.send()
        except (BlockingIOError, InterruptedError):
            return
        except Exception as error:
            self._fail(error)

    def _consume(self, view: memoryview, start: int, end: int) -> None:
        """Handle the complete frames in `view[start:end]`, keep the rest."""
        server, now = self._server, perf_counter()
        over = now + TURN_S
        one_by_one = start
        while end - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(view, start)
            if size > MAX_CONTROL_BYTES and (
                problem := recognise(
                    bytes(view[start : min(end, start + MAGIC_BYTES)]), self.authentication.session.listener
                )
            ):
                raise CloseConnection(problem)
            if not 8 <= size <= self._access.max_request_bytes and not self._may_send(size):
                raise CloseConnection(
                    f"a request of {size} bytes: expected 8 to {self._access.max_request_bytes}"
                    f" ({self._access.limit}); is it Kafka's protocol?"
                )
            if size > MAX_CONTROL_BYTES:
                if end - start < _SIZE_AND_KEY.size:
                    break
                if (key := _SIZE_AND_KEY.unpack_from(view, start)[1]) not in WITH_RECORDS:
                    raise CloseConnection(
                        f"a request of {size} bytes (API {key}): only Produce and MirrorAppend may exceed"
                        f" {MAX_CONTROL_BYTES}"
                    )
            begin, start_of_next = start + _SIZE.size, start + _SIZE.size + size
            if (
                self._out.blocked
                or self._muted is not None
                or (self.pending and not self._may_follow(view, begin, end))
            ):
                return self._keep(view[start:end])
            if start_of_next > end:
                if not self.authentication.is_complete:
                    self._hold(size)
                self._frame = server.memory.begin(self, _SIZE.size + size, view[start:end])
                return None
            run = None
            if start_of_next < end and size <= LARGEST and start >= one_by_one:
                run = find_run(
                    self._shortcut, view, start, end, min(MOST, PIPELINE_DEPTH - len(self.pending))
                )
            if run is not None and self._handle_run(run, run.end - start, now):
                start = run.end
            else:
                self._handle(view[begin:start_of_next], now)
                start = start_of_next
                if run is not None:
                    one_by_one = run.end
            if start < end and (now := perf_counter()) > over:
                server.loop.call_soon(self.feed)
                return self._keep(view[start:end])
        self._prefix = bytes(view[start:end])
        return None

    def _keep(self, rest: memoryview) -> None:
        self._backlog = memoryview(bytearray(rest))

    def _may_follow(self, view: memoryview | None = None, begin: int = 0, end: int = 0) -> bool:
        """Whether a request may be handled although an earlier one waits."""
        last, is_alone = self.pending[-1].route.registration, self.pending[-1].is_alone
        if not last.pipelined or is_alone or len(self.pending) >= PIPELINE_DEPTH:
            return False
        if self._server.memory.is_full:
            return False
        if view is None or end - begin < 2:
            return True
        return int.from_bytes(view[begin : begin + 2], "big") == last.api.key

    def _check_for_end(self) -> None:
        """Find out whether the client sends out of turn or has disconnected."""
        if self._muted is not None and self._backlog is not None:
            self._channel.unwatch_readable()  # it sent more before it disconnected; until `feed`
            return
        try:
            if self._channel.has_ended():
                self.close()
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self._channel.unwatch_readable()  # until `feed`

    def feed(self) -> None:
        """Continue with the kept bytes, once the requests before them are done."""
        if (
            self._channel.is_closed
            or self._out.blocked
            or self._muted is not None
            or (self.pending and not self._may_follow())
        ):
            return
        try:
            if (backlog := self._backlog) is not None:
                self._backlog = None
                self._consume(backlog, 0, len(backlog))
                if not self._out.blocked:
                    self._out.send()
            if self._backlog is None and not self._channel.is_reading:
                self._channel.watch_readable(self._readable)
        except Exception as error:
            self._fail(error)

    def ready(self) -> int:
        """See `request_memory.Receiver`."""
        return self._channel.arrived()

    # Handling

    @property
    def _large(self) -> LargeRequests:
        is_client = self.authentication.session.peer_broker is None
        return self._server.large if is_client else self._server.large_of_brokers

    def _handle(self, frame: memoryview, started: float) -> None:
        try:
            route = self._access.routes.get(_KEY_AND_VERSION.unpack_from(frame))
        except struct.error:  # a token without a request around it
            route = None
        if route is None:
            if not self._log_in(frame, started):
                self._refuse(frame)
            return
        self._route = route
        version, registration = route.version, route.registration
        answer: Any
        known = self._shortcut.find(frame, version) if registration.pipelined else None
        if known is not None:
            request = known.request
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
        try:
            answer = registration.handle(context, request)
            if type(answer) is GeneratorType:
                answer = self._large.started(registration, version, answer, charge)
        except ApiError as error:
            answer = error_response(route.registration.api, error)
        except Exception as error:
            raise self._failed(route, error) from None
        if known is not None:
            known.data.records = None
        elif registration.api.key == PRODUCE and registration.pipelined:
            # A request that is not pipelined may wait for the controller, and still needs its records.
            self._shortcut.learn(frame, version, client_id, request)
        if charge is not None:
            charge.seconds += perf_counter() - started
        self._take(route, correlation_id, answer, started, known, charge)

    def _handle_run(self, run: Run, size: int, started: float) -> bool:
        """Handle requests of `size` bytes together; returns whether that was possible. If not, nothing has changed."""
        known = run.known
        route = self._access.routes.get((PRODUCE, known.version))
        if route is None or (handle := route.registration.run) is None:
            return False
        try:
            context = self._context_of(known.version, known.client_id)
            answers = handle(context, known.request, run)
        except Exception as error:
            raise self._failed(route, error) from None
        if answers is None:
            return False
        self._route = route
        charge, is_charged, count = None, self._server.quotas.is_active, len(answers)
        seconds = perf_counter() - started if is_charged else 0.0
        for correlation_id, answer in zip(run.correlation_ids, answers, strict=True):
            if is_charged and (charge := self._charge(route, context, size // count - _SIZE.size)):
                charge.seconds = seconds / count
            self._take(route, correlation_id, answer, started, known, charge)
        return True

    def _charge(self, route: Route, context: RequestContext, size: int) -> Charge | None:
        """The charge of a client's request; brokers have no quotas."""
        session = context.session
        if session.peer_broker is not None:
            return None
        api = route.registration.api
        return Charge(self._server.quotas, session, context.client_id, api, size)

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

    def _failed(self, route: Route, error: Exception) -> CloseConnection | MalformedRequest:
        if isinstance(error, CloseConnection | MalformedRequest):
            return error
        log.error("%s version %d failed", route.registration.api.name, route.version, exc_info=error)
        return CloseConnection(f"{route.registration.api.name} failed in the broker")

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

    def _may_send(self, size: int) -> bool:
        """Whether a frame is a token without a request around it, or has to wait until that is known."""
        if self.pending and self.pending[-1].route is self._server.of_login:
            return True
        return self.authentication.is_bare and 0 <= size <= self._access.max_request_bytes

    # Authentication

    def _log_in(self, frame: memoryview, started: float) -> bool:
        """Handle a frame by `login`; False if it is a request like any other."""
        authentication, server = self.authentication, self._server
        if not authentication.is_required:
            return False
        is_of_login = int.from_bytes(frame[:2], "big") in OF_LOGIN
        if authentication.is_complete and not authentication.is_expired and not is_of_login:
            return False
        reply = server.login.reply(authentication, bytes(frame), self._context_of)
        waiting = asyncio.ensure_future(reply)
        self.pending.append(Pending(server.of_login, 0, started, waiting))
        waiting.add_done_callback(self._answered)
        return True

    def _logged_in(self, reply: LoginReply) -> None:
        """Send a response of `login`, which may be the last one."""
        if reply.frame:
            self._out.put(reply.frame)
        if reply.problem:
            self._out.send()
            self.close(f"authentication failed: {reply.problem}", logging.INFO)
            return
        server, authentication = self._server, self.authentication
        access = server.authenticated if authentication.is_complete else server.before_authentication
        if access is not self._access or self._timer is None:  # without one: after the end of a session
            self._access = access
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not authentication.is_complete:
                self._timer = server.loop.call_later(AUTHENTICATION_S, self._is_too_slow)
            elif (expires_at := authentication.session.expires_at) is not None:
                self._timer = server.loop.call_at(expires_at, self._expire)

    def _is_too_slow(self) -> None:
        self.close(f"not authenticated within {AUTHENTICATION_S:g} s", logging.INFO)

    def _expire(self) -> None:
        """From now on, `login` handles each frame."""
        self._timer = None
        self._access = self._server.before_authentication

    def _hold(self, size: int) -> None:
        """Count an incomplete request of a client that has not authenticated."""
        if size > SMALL_BYTES:
            if self._server.unauthenticated_bytes + size > MAX_UNAUTHENTICATED_BYTES:
                raise CloseConnection("too many large requests before authentication")
            self._held = size
            self._server.unauthenticated_bytes += size

    def _release(self) -> None:
        self._server.unauthenticated_bytes -= self._held
        self._held = 0

    def _context_of(self, version: int, client_id: str | None) -> RequestContext:
        context, session = self._context, self.authentication.session
        if (
            context is None
            or context.version != version
            or context.client_id != client_id
            or context.session is not session
        ):
            context = self._context = RequestContext(
                version, client_id, session, self.authentication, self.connection_id
            )
        return context

    def _answered(self, _: Any) -> None:
        """Send the responses that are ready, in order, then continue reading."""
        pending = self.pending
        while pending and pending[0].response.done():
            request = pending.popleft()
            try:
                answer = request.outcome()
            except Exception as error:
                self._fail(self._failed(request.route, error))
                error.__traceback__ = None  # its frames hold the request, and the connection
                continue
            try:
                if self._channel.is_closed:
                    continue
                if isinstance(answer, LoginReply):
                    self._logged_in(answer)
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
                self._fail(error)
        try:
            if not self._out.blocked:
                self._out.send()
        except OSError as error:
            self._fail(error)
        self.feed()

    def _respond(
        self,
        route: Route,
        correlation_id: int,
        response: Struct | Parts | None,
        started: float,
        known: Known | None = None,
        charge: Charge | None = None,
    ) -> None:
        if charge is not None and (throttle_ms := charge.settle(response)):
            self._mute(throttle_ms)
        encoded = None if known is None else known.encode(correlation_id, response)
        if encoded is not None:
            self._out.put(encoded)
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

    # Throttling

    def _mute(self, throttle_ms: int) -> None:
        """Read nothing more for that time. What the client has sent, or sends meanwhile, waits."""
        loop = self._server.loop
        until = loop.time() + throttle_ms / 1000
        if self._muted is None:
            self._server.stats.muted += 1
        elif self._muted_until >= until:
            return
        else:
            self._muted.cancel()
        self._muted_until = until
        self._muted = loop.call_at(until, self._unmuted)

    def _unmuted(self) -> None:
        self._end_mute()
        self.active_at = self._server.loop.time()
        self.feed()

    def _end_mute(self) -> None:
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
            self._server.stats.muted -= 1

    # Sending and the end

    def _drained(self) -> None:
        """The client has read everything: continue with its requests."""
        self.active_at = self._server.loop.time()
        self.feed()

    def _fail(self, error: Exception) -> None:
        """Close the connection because of an error."""
        if isinstance(error, MalformedRequest):
            self.close(f"a request that cannot be read: {error}")
        elif isinstance(error, OSError):
            if error.filename is not None:
                self._server.unreadable(error)
            self.close("" if error.errno in _GONE else error.strerror or repr(error), logging.INFO)
        elif isinstance(error, CloseConnection):
            self.close(str(error))
        else:
            log.error("a connection failed", exc_info=error)
            self.close("the broker failed")

    def close(self, reason: str = "", level: int = logging.WARNING) -> None:
        """Close the channel. Running handlers finish, except waits that end with the connection."""
        server = self._server
        if self._channel.is_closed:
            return
        if reason:
            log.log(level, "closed the connection of %s: %s", self.peer, reason)
        self._end_mute()
        self._out.close()
        self._channel.close()
        server.connections.discard(self)
        for request in self.pending:
            if request.route.registration.ends_with_connection:
                request.response.cancel()
        if self._frame is not None:
            self._frame = None
            server.memory.end(self)
        self._release()
        if self._timer is not None:
            self._timer.cancel()
        self._backlog = None


_GONE = {errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.ENOTCONN}

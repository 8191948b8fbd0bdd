"""One client's connection: frames are received within bounds, and handled as `requests`.

A frame is an int32 size and that many bytes. All connections receive into one shared buffer, and whole frames are
handled there at once. Only for an incomplete frame does a connection get its own buffer, which receives the rest
(`request_memory`): an idle connection holds no buffer.
Requests without records may not exceed MAX_CONTROL_BYTES, because they become objects ten times as large.

Nothing is read from a connection while an earlier request must be done first (`requests`), while its client is beyond
a quota (`mute`), and while the client does not read its responses (`outbox`): so nothing piles up.

A violation of the protocol (a frame too long, an unknown API, bytes that do not parse) closes the connection with one
line in the log.
"""

from __future__ import annotations

import errno
import logging
import struct
from time import perf_counter

from millstream_kafka.protocol import MalformedRequest, mirror_append, produce
from millstream_process.listening import host_port

from ..runtime.request_memory import CutOffFrame
from ..security.authentication import Authentication
from .admission import Admission
from .channel import ClientChannel
from .connection_lines import LineCause, LineKind
from .handlers import CloseConnection
from .mute import Mute
from .other_protocols import MAGIC_BYTES, recognise
from .outbox import Outbox
from .produce_runs import LARGEST
from .requests import ConnectionRequests
from .shared import Shared

TURN_S = 0.02
"""Longest time one connection may hold the event loop with pipelined requests."""
MAX_CONTROL_BYTES = 8 * 1024 * 1024
"""Largest request without records, in bytes."""
WITH_RECORDS = {produce.API.key, mirror_append.API.key}

_SIZE = struct.Struct(">i")
_SIZE_AND_KEY = struct.Struct(">ih")


class ClientConnection:
    """One client."""

    __slots__ = (
        "_admission",
        "_backlog",
        "_channel",
        "_frame",
        "_mute",
        "_out",
        "_prefix",
        "_requests",
        "_server",
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
        self.host = authentication.session.host
        self.listener = authentication.session.listener
        self.peer = host_port(self.host, port)
        self.active_at = server.loop.time()
        self._frame: CutOffFrame | None = None
        self._prefix = b""
        """Received bytes, fewer than a frame's size and API key take."""
        self._backlog: memoryview | None = None
        """Received bytes that wait for earlier requests."""
        self._admission = Admission(server, authentication)
        self._mute = Mute(server.loop, server.stats)
        self._out = Outbox(channel, server.loop, server.stats, self._drained, self.fail)
        self._requests = ConnectionRequests(server, self, self._admission, self._out, self._mute)
        self.connection_id = self._requests.connection_id
        self.pending = self._requests.pending
        self._admission.begin(self.close)
        channel.watch_readable(self._readable)

    def __repr__(self) -> str:
        route = self._requests.route
        last = "nothing yet" if route is None else f"{route.registration.api.name} last"
        return f"the connection of {self.peer} ({last})"

    # Receiving

    def _readable(self) -> None:
        """Receive, handle the complete frames, and send their responses."""
        server = self._server
        if (
            self._backlog is not None
            or self._out.blocked
            or self._mute.is_on
            or (self.pending and not self._requests.may_follow())
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
                    self._requests.handle(frame.whole()[_SIZE.size :], perf_counter())
                finally:
                    server.memory.end(self)
                    self._admission.release()
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
            self.fail(error)

    def _consume(self, view: memoryview, start: int, end: int) -> None:
        """Handle the complete frames in `view[start:end]`, keep the rest."""
        server, requests, access, now = self._server, self._requests, self._admission.access, perf_counter()
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
            if not 8 <= size <= access.max_request_bytes and not requests.may_send(size):
                raise CloseConnection(
                    f"a request of {size} bytes: expected 8 to {access.max_request_bytes}"
                    f" ({access.limit}); is it Kafka's protocol?"
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
                or self._mute.is_on
                or (self.pending and not requests.may_follow(view, begin, end))
            ):
                return self._keep(view[start:end])
            if start_of_next > end:
                self._admission.hold(size)
                self._frame = server.memory.begin(self, _SIZE.size + size, view[start:end])
                return None
            run = None
            if start_of_next < end and size <= LARGEST and start >= one_by_one:
                run = requests.find_run(view, start, end)
            if run is not None and requests.handle_run(run, run.end - start, now):
                start = run.end
            else:
                requests.handle(view[begin:start_of_next], now)
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

    def _check_for_end(self) -> None:
        """Find out whether the client sends out of turn or has disconnected."""
        if self._mute.is_on and self._backlog is not None:
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
            or self._mute.is_on
            or (self.pending and not self._requests.may_follow())
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
            self.fail(error)

    def ready(self) -> int:
        """See `request_memory.Receiver`."""
        return self._channel.arrived()

    def unmute(self) -> None:
        """The throttle time is over."""
        self._mute.end()
        self.active_at = self._server.loop.time()
        self.feed()

    # Sending and the end

    def _drained(self) -> None:
        """The client has read everything: continue with its requests."""
        self.active_at = self._server.loop.time()
        self.feed()

    def fail(self, error: Exception) -> None:
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
            kind = LineKind(self.listener, LineCause.FAILURE)
            self._server.lines.write(kind, self.host, logging.ERROR, "a connection failed", error=error)
            self.close("the broker failed")

    def close(self, reason: str = "", level: int = logging.WARNING) -> None:
        """Close the channel."""
        server = self._server
        if self._channel.is_closed:
            return
        if not reason and (
            refusal := self.authentication.refusal
        ):  # its client left without an acknowledgement
            reason, level = f"authentication failed: {refusal}", logging.INFO
        if reason:
            kind = LineKind(self.listener, LineCause.REQUEST)
            if not self.authentication.is_complete:
                kind = LineKind(self.listener, LineCause.LOGIN, self.authentication.mechanism)
            server.lines.write(
                kind,
                self.host,
                level,
                "closed the connection of %s on listener %s: %s",
                self.peer,
                self.listener,
                reason,
            )
        self._mute.end()
        self._out.close()
        self._channel.close()
        server.connections.discard(self)
        self._requests.close()
        if self._frame is not None:
            self._frame = None
            server.memory.end(self)
        self._admission.end()
        self._backlog = None


_GONE = {errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.ENOTCONN}

"""One connection to one broker: negotiates versions, pipelines calls, matches responses.

A frame on the wire is an int32 size, a header and a body. A response is received straight into a buffer of its own,
so that the records of a Fetch response are memoryviews of what the kernel delivered. A request is written as a
list of buffers, so that the records of a Produce request are not copied here either.

Invariants: a call sends its request once and never repeats it, as it may not be idempotent; only the caller may. Every
call ends: with a response, at its timeout, or when the connection ends.
"""

from __future__ import annotations

import asyncio
import errno
import ssl as tls
import struct
import time
from collections.abc import Iterable
from socket import SOCK_STREAM
from ssl import SSLContext
from typing import Any, Final, cast

from .. import __version__
from ..protocol import MalformedRequest, api_versions
from ..protocol.api import Api, Req, Res
from ..protocol.errors import ErrorCode
from ..protocol.header import RequestHeader, decode_response_header, encode_request_header
from .errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    MalformedResponse,
    RequestTimedOut,
    SecurityFailed,
    TlsFailed,
    UnsupportedApi,
)
from .frames import Frames
from .sasl import Login, authenticate

MAX_RESPONSE_BYTES: Final = 100 * 1024 * 1024
MAX_BEFORE_LOGIN: Final = 64 * 1024
"""Largest response, in bytes, before the login: until then anybody may be at the other end."""
CONNECT_S: Final = 2.5
"""Time limit for connecting, in seconds: the address of a lost machine may not even refuse."""
SESSION_SHARE: Final = 0.8
"""Share of a session's lifetime after which a new connection replaces this one: the broker would end it (KIP-368)."""
_SIZE: Final = struct.Struct(">i")
_TLS_ALERT: Final = b"\x15\x03"
_UNSUPPORTED_VERSION: Final = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class Connection(asyncio.BufferedProtocol):
    """One connection to one broker. Any number of tasks may call at once; the broker answers in order."""

    def __init__(self, host: str, port: int, client_id: str, timeout: float, max_response_bytes: int) -> None:
        """For ``open`` only."""
        self.host = host
        self.port = port
        self.client_id = client_id
        self.timeout = timeout
        self.max_response_bytes = max_response_bytes
        self.versions: dict[int, tuple[int, int]] = {}
        """The broker's APIs: API key to the lowest and highest version."""
        self.expires = float("inf")
        """Time to reconnect, as ``time.monotonic`` counts."""
        self._transport: asyncio.WriteTransport | None = None
        self._is_made = False
        """Whether the loop has handed the connection over: before that, uvloop does not report its end."""
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._error: BrokerError | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._turn = asyncio.Lock()
        """Orders writes: requests leave in the order of their calls, even after back-pressure."""
        self._correlation_id = 0
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._has_answered = False  # anything but ApiVersions, which needs no login
        self._tls_failure = ""
        self._head = memoryview(bytearray(_SIZE.size))
        self._frames = Frames()
        self._frame: memoryview | None = None
        self._filled = 0

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        client_id: str = "millstream",
        *,
        timeout: float = 30.0,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        ssl: SSLContext | None = None,
        login: Login | None = None,
    ) -> Connection:
        """Connect, request the broker's versions and log in; ``timeout`` (s) covers this, and each call after it.

        The name is resolved each time; an address that does not accept within CONNECT_S is skipped. Raises
        ConnectFailed, or its SecurityFailed if a retry is pointless.
        """
        connection = cls(host, port, client_id, timeout, min(max_response_bytes, MAX_BEFORE_LOGIN))
        try:
            async with asyncio.timeout(timeout):
                await connection._connect(ssl)
                await connection._negotiate()
                if login is not None:
                    lifetime = await authenticate(connection, login)
                    if lifetime is not None:
                        connection.expires = time.monotonic() + lifetime * SESSION_SHARE
                connection.max_response_bytes = max_response_bytes
                return connection
        except TimeoutError:
            problem = f"no connection within {timeout:g} s"
        except SecurityFailed:
            await connection.close()
            raise
        except BrokerError as error:
            problem = error.problem
        except tls.SSLError as error:
            connection._tls_failure = _tls_problem(error)
            problem = ""
        except OSError as error:
            problem = error.strerror or str(error) or "the connection was lost"
            if ssl is not None and isinstance(error, ConnectionResetError):
                problem += " in the TLS handshake: the listener may have no TLS"
        except BaseException:
            await connection.close()
            raise
        await connection.close()
        if connection._tls_failure:
            raise TlsFailed(host, port, connection._tls_failure)
        raise ConnectFailed(host, port, problem)

    async def _connect(self, ssl: SSLContext | None) -> None:
        """Connect to the first of the name's addresses that accepts. Raises the OSError of the last one."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=SOCK_STREAM)
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        server = self.host if ssl is not None else None
        for number, address in enumerate(addresses, 1):
            try:
                async with asyncio.timeout(CONNECT_S):
                    await loop.create_connection(
                        lambda: self, address, self.port, ssl=ssl, server_hostname=server
                    )
            except TimeoutError:
                if number == len(addresses):
                    raise OSError(errno.EHOSTUNREACH, f"no connection within {CONNECT_S:g} s") from None
            except OSError as error:
                if number == len(addresses) or isinstance(error, tls.SSLError):
                    raise
            else:
                self._is_made = True
                return

    @property
    def is_closed(self) -> bool:
        return self._error is not None

    @property
    def address(self) -> tuple[int, Any] | None:
        """The broker's address family and address, as sockets take them; None if the connection has ended."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        try:
            return None if sock is None else (int(sock.family), sock.getpeername())
        except OSError:
            return None

    def version(self, api: Api[Any, Any]) -> int:
        """The highest version that both sides support; raises UnsupportedApi."""
        low, high = api.served
        if api.key not in self.versions:
            raise UnsupportedApi(self.host, self.port, f"the broker does not serve {api.name}")
        broker_low, broker_high = self.versions[api.key]
        version = min(high, broker_high)
        if version < max(low, broker_low):
            raise UnsupportedApi(
                self.host,
                self.port,
                f"the broker serves {api.name} in versions {broker_low} to {broker_high}, we speak {low} to {high}",
            )
        return version

    async def call(
        self, api: Api[Req, Res], version: int | None, request: Req, *, timeout: float | None = None
    ) -> Res:
        """Send a request and wait for its response; ``version`` None is the highest that both sides support.

        A Produce request with acks 0 has no response: the call returns an empty one once it is written.
        """
        version = self.version(api) if version is None else version
        parts = api.encode_request_parts(version, request)
        if getattr(request, "acks", None) == 0:
            await self._send(api, version, parts)
            return api.response()
        return await self.call_encoded(api, version, parts, timeout=timeout)

    async def call_encoded(
        self, api: Api[Any, Res], version: int, parts: Iterable[Any], *, timeout: float | None = None
    ) -> Res:
        """``call`` with a body that is already encoded, as buffers; they must not change until it returns."""
        timeout = self.timeout if timeout is None else timeout
        response: asyncio.Future[memoryview] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._send(api, version, parts, response)
                frame = await response
        except TimeoutError:
            raise RequestTimedOut(
                self.host, self.port, f"no response to {api.name} within {timeout:g} s"
            ) from None
        if api.key != api_versions.API.key:
            self._has_answered = True
        try:
            _, offset = decode_response_header(frame, api.has_flexible_response_header(version))
            if api.key == api_versions.API.key and bytes(frame[offset : offset + 2]) == _UNSUPPORTED_VERSION:
                version = 0  # this error always comes in v0
            return api.decode_response(version, frame, offset)
        except MalformedRequest as error:
            malformed = MalformedResponse(self.host, self.port, str(error))
            self._fail(malformed)
            raise malformed from None

    def abandon(self) -> None:
        """Close without waiting for the end; open calls raise ConnectionLost."""
        self._fail(ConnectionLost(self.host, self.port, "the connection was closed here"))

    async def close(self) -> None:
        """Close; open calls raise ConnectionLost."""
        self.abandon()
        if self._is_made:
            await asyncio.shield(self._closed)

    async def retire(self) -> None:
        """Close once the calls so far have ended."""
        if self._waiting:
            await asyncio.wait(list(self._waiting.values()))
        await self.close()

    async def closed(self) -> None:
        """Return when either side has ended the connection."""
        await asyncio.shield(self._closed)

    async def _negotiate(self) -> None:
        request = api_versions.ApiVersionsRequest(
            client_software_name="millstream", client_software_version=__version__
        )
        version = api_versions.API.versions[1]
        response = await self.call(api_versions.API, version, request)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = [
                served.max_version for served in response.api_keys if served.api_key == api_versions.API.key
            ]
            version = min(version - 1, *known) if known else 0
            response = await self.call(api_versions.API, version, request)
        if response.error_code:
            error = ErrorCode.of(response.error_code)
            raise ConnectFailed(self.host, self.port, f"ApiVersions was answered with {error.name}")
        self.versions = {
            served.api_key: (served.min_version, served.max_version) for served in response.api_keys
        }

    async def _send(
        self,
        api: Api[Any, Any],
        version: int,
        parts: Iterable[Any],
        response: asyncio.Future[memoryview] | None = None,
    ) -> None:
        async with self._turn:
            while not self._writable.is_set():
                await self._writable.wait()
        if self._error is not None:
            raise self._error
        assert self._transport is not None
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = encode_request_header(RequestHeader(api.key, version, self._correlation_id, self.client_id))
        buffers = [head, *parts]
        buffers[0] = _SIZE.pack(sum(map(len, buffers))) + head
        if response is not None:
            self._waiting[self._correlation_id] = response
        self._transport.writelines(buffers)

    def _fail(self, error: BrokerError) -> None:
        """End the connection; waiting calls get the error."""
        if self._error is None:
            self._error = error
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()
        for response in self._waiting.values():
            if not response.done():
                response.set_exception(self._error)
        self._waiting.clear()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        if self._error is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f"the connection was lost ({exc})" if exc else "the broker closed the connection"
        if isinstance(exc, tls.SSLError):
            self._tls_failure = _tls_problem(exc)
        elif not self._has_answered:
            reason += " before it answered: its listener may require TLS or SASL, or have no TLS"
        self._fail(ConnectionLost(self.host, self.port, reason))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._head if self._frame is None else self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            if self._filled == _SIZE.size:
                self._begin_frame()
        elif self._filled == len(self._frame):
            frame, self._frame, self._filled = self._frame, None, 0
            self._finish_frame(frame)

    def _begin_frame(self) -> None:
        (size,) = _SIZE.unpack(self._head)
        if not _SIZE.size <= size <= self.max_response_bytes:
            problem = f"a response of {size} bytes: {_SIZE.size} to {self.max_response_bytes} are allowed"
            if bytes(self._head[:2]) == _TLS_ALERT:
                problem = "it answers in TLS: its listener requires TLS"
            self._fail(MalformedResponse(self.host, self.port, problem))
        else:
            self._frame = self._frames.take(size)
        self._filled = 0

    def _finish_frame(self, frame: memoryview) -> None:
        (correlation_id,) = _SIZE.unpack_from(frame)
        response = self._waiting.pop(correlation_id, None)
        if response is None:
            problem = f"a response with the correlation id {correlation_id}, which nothing waits for"
            self._fail(MalformedResponse(self.host, self.port, problem))
        elif not response.done():  # done means that it timed out or was cancelled
            response.set_result(frame)


def _tls_problem(error: tls.SSLError) -> str:
    """Describe the problem and the remedy."""
    if isinstance(error, tls.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}: check CA certificates and bootstrap"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason and ("certificate" in reason or "unknown ca" in reason):
        return f"it refuses our certificate: {reason}: check the client certificate and its key"
    return f"TLS failed: {reason}: the listener may have no TLS"

"""The frames of a client on a listener that requires authentication, until it has authenticated (KIP-43, KIP-152).

Each frame gets at most one response. What ends the connection, and when, is as in Kafka:

- a failed authentication, also one that begins wrongly, is answered and closed together, after
  `connection.failed.authentication.delay.ms`, so that guessing takes time;
- another request before SaslHandshake, a second ApiVersions, bytes that do not parse: closed at once, unanswered;
- another request between SaslHandshake and the end: an empty response of its API, and closed.

Requests of other APIs are never decoded here.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from millstream_kafka.protocol import MalformedRequest, sasl_authenticate, sasl_handshake
from millstream_kafka.protocol.api import APIS, Api
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.header import decode_request_header
from millstream_kafka.protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from millstream_kafka.protocol.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from millstream_kafka.protocol.schema import Struct

from ..security.authentication import AFTER_THE_END, PROTOCOL, Authentication, LoginState
from .handlers import CloseConnection, Handlers, RequestContext
from .routes import API_VERSIONS, response_frame

_SIZE = struct.Struct(">i")
ContextOf = Callable[[int, str | None], RequestContext]


class LoginReply(NamedTuple):
    """The response to a frame, as a frame; with a problem, the connection ends after it."""

    frame: bytes
    problem: str = ""


class _Failed(Exception):
    """The authentication failed: respond after the delay, and close."""

    def __init__(self, problem: str, frame: bytes = b"") -> None:
        super().__init__(problem)
        self.frame = frame


class LoginFrames:
    """Handles the frames of all connections of a broker."""

    def __init__(self, handlers: Handlers, delay_s: Callable[[], float]) -> None:
        """`delay_s` is the pause before a failure is answered."""
        self._handlers = handlers
        self._delay_s = delay_s

    async def reply(self, authentication: Authentication, frame: bytes, context_of: ContextOf) -> LoginReply:
        """Raises CloseConnection, MalformedRequest: the connection ends at once."""
        try:
            return LoginReply(await self._answer(authentication, frame, context_of))
        except _Failed as failed:
            await asyncio.sleep(self._delay_s())
            return LoginReply(failed.frame, authentication.refusal or str(failed))

    async def _answer(self, authentication: Authentication, frame: bytes, context_of: ContextOf) -> bytes:
        if authentication.state is LoginState.WRONG:  # recorded when it was chosen
            raise _Failed("another mechanism than before was chosen to authenticate again")
        if authentication.state is LoginState.EXCHANGE and authentication.is_bare:
            try:
                token = (await authentication.step(frame)).auth_bytes
            except ApiError as error:
                raise _Failed(str(error)) from None
            return _SIZE.pack(len(token)) + token
        try:
            (key, version, correlation_id, client_id), offset = decode_request_header(frame)
            api = APIS[key]
        except (MalformedRequest, KeyError):
            if authentication.state is LoginState.INITIAL:
                authentication.refused(PROTOCOL, "its first bytes are no request")
                raise _Failed("its first bytes are no request") from None
            raise CloseConnection("a request that cannot be read, before authentication") from None

        authentication.identify(client_id)

        def framed(version: int, response: Struct) -> bytes:
            return response_frame(api, version, correlation_id, response)

        if authentication.is_complete:
            return self._after(authentication, api, version, frame, offset, framed)
        if authentication.state is LoginState.EXCHANGE:
            if api is not sasl_authenticate.API:
                raise _refused_in_exchange(api, version, framed)
            request: Any = _decoded(api, version, frame, offset)
            return await _step(authentication, request, version, framed)
        if key == API_VERSIONS:
            if authentication.state is LoginState.HANDSHAKE:
                raise CloseConnection("a second ApiVersions before SaslHandshake")
            authentication.state = LoginState.VERSIONS
            context = context_of(version, client_id)
            served = api.serves(version)
            request = _decoded(api, version, frame, offset) if served else api.request()
            response: Any = self._handlers[api.key].handle(context, request)
            if not response.error_code:
                authentication.state = LoginState.HANDSHAKE
            return framed(version if served else 0, response)
        if api is sasl_handshake.API:
            return _handshake(authentication, version, frame, offset, framed)
        raise CloseConnection(
            f"{api.name} before authentication, which {authentication.session.listener} requires"
        )

    def _after(
        self,
        authentication: Authentication,
        api: Api[Any, Any],
        version: int,
        frame: bytes,
        offset: int,
        framed: Callable[[int, Struct], bytes],
    ) -> bytes:
        """SaslHandshake and SaslAuthenticate after authentication, and any request once the session has expired."""
        if api is sasl_handshake.API and authentication.may_begin_again():
            return _handshake(authentication, version, frame, offset, framed)
        if authentication.is_expired:
            raise CloseConnection(f"{api.name} after its session has expired")
        _decoded(api, version, frame, offset)
        code = ErrorCode.ILLEGAL_SASL_STATE
        if api is sasl_handshake.API:
            return framed(version, SaslHandshakeResponse(code))
        return framed(version, SaslAuthenticateResponse(code, AFTER_THE_END))


def _handshake(
    authentication: Authentication,
    version: int,
    frame: bytes,
    offset: int,
    framed: Callable[[int, Struct], bytes],
) -> bytes:
    request: SaslHandshakeRequest = _decoded(sasl_handshake.API, version, frame, offset)
    try:
        mechanisms = authentication.begin(request.mechanism, is_bare=version == 0)
    except ApiError as error:
        problem = f"unsupported SASL mechanism {request.mechanism[:50]!r}"
        if authentication.is_complete:
            raise CloseConnection(problem) from None
        refusal = framed(version, SaslHandshakeResponse(error.code, authentication.mechanisms))
        raise _Failed(problem, refusal) from None
    return framed(version, SaslHandshakeResponse(ErrorCode.NONE, mechanisms))


async def _step(
    authentication: Authentication,
    request: SaslAuthenticateRequest,
    version: int,
    framed: Callable[[int, Struct], bytes],
) -> bytes:
    try:
        answer = await authentication.step(request.auth_bytes)
    except ApiError as error:
        refusal = framed(version, SaslAuthenticateResponse(error.code, error.message))
        raise _Failed(error.message or error.code.name, refusal) from None
    return framed(version, SaslAuthenticateResponse(0, "", answer.auth_bytes, answer.lifetime_ms))


def _refused_in_exchange(
    api: Api[Any, Any], version: int, framed: Callable[[int, Struct], bytes]
) -> _Failed | CloseConnection:
    problem = f"{api.name} during SASL authentication"
    if not api.serves(version):
        if api.key != API_VERSIONS:
            return CloseConnection(problem)
        version = 0
    response = api.response()
    if any(name == "error_code" for name, _ in api.response.FIELDS):
        response.error_code = ErrorCode.ILLEGAL_SASL_STATE
    return _Failed(problem, framed(version, response))


def _decoded(api: Api[Any, Any], version: int, frame: bytes, offset: int) -> Any:
    """Raises CloseConnection for a version that is not served, MalformedRequest."""
    if not api.serves(version):
        raise CloseConnection(f"a request of {api.name} in version {version}, before authentication")
    return api.decode_few(version, memoryview(frame), offset)

"""What the broker answers: a module an API, each registering its handler.

    @handler(metadata.API)
    async def handle(broker: Broker, context: RequestContext, request: MetadataRequest) -> MetadataResponse: ...

A handler may be a plain function, which answers at once; one that returns an awaitable, for which the connection
waits; or a generator that yields after each of many elements, so that others have their turn (`slices`), and returns
a response or an awaitable. `None` sends nothing (Produce with acks=0). It raises ApiError to answer the whole request
with an error.
What ApiVersions lists is what is registered here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..inter_broker import Authenticator
from ..protocol.api import Api
from ..protocol.errors import ApiError, ErrorCode
from ..protocol.schema import Struct, fields_of
from ..slices import Steps

if TYPE_CHECKING:
    from ..broker import Broker

Req = TypeVar("Req", bound=Struct)
Res = TypeVar("Res", bound=Struct)
Answer = Struct | None | Awaitable[Struct | None] | Steps[Any]
Handler = Callable[["Broker", "RequestContext", Any], Answer]

ANONYMOUS = "User:ANONYMOUS"


class CloseConnection(Exception):
    """The connection has to end, for the reason that the text says."""


class RequestContext(NamedTuple):
    """Who asks, and how."""

    version: int
    client_id: str | None
    client_host: str
    listener_name: str
    authenticator: Authenticator
    principal: str = ANONYMOUS


@dataclass(frozen=True, slots=True)
class Registration:
    api: Api[Any, Any]
    handle: Handler
    pipelined: bool
    """Whether the next request of this API may start while this one waits. Responses keep their order anyway."""
    ends_with_connection: bool
    """Whether a wait for the response ends when the connection does; else the handler finishes."""


HANDLERS: dict[int, Registration] = {}
_H = TypeVar("_H", bound=Callable[..., Any])


def handler(
    api: Api[Any, Any],
    *,
    pipelined: bool = False,
    ends_with_connection: bool = False,
    for_brokers: bool = False,
) -> Callable[[_H], _H]:
    """Register the function below as what answers `api`; with `for_brokers` to brokers of this cluster alone."""

    def register(function: _H) -> _H:
        handle = _for_brokers(function) if for_brokers else function
        HANDLERS[api.key] = Registration(api, handle, pipelined, ends_with_connection)
        return function

    return register


def _for_brokers(handle: Handler) -> Handler:
    def check(broker: Broker, context: RequestContext, request: Any) -> Answer:
        if context.authenticator.peer is None:
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return handle(broker, context, request)

    return check


def error_response(api: Api[Any, Res], error: ApiError) -> Res:
    """What answers a request that failed as a whole; CloseConnection where the API has no field for that."""
    fields = {name for name, _ in fields_of(api.response)}
    if "error_code" not in fields:
        raise CloseConnection(f"{api.name}: {error}")
    message = {"error_message": error.message} if "error_message" in fields else {}
    response: Any = api.response
    failed: Res = response(error_code=int(error.code), **message)
    return failed


def load() -> None:
    """Import every module here, so that its handler is registered."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")

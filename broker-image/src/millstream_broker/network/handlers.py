"""Request handlers: one function for each API, registered by the modules of `api`.

    @handler(list_groups.API)
    def handle(groups: GroupDriver, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse: ...

The parameters before the context are parts of the broker, each by its type. The function gets them once, when the
broker has been assembled (`api.parts`). So mypy checks the whole way: the broker has parts of these types, and the
function uses parts of its parameters' types.

A handler is a plain function, which responds at once; a function that returns an awaitable, for which the connection
waits; or a generator that yields after each of many elements, so that others have their turn (`slices`), and returns a
response or an awaitable. `None` sends nothing (Produce with acks=0). A handler raises ApiError to fail the whole
request.

A registration names the rights that requests need (`security.acl.rights`): those of a whole request are checked before
the handler runs.

ApiVersions lists the APIs that are registered here.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_type_hints

from millstream_kafka.acl import CLUSTER_NAME, AclOperation, ResourceType
from millstream_kafka.protocol.api import Api, Res
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import Struct

from ..runtime.slices import finish
from ..runtime.steps import Steps
from ..security.acl.authorizer import Authorizer
from ..security.acl.rights import Right
from ..security.audit.administration import Changes
from ..security.audit.trail import AuditTrail
from ..security.authentication import Authentication
from ..security.session import ClientSession

Answer = Struct | None | Awaitable[Struct | None] | Steps[Any]
Handler = Callable[["RequestContext", Any], Answer]
RunHandler = Callable[["RequestContext", Any, Any], list[Answer] | None]
"""Handles a run of requests (`produce_runs`); gets the context, the request and the run."""


class CloseConnection(Exception):
    """The connection must be closed; the message says why."""


class RequestContext(NamedTuple):
    """Who sends a request, and in which version."""

    version: int
    client_id: str | None
    session: ClientSession
    authentication: Authentication
    """The connection's, of which `session` is the present result."""
    connection_id: int
    """Unique among the connections of this process."""


@dataclass(frozen=True, slots=True)
class Registration:
    api: Api[Any, Any]
    function: Callable[..., Answer]
    needs: tuple[Any, ...]
    """Types of the broker's parts that the function takes as its first parameters."""
    pipelined: bool
    """Whether the next request of this API may start while this one waits. Responses keep their order anyway."""
    ends_with_connection: bool
    """Whether the end of the connection ends a wait for the response; otherwise the handler finishes."""
    for_brokers: bool
    run: Callable[..., list[Answer] | None] | None
    rights: tuple[Right, ...]
    refused: Callable[[Any, ApiError], Struct] | None
    """The response to a request without a right for the whole of it; None: `error_response`."""
    changes: Changes | None = None
    """What a request of an administrative API changes."""

    def bound(self, parts: Mapping[Any, Any], trail: AuditTrail | None = None) -> Bound:
        """The handler with its parts, which are given by type. Raises TypeError if one is missing.

        `trail` records administrative requests, and those that only brokers may send.
        """
        if missing := [kind for kind in self.needs if kind not in parts]:
            raise TypeError(f"{self.function.__module__} takes {missing[0]}, which is no part of the broker")
        authorizer = parts.get(Authorizer)
        if isinstance(authorizer, Authorizer):
            authorizer = authorizer.of_api(self.api.name)
        needed = [authorizer if kind is Authorizer else parts[kind] for kind in self.needs]
        handle = partial(self.function, *needed)
        if self.for_brokers:
            handle = partial(_for_brokers, self.api.name, trail, handle)
        if isinstance(authorizer, Authorizer) and authorizer.is_enabled:
            for right in reversed(self.rights):
                if right.field is not None:
                    handle = partial(_with_right, authorizer, right, self.refused, handle)
        if trail is not None and self.changes is not None:
            handle = partial(_audited, trail, self.api.name, self.changes, handle)
        run = None if self.run is None else partial(self.run, *needed)
        return Bound(self.api, handle, self.pipelined, self.ends_with_connection, run)


@dataclass(frozen=True, slots=True)
class Bound:
    """A handler of one broker; see `Registration`."""

    api: Api[Any, Any]
    handle: Handler
    pipelined: bool
    ends_with_connection: bool
    run: RunHandler | None = None

    def after(self, condition: Callable[[Handler], Handler]) -> Bound:
        """The same handler, run after another one that waits: so no request may overtake it."""
        return replace(self, handle=condition(self.handle), pipelined=False, run=None)


Handlers = Mapping[int, Bound]
"""The handlers of one broker, by API key."""

REGISTERED: dict[int, Registration] = {}
_H = TypeVar("_H", bound=Callable[..., Any])


def handler(
    api: Api[Any, Any],
    *,
    pipelined: bool = False,
    ends_with_connection: bool = False,
    for_brokers: bool = False,
    run: Callable[..., list[Answer] | None] | None = None,
    rights: Sequence[Right] = (),
    refused: Callable[[Any, ApiError], Struct] | None = None,
    changes: Changes | None = None,
) -> Callable[[_H], _H]:
    """Register the decorated function as the handler of `api`; `for_brokers`: only for brokers of this cluster.

    `rights` are what requests need; `refused` returns the response to a request without a right for the whole of it.
    `changes` returns what an administrative request changes, for the audit log.

    `run` takes the same parts, and handles several requests at once. Raises TypeError for a function with other
    parameters than parts, a context, and a request of this API.
    """

    def register(function: _H) -> _H:
        *needs, context, request = _parameters(function)
        if context is not RequestContext or request is not api.request:
            raise TypeError(
                f"{function.__module__}: its last parameters are {context} and {request}:"
                f" expected RequestContext and {api.request.__name__}"
            )
        if run is not None and _parameters(run)[: len(needs) + 2] != [*needs, context, request]:
            raise TypeError(f"{function.__module__}: a run takes other parts than one request")
        REGISTERED[api.key] = Registration(
            api,
            function,
            tuple(needs),
            pipelined,
            ends_with_connection,
            for_brokers,
            run,
            tuple(rights),
            refused,
            changes,
        )
        return function

    return register


def _parameters(function: Callable[..., Any]) -> list[Any]:
    """Types of the parameters, in order."""
    types = get_type_hints(function)
    types.pop("return", None)
    return list(types.values())


def _for_brokers(
    api: str, trail: AuditTrail | None, handle: Handler, context: RequestContext, request: Any
) -> Answer:
    if context.session.peer_broker is None:
        if trail is not None:
            operation = AclOperation.CLUSTER_ACTION
            trail.denied(api, context.session, operation, ResourceType.CLUSTER, CLUSTER_NAME)
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return handle(context, request)


def _with_right(
    authorizer: Authorizer,
    right: Right,
    refused: Callable[[Any, ApiError], Struct] | None,
    handle: Handler,
    context: RequestContext,
    request: Any,
) -> Answer:
    try:
        right.check(authorizer, context.session, request)
    except ApiError as error:
        if refused is None:
            raise
        return refused(request, error)
    return handle(context, request)


def _audited(
    trail: AuditTrail, api: str, changes: Changes, handle: Handler, context: RequestContext, request: Any
) -> Answer:
    """Handle an administrative request, and record its end."""

    def ended(outcome: Struct | Exception | None) -> None:
        trail.administered(api, changes, context.session, request, outcome)

    async def later(answer: Answer) -> Struct | None:
        try:
            response = await answered(answer)
        except Exception as error:
            ended(error)
            raise
        ended(response)
        return response

    try:
        answer = handle(context, request)
    except Exception as error:
        ended(error)
        raise
    if answer is None or isinstance(answer, Struct):
        ended(answer)
        return answer
    return later(answer)


async def answered(answer: Answer) -> Struct | None:
    """The response, from any kind of handler. Raises what the handler raises."""
    found: Any = await finish(answer) if isinstance(answer, Generator) else answer
    response: Struct | None = await found if inspect.isawaitable(found) else found
    return response


def error_response(api: Api[Any, Res], error: ApiError) -> Res:
    """The response to a request that failed as a whole; raises CloseConnection if the API has no field for the
    error."""
    fields = {name for name, _ in api.response.FIELDS}
    if "error_code" not in fields:
        raise CloseConnection(f"{api.name}: {error}")
    message = {"error_message": error.message} if "error_message" in fields else {}
    response: Any = api.response
    failed: Res = response(error_code=int(error.code), **message)
    return failed

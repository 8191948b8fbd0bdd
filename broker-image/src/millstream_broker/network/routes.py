"""Routing of requests by API and version, which a connection looks up for each frame."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from functools import partial
from typing import Any

from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.schema import Struct
from millstream_process.histogram import Histogram

from ..runtime.stats import Stats
from .handlers import Bound, Handler, Handlers, RequestContext, answered

WITHOUT_METADATA = frozenset({5, 6, 17, 18, 36})
"""StopReplica, UpdateMetadata, SaslHandshake, ApiVersions, SaslAuthenticate: served before a controller's first update.

Any other request would get a response without topics."""

API_VERSIONS = 18
OF_LOGIN = frozenset({17, 36})
"""SaslHandshake, SaslAuthenticate: on a listener with authentication, `login` handles them."""

_HEAD = struct.Struct(">ii")
"""The size and header of a response."""
_FLEXIBLE_HEAD = struct.Struct(">iix")
_SIZE_BYTES = 4


def head_of(api: Api[Any, Any], version: int) -> struct.Struct:
    """The size and header of a response of that version."""
    return _FLEXIBLE_HEAD if api.has_flexible_response_header(version) else _HEAD


def response_frame(api: Api[Any, Any], version: int, correlation_id: int, response: Any) -> bytes:
    """A response outside the routes, as a frame."""
    head, body = head_of(api, version), api.encode_response(version, response)
    return head.pack(head.size + len(body) - _SIZE_BYTES, correlation_id) + body


@dataclass(frozen=True, slots=True)
class Route:
    """The handling of requests of one API and version."""

    registration: Bound
    version: int
    head: struct.Struct
    stats: Histogram
    copied: bool


Routes = dict[tuple[int, int], Route]
"""The route of each served request, by API key and version."""


def routes_of(handlers: Handlers, stats: Stats, first_update: asyncio.Event | None = None) -> Routes:
    """With ``first_update``, requests that need the cluster's state wait for it."""
    routes = {}
    for key, registration in handlers.items():
        if first_update is not None and key not in WITHOUT_METADATA:
            registration = registration.after(partial(_waiting, first_update))
        api = registration.api
        of_api = stats.api(api.name)
        for version in range(api.served[0], api.served[1] + 1):
            routes[key, version] = Route(
                registration, version, head_of(api, version), of_api, copied=not registration.pipelined
            )
    return routes


def _waiting(first_update: asyncio.Event, handler: Handler) -> Handler:
    async def handle(context: RequestContext, request: Any) -> Struct | None:
        await first_update.wait()
        return await answered(handler(context, request))

    return handle

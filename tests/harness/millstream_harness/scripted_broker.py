"""A broker that a test scripts: it hangs, lies, closes, refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from millstream_kafka.client import Connection
from millstream_kafka.protocol import api_versions
from millstream_kafka.protocol.header import RequestHeader, decode_request_header
from millstream_kafka.protocol.schema import Struct

from .protocol import APIS, encode_response_header
from .serving import serving

Answer = Callable[[RequestHeader, Any], Awaitable[bytes | Struct | None]]
"""A scripted broker's reaction to a request: a response, a whole frame of its own, or (None) close."""

ALL = [api_versions.ApiVersion(api.key, *api.versions) for api in APIS.values()]


class ScriptedBroker:
    """A listener that responds to ApiVersions by itself and to everything else with ``answer``."""

    def __init__(self, answer: Answer, versions: list[api_versions.ApiVersion] | None = None) -> None:
        self.answer = answer
        self.versions = ALL if versions is None else versions
        self.port = 0
        self.connections = 0
        self.asked = asyncio.Event()
        self.seen: list[tuple[RequestHeader, Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            header, offset = decode_request_header(frame)
            api = APIS[header.api_key]
            request = api.decode_request(header.api_version, frame, offset)
            self.seen.append((header, request))
            answered = await self.reply(header, request)
            if answered is None:
                return
            if isinstance(answered, bytes):
                writer.write(answered)
                continue
            body = api.encode_response(header.api_version, answered)
            flexible = api.has_flexible_response_header(header.api_version)
            response = encode_response_header(header.correlation_id, flexible) + body
            writer.write(len(response).to_bytes(4, "big") + response)

    async def reply(self, header: RequestHeader, request: Any) -> bytes | Struct | None:
        if header.api_key == api_versions.API.key and self.versions:
            return api_versions.ApiVersionsResponse(api_keys=self.versions)
        self.asked.set()
        return await self.answer(header, request)

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[ScriptedBroker]:
        async with serving(self.serve, port) as self.port:
            yield self

    async def open(self, **options: Any) -> Connection:
        return await Connection.open("127.0.0.1", self.port, "test", **options)

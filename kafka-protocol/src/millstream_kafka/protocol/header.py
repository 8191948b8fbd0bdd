"""The headers of requests and responses.

    request  v1:  api_key int16, api_version int16, correlation_id int32, client_id nullable string
             v2:  the same, then tagged fields; with flexible versions. The client_id is never compact.
    response v0:  correlation_id int32
             v1:  the same, then tagged fields; with flexible versions, but never for ApiVersions (KIP-511)

Both follow an int32 with the size of the rest.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .api import APIS
from .compiler import Malformed, skip_tags
from .schema import MalformedRequest

_HEAD = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">i")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(buf: memoryview | bytes) -> tuple[RequestHeader, int]:
    """The header at the start of ``buf``, and the body's position; raises MalformedRequest.

    The header of an unknown API is read as v1: its body cannot be read anyway.
    """
    if len(buf) < _HEAD.size:
        raise MalformedRequest(f"request header: is cut off after {len(buf)} bytes")
    api_key, api_version, correlation_id, length = _HEAD.unpack_from(buf)
    offset = _HEAD.size
    client_id = None
    if length != -1:
        if not 0 <= length <= len(buf) - offset:
            raise MalformedRequest(
                f"request header: client_id has the length {length}, with {len(buf) - offset} bytes left"
            )
        try:
            client_id = str(memoryview(buf)[offset : offset + length], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"request header: client_id is not UTF-8 ({error.reason})") from None
        offset += length
    api = APIS.get(api_key)
    if api is not None and api.is_flexible(api_version):
        offset = _skip_tags(buf, offset, "request")
    return RequestHeader(api_key, api_version, correlation_id, client_id), offset


def encode_request_header(header: RequestHeader) -> bytes:
    client_id = b"" if header.client_id is None else header.client_id.encode()
    length = -1 if header.client_id is None else len(client_id)
    flexible = APIS[header.api_key].is_flexible(header.api_version)
    head = _HEAD.pack(header.api_key, header.api_version, header.correlation_id, length)
    return head + client_id + (b"\0" if flexible else b"")


def decode_response_header(buf: memoryview | bytes, flexible: bool) -> tuple[int, int]:
    """The correlation id, and the body's position; raises MalformedRequest.

    ``flexible`` is ``Api.has_flexible_response_header(version)``.
    """
    if len(buf) < _RESPONSE.size:
        raise MalformedRequest(f"response header: is cut off after {len(buf)} bytes")
    (correlation_id,) = _RESPONSE.unpack_from(buf)
    return correlation_id, _skip_tags(buf, _RESPONSE.size, "response") if flexible else _RESPONSE.size


def _skip_tags(buf: memoryview | bytes, offset: int, side: str) -> int:
    try:
        count = buf[offset]
        return skip_tags(memoryview(buf), offset + 1, count)[1] if count else offset + 1
    except IndexError:
        raise MalformedRequest(f"{side} header: its tagged fields are cut off") from None
    except Malformed as error:
        raise MalformedRequest(f"{side} header: tagged fields: {error}") from None

"""Requests with any content: built from the schemas of all APIs, with the names that a hostile client knows."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from millstream_harness.protocol import APIS
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.header import RequestHeader, encode_request_header
from millstream_kafka.protocol.schema import EncodeError, FieldType, Struct

from .lab import MALLORY, OWN, SECRET, STEADY

TEXTS = (
    SECRET,
    SECRET,
    OWN,
    STEADY,
    MALLORY,
    "",
    "*",
    "kafka-cluster",
    "..",
    "a/b",
    "x" * 300,
    "é\x00\n",
    "__consumer_offsets",
)
BATCH = build_batch([Record(b"k", b"of a hostile client", 1)])
BYTES = (b"", b"\0", BATCH, BATCH[:20], b"\xff" * 3000)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def value(drawn: random.Random, wire: FieldType, version: int) -> Any:
    """Any value that the field can have in that version."""
    if wire.nullable_in(version) and drawn.random() < 0.2:
        return None
    if wire.is_array:
        return [_single(drawn, wire, version) for _ in range(drawn.choice((0, 1, 1, 2, 3)))]
    return _single(drawn, wire, version)


def _single(drawn: random.Random, wire: FieldType, version: int) -> Any:
    if wire.struct is not None:
        return message(drawn, wire.struct, version)
    if wire.kind in BITS:
        limit = 1 << (BITS[wire.kind] - 1)
        return drawn.choice((0, 0, 1, 1, 2, 3, -1, limit - 1, -limit, drawn.randrange(100)))
    others: dict[str, Any] = {
        "bool": drawn.random() < 0.5,
        "float64": drawn.choice((0.0, -1.0, 1e308, float("nan"), float("inf"))),
        "uuid": UUID(int=drawn.choice((0, drawn.getrandbits(128)))),
        "string": drawn.choice(TEXTS),
    }
    return others[wire.kind] if wire.kind in others else drawn.choice(BYTES)


def message(drawn: random.Random, of: type[Struct], version: int) -> Any:
    fields = {name: value(drawn, wire, version) for name, wire in of.FIELDS if wire.in_version(version)}
    return of(**fields)


def frame(api: Api[Any, Any], version: int, request: Any, client_id: str = "hostile") -> bytes:
    """Raises EncodeError for content that the version cannot carry."""
    body = encode_request_header(RequestHeader(api.key, version, 7, client_id)) + api.encode_request(
        version, request
    )
    return struct.pack(">i", len(body)) + body


def any_frame(drawn: random.Random, without: Sequence[Api[Any, Any]] = ()) -> tuple[str, bytes]:
    """The name of the API, and a request to it, in any version."""
    apis = [api for api in APIS.values() if api not in without]
    while True:
        api = drawn.choice(apis)
        version = drawn.randint(*api.served)
        try:
            found = frame(api, version, message(drawn, api.request, version))
        except (EncodeError, struct.error, ValueError, OverflowError, AttributeError):
            continue
        return api.name, found if drawn.random() < 0.9 else mutated(drawn, found)


def mutated(drawn: random.Random, data: bytes, most: int = 6) -> bytes:
    """With some bytes changed, added or missing."""
    changed = bytearray(data)
    for _ in range(drawn.randint(1, most)):
        at = drawn.randrange(len(changed)) if changed else 0
        match drawn.randrange(4):
            case 0 if changed:
                changed[at] ^= 1 << drawn.randrange(8)
            case 1 if changed:
                changed[at] = drawn.randrange(256)
            case 2:
                changed[at:at] = drawn.randbytes(drawn.choice((1, 2, 100)))
            case _:
                del changed[at : at + drawn.choice((1, 2, 50))]
    return bytes(changed)

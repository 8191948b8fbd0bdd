"""Headers and the error codes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from millstream_harness.protocol import APIS, encode_response_header
from millstream_kafka.protocol import MalformedRequest
from millstream_kafka.protocol.compiler import MAX_STRING, MAX_TAGS, write_varint
from millstream_kafka.protocol.errors import MAX_MESSAGE, ApiError, ErrorCode
from millstream_kafka.protocol.header import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
)

METADATA, API_VERSIONS = 3, 18


@given(
    st.sampled_from([(METADATA, 0), (METADATA, 12), (API_VERSIONS, 0), (API_VERSIONS, 3)]),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.text(st.characters(codec="utf-8"), max_size=20),
)
def test_request_header_round_trip(api: tuple[int, int], correlation_id: int, client_id: str | None) -> None:
    header = RequestHeader(*api, correlation_id, client_id)
    encoded = encode_request_header(header)
    assert decode_request_header(encoded + b"body") == (header, len(encoded))
    for cut in range(len(encoded)):
        with pytest.raises(MalformedRequest):
            decode_request_header(encoded[:cut])


def test_request_header_as_bytes() -> None:
    v1, v2 = RequestHeader(METADATA, 8, 7, "me"), RequestHeader(METADATA, 9, 7, "me")
    assert encode_request_header(v1) == b"\x00\x03\x00\x08\x00\x00\x00\x07\x00\x02me"
    assert encode_request_header(v2) == b"\x00\x03\x00\x09\x00\x00\x00\x07\x00\x02me\x00"


def test_unknown_tags_in_a_header_are_ignored() -> None:
    encoded = encode_request_header(RequestHeader(METADATA, 9, 7, None))[:-1] + b"\x01\x05\x03abc"
    assert decode_request_header(encoded)[1] == len(encoded)
    assert decode_response_header(b"\0\0\0\x07\x01\x05\x03abc", True) == (7, 10)


def test_tagged_fields_of_a_header_are_limited() -> None:
    encoded = encode_request_header(RequestHeader(METADATA, 9, 7, None))[:-1]
    most, more = (write_varint(count) + b"\x05\0" * count for count in (MAX_TAGS, MAX_TAGS + 1))
    assert decode_request_header(encoded + most)[1] == len(encoded + most)
    with pytest.raises(MalformedRequest, match="request header: tagged fields: has 1001 tagged fields"):
        decode_request_header(encoded + more)
    with pytest.raises(MalformedRequest, match="response header: tagged fields: has 1001 tagged fields"):
        decode_response_header(b"\0\0\0\x07" + more, True)


@pytest.mark.parametrize("header", [(4711, 0), (METADATA, 99), (API_VERSIONS, 99)])
def test_the_header_of_what_is_not_known_can_be_read(header: tuple[int, int]) -> None:
    """So the server can name the request in an error, and respond to a future version of ApiVersions."""
    raw = header[0].to_bytes(2, "big") + header[1].to_bytes(2, "big") + b"\0\0\0\x05\xff\xff\0"
    assert decode_request_header(raw)[0] == RequestHeader(*header, 5, None)


def test_malformed_headers_are_named() -> None:
    with pytest.raises(MalformedRequest, match="request header: is cut off after 3 bytes"):
        decode_request_header(b"\0\0\0")
    with pytest.raises(MalformedRequest, match="client_id has the length 100, with 1 bytes left"):
        decode_request_header(b"\0\3\0\0\0\0\0\1\0\x64x")
    with pytest.raises(MalformedRequest, match="client_id is not UTF-8"):
        decode_request_header(b"\0\3\0\0\0\0\0\1\0\1\xff")
    with pytest.raises(MalformedRequest, match="tagged field"):
        decode_request_header(b"\0\3\0\x09\0\0\0\1\xff\xff\1\1\xff\xff\xff\xff\xff\xff\xff")


def test_response_headers() -> None:
    assert encode_response_header(7, False) == b"\0\0\0\x07"
    assert encode_response_header(7, True) == b"\0\0\0\x07\0"
    assert not APIS[API_VERSIONS].has_flexible_response_header(4)
    assert APIS[METADATA].has_flexible_response_header(9)
    assert not APIS[METADATA].has_flexible_response_header(8)
    with pytest.raises(MalformedRequest):
        decode_response_header(b"\0\0\0", False)


def test_error_codes_are_kafkas() -> None:
    ours = {int(code): (code.name, code.retriable) for code in ErrorCode}
    assert ours == {int(code): (code.name.upper(), code.retriable) for code in KioErrorCode}
    assert all(code.message and len(code.message) < 90 for code in ErrorCode)


def test_errors_as_exceptions() -> None:
    assert ErrorCode.of(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert str(ApiError(ErrorCode.INVALID_CONFIG, "x is not a number")) == "INVALID_CONFIG: x is not a number"
    assert ApiError(ErrorCode.INVALID_CONFIG).message == ErrorCode.INVALID_CONFIG.message


def test_a_message_of_any_length_fits_a_response() -> None:
    """A string of the protocol has 32,767 bytes at most, and a character up to four of them."""
    assert len("…".encode()) + 4 * MAX_MESSAGE <= MAX_STRING
    error = ApiError(ErrorCode.INVALID_CONFIG, "\U0001f30a" * (MAX_MESSAGE + 1))
    assert error.message == "\U0001f30a" * MAX_MESSAGE + "…"
    longest = "x" * MAX_MESSAGE
    assert ApiError(ErrorCode.INVALID_CONFIG, longest).message == longest

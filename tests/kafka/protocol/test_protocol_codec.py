"""The codec by itself: it reads what it writes, and no input can make it do anything but report an error."""

from __future__ import annotations

import random
import re
import traceback
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream_broker.runtime.steps import to_the_end
from millstream_harness.messages import VERSION_IDS, VERSIONS, messages
from millstream_kafka.protocol import EncodeError, MalformedRequest, fetch, list_offsets, metadata, produce
from millstream_kafka.protocol.api import FEW_ELEMENTS, Api
from millstream_kafka.protocol.codec import Codec
from millstream_kafka.protocol.compiler import MAX_STRING, MAX_TAGS, write_varint
from millstream_kafka.protocol.schema import (
    Bytes,
    Struct,
    TooManyElements,
    array,
    boolean,
    bytes_,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uuid_,
)

AnyApi = Api[Any, Any]

SOME = settings(
    max_examples=8,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Inner(Struct):
    a: int = int8()
    b: str | None = string(nullable=0, default=None)


class Everything(Struct):
    """Every kind of field in the schema."""

    flag: bool = boolean()
    i8: int = int8()
    i16: int = int16()
    i32: int = int32()
    i64: int = int64()
    f64: float = float64()
    id: uuid.UUID = uuid_()
    name: str = string()
    maybe: str | None = string(nullable=0, default=None)
    blob: Bytes = bytes_()
    maybe_blob: Bytes | None = bytes_(nullable=0, default=None)
    numbers: list[int] = array("int32")
    maybe_numbers: list[int] | None = array("int16", nullable=0, default=None)
    names: list[str] = array("string")
    ids: list[uuid.UUID] = array("uuid")
    inners: list[Inner] = array(Inner)
    maybe_inners: list[Inner] | None = array(Inner, nullable=0, default=None)
    tagged: Inner | None = struct(Inner, since=1, tag=0)
    tagged_numbers: list[int] = array("int32", since=1, tag=3)
    tagged_name: str | None = string(since=1, nullable=1, tag=5, default=None)
    tagged_epoch: int = int64(since=1, tag=200, default=-1)


EVERYTHING = Codec(Everything, flexible=1)


# --- written messages are read ---


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=VERSION_IDS)
def test_round_trip(api: AnyApi, version: int) -> None:
    @SOME
    @given(messages(api.request, version), messages(api.response, version))
    def holds(request: Struct, response: Struct) -> None:
        assert api.decode_request(version, api.encode_request(version, request)) == request
        assert api.decode_response(version, api.encode_response(version, response)) == response
        encoded = api.encode_response(version, response)
        assert b"".join(api.encode_response_parts(version, response)) == encoded
        assert b"".join(to_the_end(api.encode_response_in_steps(version, response))) == encoded
        frame = api.encode_request(version, request)
        assert to_the_end(api.decode_request_in_steps(version, frame)) == request

    holds()


@pytest.mark.parametrize("version", [0, 1])
def test_round_trip_of_every_sort_of_field(version: int) -> None:
    @settings(SOME, max_examples=100)
    @given(messages(Everything, version))
    def holds(message: Everything) -> None:
        encoded = EVERYTHING.encode(version, message)
        assert EVERYTHING.decode(version, encoded) == message
        assert b"".join(to_the_end(EVERYTHING.encode_parts_in_steps(version, message))) == encoded
        assert to_the_end(EVERYTHING.decode_in_steps(version, encoded)) == message

    holds()


def test_a_body_may_stand_behind_a_header() -> None:
    encoded = b"header" + EVERYTHING.encode(1, Everything(name="flights"))
    assert EVERYTHING.decode(1, memoryview(encoded), 6).name == "flights"


def test_bytes_are_views_of_the_frame() -> None:
    frame = bytearray(EVERYTHING.encode(1, Everything(blob=b"records")))
    blob = EVERYTHING.decode(1, memoryview(frame)).blob
    assert isinstance(blob, memoryview)
    at = frame.index(b"records")
    frame[at] = ord("R")
    assert bytes(blob) == b"Records"


def test_records_are_handed_over_uncopied() -> None:
    class Region:
        def __len__(self) -> int:
            return 5_000_000_000

    region = Region()
    small = memoryview(b"small")
    partitions = [fetch.PartitionData(0, records=None), fetch.PartitionData(1, records=small)]
    response = fetch.FetchResponse(responses=[fetch.FetchableTopicResponse("t", partitions=partitions)])
    for version in (4, 12):
        parts = fetch.API.encode_response_parts(version, response)
        assert any(part is small for part in parts)
        assert b"".join(parts) == fetch.API.encode_response(version, response)
    partitions[1].records = region
    parts = fetch.API.encode_response_parts(12, response)
    assert [type(part) for part in parts] == [bytes, Region, bytes]
    assert parts[1] is region


# --- evolution ---


def test_unknown_tagged_fields_are_ignored() -> None:
    """KIP-482: a reader skips unknown tagged fields, in any struct."""
    known = EVERYTHING.encode(1, Everything(inners=[Inner(1, "x")]))
    unknown = b"\x02" + b"\x07\x03abc" + write_varint(70000) + b"\x00"
    inner = b"\x01\x02x\x00"
    assert known.endswith(inner + b"\x00\x00")
    with_unknown = known[: -len(inner) - 2] + inner[:-1] + unknown + b"\x00" + unknown
    assert EVERYTHING.decode(1, with_unknown) == EVERYTHING.decode(1, known)


@pytest.mark.parametrize(
    ("api", "version"), [found for found in VERSIONS if found[0].is_flexible(found[1])], ids=str
)
def test_every_flexible_message_ignores_an_unknown_tag(api: AnyApi, version: int) -> None:
    encoded = api.encode_request(version, api.request())
    assert encoded[-1:] == b"\0"
    assert api.decode_request(version, encoded[:-1] + b"\x01\x64\x02ab") == api.request()


def test_fields_out_of_version_keep_their_defaults() -> None:
    request = metadata.MetadataRequest(topics=[], allow_auto_topic_creation=False)
    assert metadata.API.decode_request(3, metadata.API.encode_request(3, request)).allow_auto_topic_creation


# --- malformed input ---


def malformed(version: int, encoded: bytes) -> str:
    with pytest.raises(MalformedRequest) as raised:
        EVERYTHING.decode(version, encoded)
    return str(raised.value)


def replaced(version: int, old: bytes, new: bytes, **fields: Any) -> str:
    """The error for a message with some of its bytes replaced."""
    encoded = EVERYTHING.encode(version, Everything(**fields))
    assert encoded.count(old) == 1
    return malformed(version, encoded.replace(old, new))


def test_malformed_input_is_named() -> None:
    assert malformed(0, b"") == "Everything version 0: flag is cut off"
    assert malformed(0, b"\0" * 5) == "Everything version 0: i32 is cut off"
    mark, long_mark = "MARK" * 5, b"MARK" * 5
    short = b"\x00\x14" + long_mark
    assert "name has the length 32767, with " in replaced(0, short, b"\x7f\xff" + long_mark, name=mark)
    assert "name has the length -2" in replaced(0, short, b"\xff\xfe" + long_mark, name=mark)
    assert "name is null, which it must not be" in replaced(0, short, b"\xff\xff" + long_mark, name=mark)
    assert "name is null" in replaced(1, b"\x15" + long_mark, b"\x00" + long_mark, name=mark)
    assert "maybe has the length -3" in replaced(0, short, b"\xff\xfd" + long_mark, maybe=mark)
    assert "name is not UTF-8" in replaced(1, long_mark, b"\xff" * 20, name=mark)
    assert "inners.b is not UTF-8" in replaced(0, long_mark, b"\xc0" * 20, inners=[Inner(1, mark)])
    assert "tagged.b is not UTF-8" in replaced(1, long_mark, b"\xc0" * 20, tagged=Inner(1, mark))
    assert "names has 2147483647 elements" in replaced(
        0, b"\0\0\0\1" + short, b"\x7f\xff\xff\xff" + short, names=[mark]
    )
    assert "numbers has the length -2" in replaced(
        0, b"\0\0\0\1\x12\x34\x56\x78", b"\xff\xff\xff\xfe\x12\x34\x56\x78", numbers=[0x12345678]
    )
    encoded = EVERYTHING.encode(1, Everything())
    assert EVERYTHING.decode(1, encoded + b"xy") == Everything(), "as in Kafka, more bytes do no harm"
    assert "varint" in malformed(1, encoded[:-1] + b"\xff" * 9)


def test_a_version_out_of_range_is_named() -> None:
    with pytest.raises(MalformedRequest, match="Metadata version 14 is not supported: 0 to 13 are"):
        metadata.API.decode_request(14, b"")
    with pytest.raises(MalformedRequest, match="Produce version 2 is not supported: 3 to 13 are"):
        produce.API.decode_request(2, b"")


def test_a_tagged_field_has_to_fill_its_size() -> None:
    encoded = EVERYTHING.encode(1, Everything(tagged_epoch=5))
    assert encoded.endswith(b"\x01\xc8\x01\x08" + b"\0" * 7 + b"\x05")
    assert "tagged_epoch has the length 9" in malformed(1, encoded[:-9] + b"\x09" + encoded[-8:] + b"\0")


def samples(api: AnyApi, version: int) -> list[bytes]:
    """A few encoded requests and responses with content in them."""
    found: list[bytes] = []

    @settings(SOME, max_examples=4, derandomize=True)
    @given(messages(api.request, version), messages(api.response, version))
    def collect(request: Struct, response: Struct) -> None:
        found.append(b"q" + api.encode_request(version, request))
        found.append(b"r" + api.encode_response(version, response))

    collect()
    return sorted(found, key=len)


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api, version in VERSIONS if version in (api.served[0], api.flexible, api.served[1])],
    ids=str,
)
def test_truncation_and_mutation_raise_nothing_else(api: AnyApi, version: int) -> None:
    dice = random.Random(api.key * 100 + version)
    for sample in samples(api, version):
        decode = api.decode_request if sample[:1] == b"q" else api.decode_response
        encoded = sample[1:]
        for cut in {*range(min(len(encoded), 200)), *range(0, len(encoded), 997)}:
            with pytest.raises(MalformedRequest):
                decode(version, encoded[:cut])
        if not encoded:
            continue
        for _ in range(60):
            mutated = bytearray(encoded)
            for _ in range(dice.randint(1, 4)):
                mutated[dice.randrange(min(len(mutated), 300))] = dice.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256))
                )
            try:
                decode(version, bytes(mutated))
            except MalformedRequest as error:
                assert str(error)  # noqa: PT017  (not raising is as good)


@given(st.binary(max_size=64), st.sampled_from([0, 1]))
@settings(SOME, max_examples=300)
def test_random_bytes_raise_nothing_else(noise: bytes, version: int) -> None:
    try:
        EVERYTHING.decode(version, noise)
    except MalformedRequest as error:
        assert str(error)  # noqa: PT017  (not raising is as good)


def test_absurd_counts_allocate_nothing() -> None:
    request = metadata.API.encode_request(12, metadata.MetadataRequest(topics=[]))
    absurd = b"\xff\xff\xff\xff\x0f" + request[1:] + b"\0" * 1000
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest, match=r"topics has 4294967294 elements, with \d+ bytes left"):
            metadata.API.decode_request(12, absurd)
        with pytest.raises(MalformedRequest, match="topics has 2147483647 elements"):
            metadata.API.decode_request(1, b"\x7f\xff\xff\xff" + b"\0" * 1000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def with_tags(encoded: bytes, count: int) -> bytes:
    """The message with this many tagged fields at its end, all unknown and empty."""
    assert encoded[-1:] == b"\0"
    return encoded[:-1] + write_varint(count) + b"\x64\0" * count


def test_tagged_fields_of_a_struct_are_limited() -> None:
    for struct_type in (Everything, Inner):  # with known tagged fields, and without
        codec, empty = Codec(struct_type, flexible=1), struct_type()
        encoded = codec.encode(1, empty)
        assert codec.decode(1, with_tags(encoded, MAX_TAGS)) == empty
        with pytest.raises(MalformedRequest, match=f"has {MAX_TAGS + 1} tagged fields") as caught:
            codec.decode(1, with_tags(encoded, MAX_TAGS + 1))
        assert not isinstance(caught.value, TooManyElements)
        with pytest.raises(MalformedRequest, match="has 1000000 tagged fields"):
            codec.decode(1, encoded[:-1] + write_varint(1_000_000))


def test_tagged_fields_count_as_elements() -> None:
    for struct_type in (Everything, Inner):
        codec, encoded = (
            Codec(struct_type, flexible=1),
            Codec(struct_type, flexible=1).encode(1, struct_type()),
        )
        assert codec.decode(1, with_tags(encoded, 10), few=10) == struct_type()
        with pytest.raises(TooManyElements, match="has 11 elements"):
            codec.decode(1, with_tags(encoded, 11), few=10)


def test_tagged_fields_of_all_elements_are_limited_together() -> None:
    codec = Codec(Everything, flexible=1, max_elements=3000)
    inner = b"\x01\x02x\x00"
    one = codec.encode(1, Everything(inners=[Inner(1, "x")]))

    def inners(count: int) -> bytes:
        return one.replace(b"\x02" + inner, write_varint(count + 1) + count * with_tags(inner, 999))

    assert codec.decode(1, inners(3)).inners == [Inner(1, "x")] * 3
    with pytest.raises(TooManyElements, match="inners has 999 elements"):
        codec.decode(1, inners(4))
    with pytest.raises(TooManyElements, match="inners has 999 elements"):
        to_the_end(codec.decode_in_steps(1, inners(4)))


class Text(Struct):
    needed: str = string()
    maybe: str | None = string(nullable=0, default=None)
    several: list[str] = array("string")
    tagged: str = string(since=1, tag=0)


TEXT = Codec(Text, flexible=1)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("needed", lambda text: text + b"\0\1\0"),
        ("maybe", lambda text: b"\1" + text + b"\1\0"),
        ("several", lambda text: b"\1\0\2" + text + b"\0"),
        ("tagged", lambda text: b"\1\0\1\1\0" + write_varint(len(text)) + text),
    ],
)
def test_a_string_is_as_long_in_flexible_versions_as_in_others(
    name: str, whole: Callable[[bytes], bytes]
) -> None:
    def message(size: int) -> Text:
        text = "x" * size
        return Text(**{name: [text] if name == "several" else text})

    def encoded(size: int) -> bytes:
        return whole(write_varint(size + 1) + b"x" * size)

    assert TEXT.decode(1, encoded(MAX_STRING)) == message(MAX_STRING)
    assert TEXT.encode(1, message(MAX_STRING)) == encoded(MAX_STRING)
    for size in (MAX_STRING + 1, 1_000_000):
        with pytest.raises(MalformedRequest, match=f"{name} has the length {size}, more than 32767"):
            TEXT.decode(1, encoded(size))
        with pytest.raises(EncodeError, match=f"{name}: a string of {size} bytes, more than 32767"):
            TEXT.encode(1, message(size))
    if name != "tagged":
        with pytest.raises(EncodeError, match=name):
            TEXT.encode(0, message(MAX_STRING + 1))


# --- messages that cannot be written ---


def test_many_elements_are_read_in_steps_only() -> None:
    api, version = list_offsets.API, 7
    partitions = [list_offsets.ListOffsetsPartition(index) for index in range(FEW_ELEMENTS - 1)]
    request = list_offsets.ListOffsetsRequest(topics=[list_offsets.ListOffsetsTopic("t", partitions)])
    assert api.decode_few(version, api.encode_request(version, request)) == request
    partitions.append(list_offsets.ListOffsetsPartition(0))
    frame = api.encode_request(version, request)
    with pytest.raises(TooManyElements):
        api.decode_few(version, frame)
    assert sum(1 for _ in api.decode_request_in_steps(version, frame)) >= FEW_ELEMENTS
    with pytest.raises(MalformedRequest, match="cut off"):
        to_the_end(api.decode_request_in_steps(version, frame[:-1]))


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(EncodeError, match="MetadataRequest version 0: topics"):
        metadata.API.encode_request(0, metadata.MetadataRequest(topics=None))
    with pytest.raises(EncodeError, match=r"Everything version 0: .*\bi8 or .*-128 <= number <= 127"):
        EVERYTHING.encode(0, Everything(i8=128))
    with pytest.raises(EncodeError, match=r"Everything version 1: inners\.b"):
        EVERYTHING.encode(1, Everything(inners=[Inner(0, "\ud800")]))
    with pytest.raises(EncodeError, match="Everything version 1: name"):
        EVERYTHING.encode(1, Everything(name=None))  # type: ignore[arg-type]


def test_tracebacks_show_the_source_that_was_generated() -> None:
    request = fetch.FetchRequest(
        topics=[fetch.FetchTopic("t", partitions=[fetch.FetchPartition("no number")])]
    )  # type: ignore[arg-type]
    with pytest.raises(EncodeError) as error:
        fetch.API.encode_request(12, request)
    shown = "".join(traceback.format_exception(error.value))
    assert 'File "<encode FetchRequest v12>", line' in shown
    assert re.search(r"<encode FetchRequest v12>.*\n +w\(pack_\w+\(", shown)

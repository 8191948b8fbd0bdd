"""Batches that a topic's configuration accepts or changes, and batches that a follower accepts from its leader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from millstream_broker.config.config import BrokerConfig, TopicConfig
from millstream_broker.log import validator
from millstream_broker.log.config import FOREVER, LogConfig
from millstream_broker.log.validator import MOST_RECORD_ERRORS, RecordsRefusedError
from millstream_broker.metadata.topic_logs import log_config
from millstream_kafka.batch import (
    INT32_MAX,
    Record,
    build_batch,
    crc_matches,
    iter_batches,
    read_header,
    read_records,
)
from millstream_kafka.compression import Compression
from millstream_kafka.protocol.errors import ApiError, ErrorCode

NOW = 1_700_000_000_000


def validated(config: LogConfig, *batches: bytes) -> Sequence[bytes]:
    view, headers, append_time, _ = validator.validate(b"".join(batches), config, NOW, where="/logs/t-0")
    assert append_time == (NOW if config.message_timestamp_type == "LogAppendTime" else -1)
    found = list(iter_batches(view))
    assert [header for _, header in found] == headers
    assert all(crc_matches(view[position : position + header.size]) for position, header in found)
    return [bytes(view[position : position + header.size]) for position, header in found]


def test_compression_type_of_the_topic() -> None:
    gzip = build_batch([Record(b"k", b"v" * 500, NOW)], compression=Compression.GZIP)
    plain = build_batch([Record(b"k", b"v" * 500, NOW)])
    assert validated(LogConfig(), gzip, plain) == [gzip, plain]
    assert validated(LogConfig(compression_type="gzip"), gzip)[0] is not gzip
    for name in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
        stored = validated(LogConfig(compression_type=name), gzip, plain)
        assert {read_header(batch).compression for batch in stored} == {Compression.from_name(name)}
        assert [list(read_records(batch)) for batch in stored] == [list(read_records(plain))] * 2


@pytest.mark.parametrize(
    ("codec", "least", "most"), [("gzip", "1", "9"), ("lz4", "1", "17"), ("zstd", "-20", "19")]
)
def test_compression_level_of_the_topic(codec: str, least: str, most: str) -> None:
    plain = build_batch([Record(b"k%d" % n, b"value %d of %d" % (n, n * n % 977), NOW) for n in range(3000)])
    broker = BrokerConfig()
    stored = []
    for level in (most, "", least):
        given = {"compression.type": codec}
        if level:
            given[f"compression.{codec}.level"] = level
        (batch,) = validated(log_config(TopicConfig(broker, given), broker), plain)
        assert list(read_records(batch)) == list(read_records(plain))
        stored.append(batch)
    assert len(set(stored)) == 3
    assert len(stored[2]) > max(len(stored[0]), len(stored[1]))


@pytest.mark.parametrize(
    ("config", "timestamp", "accepted"),
    [
        (LogConfig(), NOW + 3_600_000, True),
        (LogConfig(), NOW + 3_600_001, False),
        (LogConfig(), 0, True),
        (LogConfig(), -1, True),
        (LogConfig(), -(2**63), False),
        (LogConfig(), -(2**62), True),
        (LogConfig(message_timestamp_after_max_ms=2**63 - 1), -(2**63), True),
        (LogConfig(message_timestamp_after_max_ms=2**63 - 1), 2**63 - 1, True),
        (LogConfig(message_timestamp_before_max_ms=1000), NOW - 1000, True),
        (LogConfig(message_timestamp_before_max_ms=1000), NOW - 1001, False),
        (LogConfig(message_timestamp_before_max_ms=1000), -1, True),
        (LogConfig(message_timestamp_type="LogAppendTime"), NOW + 10**9, True),
    ],
)
def test_timestamps_out_of_bounds(config: LogConfig, timestamp: int, accepted: bool) -> None:
    batch = build_batch([Record(b"k", b"v", timestamp)])
    if accepted:
        validated(config, batch)
        return
    with pytest.raises(ApiError) as caught:
        validated(config, batch)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert str(timestamp) in f"{caught.value.message} {getattr(caught.value, 'records', [])}"


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_producer_may_not_claim_append_time(kind: str) -> None:
    for read in (False, True):
        with pytest.raises(ApiError) as caught:
            validator.validate(
                build_batch([Record(b"k", b"v", NOW)], append_time=NOW),
                LogConfig(message_timestamp_type=kind),
                NOW,
                where="t-0",
                read=read,
            )
        assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


def refused(
    config: LogConfig, *records: Record, codec: Compression = Compression.NONE
) -> RecordsRefusedError:
    with pytest.raises(RecordsRefusedError) as caught:
        validator.validate(
            build_batch(records, compression=codec), config, NOW, where="/logs/some.topic-7", read=True
        )
    return caught.value


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_compacted_topics_demand_keys(codec: Compression) -> None:
    keyed, keyless = Record(b"k", b"v", NOW), Record(None, b"v", NOW)
    validated(LogConfig(), build_batch([keyed, keyless], compression=codec))
    error = refused(LogConfig(cleanup_policy="compact,delete"), keyed, keyless, keyed, keyless, codec=codec)
    assert error.code is ErrorCode.INVALID_RECORD
    assert error.records == [
        (i, "Compacted topic cannot accept message without key in topic partition some.topic-7")
        for i in (1, 3)
    ]
    assert "due to 2 record errors in total" in error.message


def test_records_out_of_time_are_named() -> None:
    config = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    times = [NOW, NOW - 1001, NOW - 1000, -1, NOW + 500, NOW + 501]
    error = refused(config, *(Record(b"k", b"v", time) for time in times), codec=Compression.ZSTD)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert error.records == [
        (
            i,
            f"Timestamp {times[i]} of message with offset {i} is out of range. "
            f"The timestamp should be within [{NOW - 1000}, {NOW + 500}]",
        )
        for i in (1, 5)
    ]
    # A batch that is not compacted would be refused for its first record alone.
    assert refused(
        LogConfig(cleanup_policy="compact"), Record(None, b"v", NOW), Record(b"k", b"v", NOW + 10**9)
    ).code is (ErrorCode.INVALID_TIMESTAMP)


def test_what_is_recompressed_must_fit_as_well() -> None:
    batch = build_batch([Record(b"k", bytes(5000), NOW)], compression=Compression.ZSTD)
    validated(LogConfig(max_message_bytes=1000), batch)
    with pytest.raises(ApiError) as caught:
        validated(LogConfig(max_message_bytes=1000, compression_type="uncompressed"), batch)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_what_is_recompressed_may_be_as_large_as_the_limit() -> None:
    batch = build_batch([Record(b"k", bytes(5000), NOW)], compression=Compression.ZSTD)
    plain = build_batch([Record(b"k", bytes(5000), NOW)])
    config = LogConfig(max_message_bytes=len(plain), compression_type="uncompressed")
    assert validated(config, batch) == [plain]
    with pytest.raises(ApiError) as caught:
        validated(replace(config, max_message_bytes=len(plain) - 1), batch)
    assert caught.value.message == (
        f"a batch of {len(plain)} bytes, compressed as compression.type=uncompressed, "
        f"exceeds max.message.bytes={len(plain) - 1}"
    )


def test_each_batch_of_a_request_gets_the_append_time() -> None:
    batches = [build_batch([Record(b"k", b"v" * n, n)] * n) for n in (1, 2, 3)]
    stored = validated(LogConfig(message_timestamp_type="LogAppendTime"), *batches)
    assert [[r.timestamp for r in read_records(batch)] for batch in stored] == [[NOW] * n for n in (1, 2, 3)]


def test_refused_records_are_counted_through_the_whole_request() -> None:
    keyed, keyless = Record(b"k", b"v", NOW), Record(None, b"v", NOW)
    request = build_batch([keyed, keyless, keyed]) + build_batch([keyless]) + build_batch([keyless] * 2)
    with pytest.raises(RecordsRefusedError) as caught:
        validator.validate(request, LogConfig(cleanup_policy="compact"), NOW, where="/logs/t-3")
    text = "Compacted topic cannot accept message without key in topic partition t-3"
    assert caught.value.records == [(index, text) for index in (1, 3, 4, 5)]
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{text}')" for index in (1, 3, 4))
    assert caught.value.message == (
        "One or more records have been rejected due to 4 record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )


def test_not_every_refused_record_is_named() -> None:
    """Their texts would be a hundred times as large as the request."""
    keyless = build_batch([Record(None, b"v", NOW)] * 3000)
    old = build_batch([Record(b"k", b"v", NOW - 2000)])
    config = LogConfig(cleanup_policy="compact", message_timestamp_before_max_ms=1000)
    with pytest.raises(RecordsRefusedError) as caught:
        validator.validate(keyless + keyless, config, NOW, where="/logs/t-3")
    assert [index for index, _ in caught.value.records] == list(range(MOST_RECORD_ERRORS))
    assert "due to 6000 record errors in total" in caught.value.message
    assert caught.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(RecordsRefusedError) as caught:
        validator.validate(keyless + old, config, NOW, where="/logs/t-3")
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP, "all are read"
    assert len(caught.value.records) == MOST_RECORD_ERRORS


@pytest.mark.parametrize(
    ("config", "reads"),
    [
        ({}, False),
        ({"cleanup_policy": "compact"}, True),
        ({"compression_type": "zstd"}, True),
        ({"cleanup_policy": "compact", "compression_type": "zstd"}, True),
        ({"message_timestamp_before_max_ms": FOREVER - 1}, True),
        ({"message_timestamp_type": "LogAppendTime"}, False),
        ({"message_timestamp_before_max_ms": 1, "message_timestamp_type": "LogAppendTime"}, False),
    ],
)
def test_records_are_read_only_where_the_configuration_speaks_of_them(
    config: dict[str, Any], reads: bool
) -> None:
    assert LogConfig(**config).reads_records is reads


# -- follower copies --------------------------------------------------------------------------------------------


def batch_at(first: int, last: int) -> bytes:
    return build_batch([Record(b"k", b"v", NOW, (), first)], base_offset=first, last_offset=last)


def refused_copy(data: bytes, end: int = 0, *, is_empty: bool = False) -> ApiError:
    with pytest.raises(ApiError) as caught:
        validator.validate_copied(memoryview(data), end, is_empty)
    return caught.value


def test_a_follower_takes_whole_batches_only() -> None:
    batch = batch_at(0, 0)
    for data, rest in (
        (b"", 0),
        (b"x", 1),
        (batch[:-1], len(batch) - 1),
        (batch + b"x", 1),
        (batch + batch_at(1, 1)[:-1], len(batch) - 1),
    ):
        error = refused_copy(data)
        assert error.code is ErrorCode.CORRUPT_MESSAGE
        assert error.message == f"{rest} bytes behind the last whole batch of 61+"


def test_a_follower_takes_no_damaged_batch() -> None:
    good, damaged = batch_at(5, 5), bytearray(batch_at(6, 6))
    damaged[-1] ^= 1
    for data, offset in ((bytes(damaged), 6), (good + damaged, 6)):
        error = refused_copy(data, 5)
        assert error.code is ErrorCode.CORRUPT_MESSAGE
        assert error.message == f"the batch at offset {offset} is damaged"


def test_a_follower_takes_ascending_offsets_from_its_end_on() -> None:
    headers = validator.validate_copied(memoryview(batch_at(5, 7) + batch_at(8, 9) + batch_at(20, 20)), 5)[1]
    assert [header.base_offset for header in headers] == [5, 8, 20]
    for data, offset, end in (
        (batch_at(4, 7), 4, 5),
        (batch_at(5, 7) + batch_at(7, 9), 7, 8),
        (batch_at(5, 7) + batch_at(5, 9), 5, 8),
    ):
        error = refused_copy(data, 5)
        assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert error.message == f"offset {offset} is before the end of the log, {end}"


def test_an_empty_log_may_begin_with_a_batch_that_reaches_its_start() -> None:
    for first, last in ((0, 5), (4, 9), (5, 5)):
        headers = validator.validate_copied(memoryview(batch_at(first, last)), 5, True)[1]
        assert headers[0].base_offset == first
    assert refused_copy(batch_at(0, 4), 5, is_empty=True).code is ErrorCode.OFFSET_OUT_OF_RANGE
    second = batch_at(0, 6) + batch_at(6, 7)
    assert refused_copy(second, 5, is_empty=True).code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_batches_of_one_copy_fit_one_segment() -> None:
    first, middle, last = batch_at(3, 3), batch_at(4, 4), batch_at(3 + INT32_MAX, 3 + INT32_MAX)
    assert len(validator.validate_copied(memoryview(first + middle + last), 0)[1]) == 3
    error = refused_copy(first + middle + batch_at(4 + INT32_MAX, 4 + INT32_MAX))
    assert error.code is ErrorCode.CORRUPT_MESSAGE
    assert error.message == f"offsets 3 to {4 + INT32_MAX} do not fit one segment"

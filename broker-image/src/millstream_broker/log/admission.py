"""Which valid batches a topic's configuration lets in, and what it changes about them.

message.timestamp.type=LogAppendTime   timestamps are replaced (timestamp and CRC, in place)
message.timestamp.{before,after}.max.ms  INVALID_TIMESTAMP outside of them. The records are not read: the first
                                       record's timestamp and the largest one are compared, as the header has them
cleanup.policy=compact                 INVALID_RECORD without a key (the only case in which records are read)
compression.type                       a codec other than `producer`: recompressed where it differs
"""

from __future__ import annotations

from ..protocol.errors import ApiError, ErrorCode
from .batch import (
    HEADER_SIZE,
    BatchHeader,
    crc_matches,
    has_keys_only,
    iter_batches,
    read_header,
    recompress,
    stamp_append_time,
)
from .compression import Compression
from .config import FOREVER, LogConfig


def admit(
    view: memoryview, headers: list[BatchHeader], config: LogConfig, now_ms: int
) -> tuple[memoryview, list[BatchHeader]]:
    """The batches to store, and their headers; ApiError where one is refused."""
    stamp = config.message_timestamp_type == "LogAppendTime"
    if not stamp:
        for header in headers:
            _check_timestamps(header, config, now_ms)
    if config.compacts:
        position = 0
        for header in headers:
            if not has_keys_only(view[position : position + header.size]):
                raise ApiError(
                    ErrorCode.INVALID_RECORD, "a record without a key in a topic with cleanup.policy=compact"
                )
            position += header.size
    if config.compression_type != "producer":
        view, headers = _recompress(view, headers, Compression.from_name(config.compression_type))
    if stamp:
        position = 0
        stamped = []
        for header in headers:
            stamped.append(stamp_append_time(view[position : position + header.size], header, now_ms))
            position += header.size
        headers = stamped
    return view, headers


def _check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.is_log_append_time:
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, "a producer may not send batches of type LogAppendTime")
    largest, first = header.max_timestamp, header.base_timestamp
    if largest - now_ms > config.message_timestamp_after_max_ms:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {largest} is more than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} after the broker's {now_ms}",
        )
    if config.message_timestamp_before_max_ms < FOREVER:
        for timestamp in (first, largest):
            if 0 <= timestamp < now_ms - config.message_timestamp_before_max_ms:
                raise ApiError(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"timestamp {timestamp} is more than message.timestamp.before.max.ms="
                    f"{config.message_timestamp_before_max_ms} before the broker's {now_ms}",
                )


def _recompress(
    view: memoryview, headers: list[BatchHeader], codec: Compression
) -> tuple[memoryview, list[BatchHeader]]:
    if all(header.compression is codec for header in headers):
        return view, headers
    stored = bytearray()
    position = 0
    changed = []
    for header in headers:
        batch: bytes | memoryview = view[position : position + header.size]
        if header.compression is not codec:
            batch = recompress(batch, header, codec)
        stored += batch
        changed.append(read_header(batch))
        position += header.size
    return memoryview(stored), changed


def check_copied(view: memoryview, log_end_offset: int) -> list[BatchHeader]:
    """Headers of batches that come from another log: whole, valid, ascending from ``log_end_offset`` on."""
    headers = []
    end, next_offset = 0, log_end_offset
    for position, header in iter_batches(view):
        if not header.is_plausible or not crc_matches(view[position : position + header.size]):
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is damaged")
        if header.base_offset < next_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {header.base_offset} is before the end of the log, {next_offset}",
            )
        headers.append(header)
        end, next_offset = position + header.size, header.next_offset
    if not headers or end != len(view):
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{len(view) - end} bytes behind the last whole batch of {HEADER_SIZE}+",
        )
    return headers

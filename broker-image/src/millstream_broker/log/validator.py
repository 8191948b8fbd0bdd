"""Applies a topic's configuration to valid batches: refuses or changes them.

message.timestamp.type=LogAppendTime   timestamps are replaced (timestamp, type and CRC, in place)
message.timestamp.after.max.ms         INVALID_TIMESTAMP beyond it, by the header's largest timestamp
message.timestamp.before.max.ms        the same, for each record
cleanup.policy=compact                 INVALID_RECORD for a record without a key
compression.type                       a codec other than `producer`: batches with another codec are recompressed
max.decompressed.message.bytes         INVALID_RECORD for a larger record of a compressed batch

The last four read the records, which takes long and, for compressed ones, much memory: `LogConfig.reads_records` and
`reads_compressed` tell so, and callers on the loop then leave :func:`validate` to a thread. A topic with Kafka's
defaults is not read. Its headers can show that a timestamp is too late, but not whose, or claim more records than so
few bytes should hold; or the batch is compressed, and decompressed records are limited. That raises a
HeaderRefusedError, after which the caller has the batch read. Kafka reads everything.
"""

from __future__ import annotations

import logging

from millstream_kafka import appendable
from millstream_kafka.appendable import BY_BROKER, HeaderRefusedError
from millstream_kafka.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    INT32_MAX,
    LEAST_RECORD,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MOST_OFFSETS,
    TRANSACTIONAL,
    BatchHeader,
    build_batch,
    crc_matches,
    iter_batches,
    read_header,
    read_records,
    scan_records,
    stamp_append_time,
)
from millstream_kafka.compression import Compression
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from ..topic_rules.mirrored_topics import LARGEST_EPOCH, LARGEST_OFFSET
from .append_origin import BY_THIS_BROKER, ENDS, AppendOrigin
from .config import LogConfig

logger = logging.getLogger(__name__)

Validated = tuple[memoryview, list[BatchHeader], int, AppendOrigin]
"""Batches that a log may write, and their headers; the append time, -1 unless message.timestamp.type=LogAppendTime.

Batches of clients and coordinators have no offsets yet. (A plain tuple, because each append makes one.)
"""

MOST_RECORD_ERRORS = 100
"""Refused records of a partition that a response names: a batch of 1 MB can have a million, with a text for each."""
_ALLOWED = {AppendOrigin.TRANSACTION: TRANSACTIONAL, **dict.fromkeys(BY_THIS_BROKER, BY_BROKER)}
"""Attributes that batches of an origin may have, besides codec and timestamp type."""


class RecordsRefusedError(ApiError):
    """Some records, and so all, are refused: positions in the request, and errors, of the first ones (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, records: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.records = records


def validate(
    batches: bytes | bytearray | memoryview,
    config: LogConfig,
    now_ms: int,
    *,
    where: str,
    read: bool = False,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> Validated:
    """Batches of a client or a coordinator, to store; ApiError if one is refused. In any thread.

    Writable batches are changed in place. ``where`` is the log's folder; ``read`` reads the records in any case.
    ApiError: those of ``batch.validate``, RecordsRefusedError, HeaderRefusedError, MESSAGE_TOO_LARGE for a
    recompressed batch, INVALID_RECORD for any other problem with these bytes. Raises nothing but ApiError.
    """
    try:
        return _admit(batches, config, now_ms, where, read or config.reads_records, origin)
    except ApiError:
        raise
    except Exception as error:
        logger.exception("%s: a batch is refused", where)
        raise ApiError(ErrorCode.INVALID_RECORD, f"a batch that cannot be appended: {error!r}") from error


def _admit(
    batches: bytes | bytearray | memoryview,
    config: LogConfig,
    now_ms: int,
    where: str,
    read: bool,
    origin: AppendOrigin,
) -> Validated:
    view = memoryview(batches)
    if view.readonly:
        view = memoryview(bytearray(view))
    largest = INT32_MAX if origin in ENDS else config.max_message_bytes
    headers = appendable.validate(view, largest, read=read, allowed=_ALLOWED.get(origin, 0))
    if config.reads_compressed and not read and any(header.compression for header in headers):
        raise HeaderRefusedError(ErrorCode.INVALID_RECORD, "compressed records that have not been read")
    stamp = config.message_timestamp_type == "LogAppendTime"
    if not (read or stamp) and any(
        _out_of_time(timestamp, config, now_ms)
        for header in headers
        for timestamp in (header.base_timestamp, header.max_timestamp)
        if timestamp < 0
    ):
        return _admit(view, config, now_ms, where, True, origin)
    if read:
        _check_records(view, headers, config, now_ms, where)
    for header in headers:
        if header.attributes & LOG_APPEND_TIME:
            raise HeaderRefusedError(
                ErrorCode.INVALID_TIMESTAMP, "a producer may not send batches of type LogAppendTime"
            )
        if not stamp and header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
            raise HeaderRefusedError(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {header.max_timestamp} is more than message.timestamp.after.max.ms="
                f"{config.message_timestamp_after_max_ms} after the broker's {now_ms}",
            )
    if config.compression_type != "producer":
        view, headers = _recompress(view, headers, config)
    if not stamp:
        return view, headers, -1, origin
    position = 0
    stamped = []
    for header in headers:
        stamped.append(stamp_append_time(view[position : position + header.size], header, now_ms))
        position += header.size
    return view, stamped, now_ms, origin


def _out_of_time(timestamp: int, config: LogConfig, now_ms: int) -> bool:
    """Whether Kafka refuses it. Kafka subtracts in 64 bits, so a time almost 2^63 ms ago counts as one to come."""
    if timestamp == -1:
        return False
    age = now_ms - timestamp
    if age >= 1 << 63:
        age -= 1 << 64
    return age > config.message_timestamp_before_max_ms or -age > config.message_timestamp_after_max_ms


def _check_records(
    view: memoryview, headers: list[BatchHeader], config: LogConfig, now_ms: int, where: str
) -> None:
    """RecordsRefusedError, in Kafka's words, if any record is to be refused."""
    stamp = config.message_timestamp_type == "LogAppendTime"
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    named: list[tuple[int, str]] = []
    refused = 0
    code = ErrorCode.INVALID_RECORD
    first = position = 0
    for header in headers:
        is_append_time = header.is_log_append_time
        batch = view[position : position + header.size]
        for index, (timestamp, has_key) in enumerate(
            scan_records(batch, config.max_decompressed_message_bytes), first
        ):
            if not has_key and config.compacts:
                partition = where.rpartition("/")[2]
                text = f"Compacted topic cannot accept message without key in topic partition {partition}"
            elif is_append_time:
                code = ErrorCode.INVALID_TIMESTAMP
                text = "Producer should not set timestamp type to LogAppendTime."
            elif not stamp and _out_of_time(timestamp, config, now_ms):
                code = ErrorCode.INVALID_TIMESTAMP
                text = (
                    f"Timestamp {timestamp} of message with offset {index} is out of range. "
                    f"The timestamp should be within [{earliest}, {latest}]"
                )
            else:
                continue
            refused += 1
            if refused <= MOST_RECORD_ERRORS:
                named.append((index, text))
        first += header.record_count
        position += header.size
    if not refused:
        return
    if code is ErrorCode.INVALID_TIMESTAMP:
        message = "One or more records have been rejected due to invalid timestamp"
    else:
        shown = ", ".join(f"RecordError(batchIndex={index}, message={text!r})" for index, text in named[:3])
        message = (
            f"One or more records have been rejected due to {refused} record errors in total, "
            f"and only showing the first three errors at most: [{shown}]"
        )
    raise RecordsRefusedError(code, message, named)


def _recompress(
    view: memoryview, headers: list[BatchHeader], config: LogConfig
) -> tuple[memoryview, list[BatchHeader]]:
    codec = Compression.from_name(config.compression_type)
    if all(header.compression is codec or header.is_control for header in headers):
        return view, headers
    stored = bytearray()
    position = 0
    changed = []
    for header in headers:
        batch: bytes | memoryview = view[position : position + header.size]
        position += header.size
        if header.compression is not codec and not header.is_control:
            batch = build_batch(
                read_records(batch, config.max_decompressed_message_bytes),
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.is_transactional,
                compression=codec,
                level=config.compression_level,
            )
            if len(batch) > config.max_message_bytes:
                raise ApiError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a batch of {len(batch)} bytes, compressed as compression.type={config.compression_type}, "
                    f"exceeds max.message.bytes={config.max_message_bytes}",
                )
        stored += batch
        changed.append(read_header(batch))
    return memoryview(stored), changed


def validate_copied(view: memoryview, log_end_offset: int, is_empty: bool = False) -> Validated:
    """A leader's batches, for a follower: whole, valid, ascending from ``log_end_offset`` on.

    The first batch for an empty log may begin before its end and reach beyond it, because a leader's log may start
    within a batch (DeleteRecords). Compaction leaves some batches with fewer records than offsets, and gaps between
    them. ApiError: CORRUPT_MESSAGE, even for a batch with more records or offsets than any leader accepts;
    OFFSET_OUT_OF_RANGE.
    """
    headers: list[BatchHeader] = []
    end, next_offset = 0, log_end_offset
    for position, header in iter_batches(view):
        if not _is_possible(header) or not crc_matches(view[position : position + header.size]):
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is damaged")
        starts_within = is_empty and not headers and header.last_offset >= next_offset
        if header.base_offset < next_offset and not starts_within:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {header.base_offset} is before the end of the log, {next_offset}",
            )
        headers.append(header)
        end, next_offset = position + header.size, header.next_offset
    if headers and headers[-1].last_offset - headers[0].base_offset > INT32_MAX:
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE,
            f"offsets {headers[0].base_offset} to {headers[-1].last_offset} do not fit one segment",
        )
    if not headers or end != len(view):
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{len(view) - end} bytes behind the last whole batch of {HEADER_SIZE}+",
        )
    return view, headers, -1, AppendOrigin.REPLICATION


def validate_mirrored(view: memoryview, log_end_offset: int, latest_epoch: int) -> Validated:
    """A source's batches, for a mirror's replica whose log ends there; as in :func:`validate_copied`.

    Any client may send them. ApiError also: INVALID_RECORD for control batches that no broker writes, and for offsets
    and epochs beyond any source's; FENCED_LEADER_EPOCH for an epoch below the previous one, or below ``latest_epoch``.
    """
    _, headers, *_ = validate_copied(view, log_end_offset)
    for header in headers:
        where = f"the batch at offset {header.base_offset}"
        if header.attributes & BY_BROKER and not _is_of_transaction(header):
            raise ApiError(
                ErrorCode.INVALID_RECORD, f"{where} is neither of a transaction's producer nor its marker"
            )
        epoch = header.partition_leader_epoch
        if not 0 <= epoch <= LARGEST_EPOCH or header.last_offset > LARGEST_OFFSET:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                f"{where} has leader epoch {epoch} and ends at {header.last_offset}: 0 to {LARGEST_EPOCH} and at most"
                f" {LARGEST_OFFSET} are allowed",
            )
        if epoch < latest_epoch:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{where} is of leader epoch {epoch}, the one before it of {latest_epoch}: the logs have diverged",
            )
        latest_epoch = epoch
    return view, headers, -1, AppendOrigin.MIRROR


def _is_of_transaction(header: BatchHeader) -> bool:
    """Whether a leader may have stored this batch of a transaction; a marker is one record, or none once compacted."""
    if not header.is_transactional or header.producer_id < 0 or header.producer_epoch < 0:
        return False
    return not header.is_control or (header.record_count <= 1 and header.compression is Compression.NONE)


def _is_possible(header: BatchHeader) -> bool:
    """Whether a log may contain such a batch: one that was accepted, and perhaps compacted."""
    size = header.batch_length + LOG_OVERHEAD - HEADER_SIZE
    return (
        header.is_plausible
        and header.last_offset_delta < MOST_OFFSETS
        and (header.record_count * LEAST_RECORD <= size or bool(header.attributes & CODEC_MASK))
    )

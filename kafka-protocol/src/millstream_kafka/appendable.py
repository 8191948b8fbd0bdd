"""Which record batches a client may append: :func:`validate`.

Each is whole, of magic 2, with a correct CRC, as many records as offsets, and no more than its size can hold. If the
records are read (:func:`batch.scan_records`), they are whole and their offsets count from 0.

How many records fit into a size: one takes at least ``LEAST_RECORD`` bytes. Compressed records take less, but not much
less: each has its own offset, so even equal records of the least size take 0.6 bytes each with the best codec (zstd).
A count above ``MOST_RECORDS_A_BYTE``, ten times what codecs reach, is trusted only after reading the records.
"""

from __future__ import annotations

from crc32c import crc32c

from .batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    INT32_MAX,
    LEAST_RECORD,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
)
from .compression import Compression
from .protocol.errors import ApiError, ErrorCode

LEAST_LENGTH = 14  # size of a message in any format
MOST_RECORDS_A_BYTE = 16  # if records are compressed
MOST_BATCHES = 20_000  # of a partition in a request: 1 MiB, which a mirror fetches at once, cannot have more
BY_BROKER = TRANSACTIONAL | CONTROL
_CODECS = frozenset(Compression)
_EMPTY_LENGTH = HEADER_SIZE - LOG_OVERHEAD


class HeaderRefusedError(ApiError):
    """The header alone does not qualify the batch; its records decide (``validator.validate`` with ``read``)."""


def validate(
    buffer: Buffer, max_message_bytes: int = INT32_MAX, *, read: bool = False, allowed: int = 0
) -> list[BatchHeader]:
    """Check the bytes that a client sent to append: one or more whole batches. Returns their headers.

    ``allowed`` are attributes besides codec and timestamp type: TRANSACTIONAL for a producer with a transactional id,
    BY_BROKER for batches that this broker has built, which need no sequence.

    ApiError, as in Kafka: INVALID_RECORD (no or part of a batch, magic 0 and 1, counts, codec, base offset, control
    batch, sequence), CORRUPT_MESSAGE (an impossible length or magic, CRC), MESSAGE_TOO_LARGE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_PRODUCER_ID_MAPPING (transactional, without a producer id). Does not
    read the records. HeaderRefusedError if they must be read, because there are too many for their bytes, unless the
    caller will ``read`` them.
    """
    view = memoryview(buffer)
    position, end = 0, len(view)
    headers: list[BatchHeader] = []
    if not end:
        raise ApiError(ErrorCode.INVALID_RECORD, "no record batch to append")
    while position < end:
        rest = end - position
        if rest > 16 and view[position + 16] < MAGIC:
            raise ApiError(
                ErrorCode.INVALID_RECORD, f"message format {view[position + 16]}: only format 2 is stored"
            )
        if rest < HEADER_SIZE:
            raise ApiError(ErrorCode.INVALID_RECORD, f"{rest} bytes where a batch has at least {HEADER_SIZE}")
        fields = HEADER.unpack_from(view, position)
        length, magic, crc = fields[1], fields[3], fields[4]
        if magic != MAGIC:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
        size = length + LOG_OVERHEAD
        if size > rest:
            raise ApiError(ErrorCode.INVALID_RECORD, f"a batch of {size} bytes in {rest} bytes")
        if size < HEADER_SIZE:
            if length < LEAST_LENGTH:
                least = f"the minimum record overhead ({LEAST_LENGTH})"
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"Record size {length} is less than {least}")
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE, f"{size} bytes where a batch has at least {HEADER_SIZE}"
            )
        if size > max_message_bytes:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {size} bytes exceeds max.message.bytes={max_message_bytes}",
            )
        if crc32c(view[position + CRC_START : position + size]) != crc:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the CRC does not match the batch")
        _check_client_header(fields, read, allowed)
        headers.append(tuple.__new__(BatchHeader, fields))
        if len(headers) > MOST_BATCHES:
            raise ApiError(
                ErrorCode.INVALID_RECORD, f"more than {MOST_BATCHES} batches for a partition in one request"
            )
        position += size
    return headers


def _check_client_header(fields: tuple[int, ...], read: bool, allowed: int) -> None:
    """`fields` are those of BatchHeader, as a plain tuple, which Python unpacks faster."""
    base_offset, length, _, _, _, attributes, last_offset_delta, _, _, producer, epoch, sequence, count = (
        fields
    )
    if base_offset:
        raise ApiError(ErrorCode.INVALID_RECORD, f"base offset {base_offset}: a producer sends 0")
    if count <= 0 or count != last_offset_delta + 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"{count} records with a last offset delta of {last_offset_delta}"
        )
    if count * LEAST_RECORD > length - _EMPTY_LENGTH:
        _check_count(count, length - _EMPTY_LENGTH, attributes, read)
    if attributes & ~(LOG_APPEND_TIME | allowed) not in _CODECS:
        if attributes & CONTROL:
            raise ApiError(ErrorCode.INVALID_RECORD, "control batches are written by brokers only")
        if attributes & TRANSACTIONAL:
            raise ApiError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch in a request without a transactional id",
            )
        raise ApiError(ErrorCode.INVALID_RECORD, f"attributes {attributes:#06x}: unknown codec or flag")
    if attributes & TRANSACTIONAL and producer < 0:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"a transactional batch with the producer id {producer}"
        )
    if producer >= 0 and (epoch < 0 or (sequence < 0 and not allowed & CONTROL)):
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"producer {producer} with epoch {epoch}, sequence {sequence}"
        )


def _check_count(count: int, size: int, attributes: int, read: bool) -> None:
    """Check whether this many records can have been compressed into `size` bytes."""
    what = f"{count} records in {size} bytes"
    if not attributes & CODEC_MASK:
        raise ApiError(ErrorCode.INVALID_RECORD, what)
    if not read and count > size * MOST_RECORDS_A_BYTE:
        raise HeaderRefusedError(ErrorCode.INVALID_RECORD, what)

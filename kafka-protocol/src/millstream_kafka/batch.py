"""Record batches of message format 2 (KIP-98): headers, and the records inside.

    0   base offset              i64     27  base timestamp      i64
    8   batch length             i32     35  max timestamp       i64
    12  partition leader epoch   i32     43  producer id         i64
    16  magic (2)                i8      51  producer epoch      i16
    17  CRC                      u32     53  base sequence       i32
    21  attributes               i16     57  record count        i32
    23  last offset delta        i32     61  records, compressed together

The batch length counts from byte 12, and the CRC-32C covers everything from byte 21, so the broker may set base offset
and leader epoch without changing it. Attributes: bits 0–2 codec, 3 timestamp type (1 = LogAppendTime), 4
transactional, 5 control, 6 the base timestamp is a delete horizon (KIP-534).

A record: length, attributes i8, timestamp delta, offset delta, key length, key, value length, value, header count,
headers; each number but the attributes a zigzag varint, a length of -1 meaning null. Timestamps are 64 bits, as are
deltas: sums wrap, as in Java.

Batches in a log may hold fewer records than offsets, even none: compaction removes records and keeps offsets. What a
client may append: see ``appendable``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

from crc32c import crc32c

from .compression import Compression, Plain, compress, decompress
from .protocol.errors import ApiError, ErrorCode
from .varints import VARLONG, read_bytes, read_varint, write_bytes, write_varint

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size  # 61
LOG_OVERHEAD = 12  # base offset and batch length, which the batch length does not count
LEAST_RECORD = 7  # length, attributes, two deltas, no key, no value, no headers: a byte each
_LEAST_BODY = LEAST_RECORD - 1  # the part that its length counts
MOST_HEADERS_A_RECORD = 10_000  # that are read: 60 million empty ones are compressed to 4 KB
MOST_HEADERS = 1_000_000  # in a batch, or one for each of its bytes
MOST_OFFSETS = 0x7FFFFFFF // LEAST_RECORD  # in a batch, which has less than 2 GiB
PLACEMENT = struct.Struct(">qii")  # the fields set by the broker: base offset, (length), leader epoch
CRC_OFFSET = 17
CRC_START = 21  # the first byte under the CRC
MAX_TIMESTAMP_OFFSET = 35
MAGIC = 2
INT32_MAX = 0x7FFFFFFF
LARGEST_RECORD = INT32_MAX - 8
"""The largest max.decompressed.message.bytes, which bounds nothing."""
INT64_MAX = 0x7FFFFFFFFFFFFFFF
_INT64_MIN = -0x8000000000000000
_UINT64_MAX = 0xFFFFFFFFFFFFFFFF
NO_PRODUCER = -1

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

Buffer = bytes | bytearray | memoryview
Headers = tuple[tuple[str, bytes | None], ...]


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:  # of a coordinator
            return -1
        return advance_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & CODEC_MASK)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_plausible(self) -> bool:
        """Whether these can be the first 61 bytes of a batch; does not check the CRC."""
        return (
            self.magic == MAGIC
            and self.batch_length >= HEADER_SIZE - LOG_OVERHEAD
            and self.base_offset >= 0
            and self.last_offset_delta >= 0
            and 0 <= self.record_count <= self.last_offset_delta + 1
        )


class TooManyHeadersError(ApiError):
    """INVALID_RECORD: a batch with more headers than are read. Its records may be whole (:func:`skim_records`)."""


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int = -1
    headers: Headers = ()
    offset: int = -1  # set by read_records; build_batch numbers records without an offset


def advance_sequence(sequence: int, count: int) -> int:
    """Sequence numbers wrap from 2^31 - 1 to 0."""
    return (sequence + count) & INT32_MAX


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def iter_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; stops silently at a partial one, as consumers do.

    Checks structure only. CORRUPT_MESSAGE for an impossible length.
    """
    position, end = 0, len(buffer)
    while position + HEADER_SIZE <= end:
        header = read_header(buffer, position)
        if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
            _refuse(ErrorCode.CORRUPT_MESSAGE, f"a batch length of {header.batch_length} at byte {position}")
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def crc_matches(batch: Buffer) -> bool:
    """Whether a whole batch is undamaged."""
    return crc32c(memoryview(batch)[CRC_START:]) == int.from_bytes(batch[CRC_OFFSET:CRC_START], "big")


def stamp_append_time(batch: bytearray | memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Make ``now_ms`` the timestamp of every record (message.timestamp.type=LogAppendTime), in place."""
    attributes = header.attributes | LOG_APPEND_TIME
    struct.pack_into(">h", batch, CRC_START, attributes)
    struct.pack_into(">q", batch, MAX_TIMESTAMP_OFFSET, now_ms)
    crc = crc32c(memoryview(batch)[CRC_START:])
    struct.pack_into(">I", batch, CRC_OFFSET, crc)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    transactional: bool = False,
    control: bool = False,
    append_time: int | None = None,
    delete_horizon: int | None = None,
) -> bytes:
    """One batch of ``records``.

    Records with an offset keep it (ascending, from ``base_offset``), others follow the previous. ``last_offset`` may
    exceed the last record's: compaction keeps a batch's range. ``append_time`` becomes the LogAppendTime of all.
    """
    body = bytearray()
    count = 0
    next_offset = base_offset
    base_timestamp = delete_horizon if delete_horizon is not None else -1
    max_timestamp = -1
    for record in records:
        offset = next_offset if record.offset < 0 else record.offset
        if offset < next_offset:
            raise ValueError(f"record offset {offset} after {next_offset - 1}")
        if not count and delete_horizon is None:
            base_timestamp = record.timestamp
        max_timestamp = max(max_timestamp, record.timestamp)
        _write_record(body, record, _int64(record.timestamp - base_timestamp), offset - base_offset)
        next_offset = offset + 1
        count += 1
    attributes = int(compression)
    attributes |= TRANSACTIONAL if transactional else 0
    attributes |= CONTROL if control else 0
    attributes |= DELETE_HORIZON if delete_horizon is not None else 0
    if append_time is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = append_time
    packed = compress(compression, body, level)
    batch = bytearray(HEADER_SIZE)
    batch += packed
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        (next_offset - 1 if last_offset is None else last_offset) - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    struct.pack_into(">I", batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def empty_batch(header: BatchHeader) -> bytes:
    """The header of an empty batch, which compaction keeps when it has removed all records."""
    batch = bytearray(HEADER_SIZE)
    attributes = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    emptied = header._replace(
        batch_length=HEADER_SIZE - LOG_OVERHEAD, attributes=attributes, base_timestamp=-1, record_count=0
    )
    HEADER.pack_into(batch, 0, *emptied)
    struct.pack_into(">I", batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def read_records(batch: Buffer, most: int = LARGEST_RECORD) -> Iterator[Record]:
    """The records of one whole batch (its CRC is not checked here), by ascending offsets within the batch's range.

    INVALID_RECORD for any bytes that cannot be read, and for a compressed record of more than ``most`` bytes
    (max.decompressed.message.bytes); TooManyHeadersError.
    """
    view = memoryview(batch)
    header = read_header(view)
    try:
        data = _plain_records(header, view, most)
        position = 0
        least, last = header.base_offset, header.last_offset
        headers_left = most_headers(header)
        for _ in range(header.record_count):
            record, position = _read_record(data, position, header, headers_left)
            if record.headers:
                headers_left -= len(record.headers)
            if not least <= record.offset <= last:
                raise ValueError(f"offset {record.offset} where {least} to {last} may follow")
            least = record.offset + 1
            yield record
        if position != len(data):
            raise ValueError(f"{len(data) - position} bytes behind the last record")
    except TooManyHeadersError:
        raise
    except Exception as error:
        _refuse(ErrorCode.INVALID_RECORD, f"batch at offset {header.base_offset}: {error}")


def scan_records(batch: Buffer, most: int = LARGEST_RECORD) -> Iterator[tuple[int, bool]]:
    """The original timestamp of each record of a client's batch, and whether it has a key.

    INVALID_RECORD as in :func:`read_records`, and unless the records' offsets count from 0. Keys, values and headers
    are measured and skipped.
    """
    view = memoryview(batch)
    header = read_header(view)
    try:
        data = _plain_records(header, view, most)
        position = 0
        headers_left = most_headers(header)
        for index in range(header.record_count):
            end, time_delta, offset, position = _begin_record(data, position)
            if offset != index:
                raise ValueError(f"record {index} has the offset delta {offset}")
            key, position = read_varint(data, position)
            size, position = read_varint(data, position + max(key, 0))
            count, position = read_varint(data, position + max(size, 0))
            if count:
                _check_headers(header, count, headers_left)
                headers_left -= count
                position = _skip_headers(data, position, count)
            if position != end:
                raise ValueError(f"a record ends at byte {position}, its length says {end}")
            yield _int64(header.base_timestamp + time_delta), key >= 0
        if position != len(data):
            raise ValueError(f"{len(data) - position} bytes behind the last record")
    except TooManyHeadersError:
        raise
    except Exception as error:
        _refuse(ErrorCode.INVALID_RECORD, f"batch at offset {header.base_offset}: {error}")


def skim_records(batch: Buffer, most: int = LARGEST_RECORD) -> Iterator[tuple[int, int, bytes | None]]:
    """Timestamp, offset and key of each record of a stored batch, in the order of :func:`read_records`.

    INVALID_RECORD if they cannot be read. What follows a key is skipped by the record's length and not checked, so it
    takes no time, however many headers there are.
    """
    view = memoryview(batch)
    header = read_header(view)
    append_time = header.max_timestamp if header.is_log_append_time else None
    try:
        data = _plain_records(header, view, most)
        position = 0
        least, last = header.base_offset, header.last_offset
        for _ in range(header.record_count):
            end, time_delta, offset, position = _begin_record(data, position)
            offset += header.base_offset
            if not least <= offset <= last:
                raise ValueError(f"offset {offset} where {least} to {last} may follow")
            least = offset + 1
            key, position = read_bytes(data, position)
            if position > end:
                raise ValueError(f"a key ends at byte {position}, its record at {end}")
            position = end
            timestamp = _int64(header.base_timestamp + time_delta) if append_time is None else append_time
            yield timestamp, offset, key
        if position != len(data):
            raise ValueError(f"{len(data) - position} bytes behind the last record")
    except Exception as error:
        _refuse(ErrorCode.INVALID_RECORD, f"batch at offset {header.base_offset}: {error}")


def most_headers(header: BatchHeader) -> int:
    """How many headers are read in this batch; an uncompressed one cannot have more."""
    return max(MOST_HEADERS, header.size)


def _check_headers(header: BatchHeader, count: int, left: int) -> None:
    """Check the number of headers that a record claims; the batch may have ``left`` more."""
    if 0 <= count <= min(MOST_HEADERS_A_RECORD, left):
        return
    if count < 0:
        raise ValueError(f"{count} headers in a record")
    few = f"{MOST_HEADERS_A_RECORD} in a record, {most_headers(header)} in the batch"
    raise TooManyHeadersError(
        ErrorCode.INVALID_RECORD,
        f"batch at offset {header.base_offset}: too many headers, {count} in a record: at most {few}",
    )


def _skip_headers(data: Plain, position: int, count: int) -> int:
    """The end of a record's headers, which begin at ``position``."""
    for _ in range(count):
        name, position = read_varint(data, position)
        if name < 0:
            raise ValueError("a header without a name")
        size, position = read_varint(data, position + name)
        position += max(size, 0)
    return position


def _plain_records(header: BatchHeader, view: memoryview, most: int) -> Plain:
    """The records of a batch, decompressed. ValueError, at once, if a compressed one takes more than ``most`` bytes."""
    if not header.record_count:  # compaction removed all records: there is nothing to decompress
        return b""
    packed = view[HEADER_SIZE : header.size]
    if header.compression is Compression.NONE:
        return bytes(packed)
    sizes = _RecordSizes(header.record_count, most) if most < LARGEST_RECORD else None
    return decompress(header.compression, packed, sizes)


class _RecordSizes:
    """Finds the first record of more than ``most`` bytes while a batch is being decompressed, from its length alone."""

    def __init__(self, count: int, most: int) -> None:
        self._left = count
        self._most = most
        self._position = 0

    def __call__(self, plain: memoryview) -> None:
        """Check the records whose length is within ``plain``, the first bytes of all. ValueError."""
        while self._left and self._position < len(plain):
            try:
                length, start = read_varint(plain, self._position)
            except IndexError:
                return
            if length > self._most:
                raise ValueError(
                    f"Invalid record size: {length} exceeds the configured maximum record size of {self._most}."
                )
            self._left -= 1
            self._position = start + max(length, 0)


def _write_record(body: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    data = bytearray(1)  # attributes, unused
    write_varint(data, timestamp_delta)
    write_varint(data, offset_delta)
    write_bytes(data, record.key)
    write_bytes(data, record.value)
    write_varint(data, len(record.headers))
    for name, value in record.headers:
        write_bytes(data, name.encode())
        write_bytes(data, value)
    write_varint(body, len(data))
    body += data


def _begin_record(data: Plain, position: int) -> tuple[int, int, int, int]:
    """The end of a record, its timestamp and offset deltas, and the position of its key."""
    length, position = read_varint(data, position)
    end = position + length
    if length < _LEAST_BODY or end > len(data):
        raise ValueError(f"a record of {length} bytes at byte {position} of {len(data)}")
    time_delta, position = read_varint(data, position + 1, VARLONG)
    offset_delta, position = read_varint(data, position)
    return end, time_delta, offset_delta, position


def _read_record(data: Plain, position: int, header: BatchHeader, headers_left: int) -> tuple[Record, int]:
    end, timestamp_delta, offset_delta, position = _begin_record(data, position)
    key, position = read_bytes(data, position)
    value, position = read_bytes(data, position)
    count, position = read_varint(data, position)
    if count:
        _check_headers(header, count, headers_left)
    headers = []
    for _ in range(count):
        name, position = read_bytes(data, position)
        content, position = read_bytes(data, position)
        if name is None:
            raise ValueError("a header without a name")
        headers.append((name.decode(errors="replace"), content))
    if position != end:
        raise ValueError(f"a record ends at byte {position}, its length says {end}")
    timestamp = (
        header.max_timestamp if header.is_log_append_time else _int64(header.base_timestamp + timestamp_delta)
    )
    return Record(key, value, timestamp, tuple(headers), header.base_offset + offset_delta), end


def _int64(value: int) -> int:
    """Wrap to 64 bits, as in Java."""
    return (value - _INT64_MIN & _UINT64_MAX) + _INT64_MIN


def _refuse(code: ErrorCode, message: str) -> NoReturn:
    raise ApiError(code, message)

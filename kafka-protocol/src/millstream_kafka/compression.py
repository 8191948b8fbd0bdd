"""The five codecs of record batches, as Kafka's clients frame them.

    1 gzip    RFC 1952
    2 snappy  xerial framing (snappy-java): magic, version 1, compatible 1, then blocks of i32 length | raw snappy.
              Some clients send one raw snappy block without framing, which is accepted, too.
    3 lz4     LZ4 frame with independent blocks (Kafka's Java client refuses dependent ones)
    4 zstd    RFC 8878 (KIP-110)

The produce and fetch paths never come here: batches stay compressed as received. Only internal topics, compaction,
recompression (``compression.type``) and look-ups by timestamp do.
"""

from __future__ import annotations

import gzip
import mmap
import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam


class Compression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Compression:
        """The codec of a ``compression.type``; ``uncompressed`` means none."""
        return cls.NONE if name in ("uncompressed", "none") else cls[name.upper()]


MAX_DECOMPRESSED = 128 << 20  # per batch

_XERIAL = struct.Struct(">8sii")
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_BLOCK = 32 * 1024
_LENGTH = struct.Struct(">i")
_LEAST_SLICE, _LARGEST_SLICE = 1024, 64 * 1024
_STEP = 8  # how much larger the next buffer is
_COPIED = 1 << 20  # a result up to this size is copied out of its buffer


def compress(codec: Compression, data: bytes | bytearray, level: int | None = None) -> bytes:
    """``level`` is on the codec's own scale, and None is its default; snappy has none (KIP-390)."""
    if codec is Compression.GZIP:
        return gzip.compress(data, compresslevel=6 if level is None else level, mtime=0)
    if codec is Compression.SNAPPY:
        framed = bytearray(_XERIAL.pack(_XERIAL_MAGIC, 1, 1))
        for start in range(0, len(data), _XERIAL_BLOCK):
            block = cramjam.snappy.compress_raw(bytes(data[start : start + _XERIAL_BLOCK]))
            framed += _LENGTH.pack(len(block))
            framed += block
        return bytes(framed)
    if codec is Compression.LZ4:
        compressor = cramjam.lz4.Compressor(level=level, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    if codec is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(bytes(data), level=level))
    return bytes(data)


Plain = bytes | mmap.mmap
"""Decompressed bytes: a large result stays in the pages into which it was decompressed."""
Inspect = Callable[[memoryview], None]
"""Called with the first bytes while they become more, and at last with all. Raises ValueError to end it."""


def decompress(codec: Compression, data: memoryview, inspect: Inspect | None = None) -> Plain:
    """The records of a batch; ValueError if the codec did not write ``data``, or if they exceed MAX_DECOMPRESSED.

    Memory grows with what has been decompressed, not with what ``data`` claims: ``inspect`` sees it in steps.
    """
    try:
        if codec is Compression.GZIP:
            return _gunzip(data, inspect)
        if codec is Compression.SNAPPY:
            return _snappy(bytes(data), inspect)
        if codec is Compression.LZ4:
            return _into_bounded(cramjam.lz4.decompress_into, bytes(data), inspect)
        if codec is Compression.ZSTD:
            return _into_bounded(cramjam.zstd.decompress_into, bytes(data), inspect)
    except (cramjam.DecompressionError, EOFError, zlib.error, struct.error) as error:
        raise ValueError(f"records are not valid {codec.name.lower()}, or too large: {error}") from error
    return bytes(data)


def _into_bounded(
    decompress_into: Callable[[bytes, Any], int], data: bytes, inspect: Inspect | None
) -> Plain:
    """Use a small buffer, then larger ones: a batch of a few bytes may claim gigabytes.

    A buffer that is too small contains the first bytes. Pages of a large one that stay unused take no memory.
    """
    size = min(max(65_536, 16 * len(data)), MAX_DECOMPRESSED)
    while True:
        buffer = bytearray(size) if size <= _COPIED else mmap.mmap(-1, size)
        try:
            length = decompress_into(data, buffer)
        except cramjam.DecompressionError:
            if size == MAX_DECOMPRESSED:
                raise
            _inspect(inspect, buffer)
            size = min(_STEP * size, MAX_DECOMPRESSED)
            continue
        plain: Plain
        if length <= _COPIED or isinstance(buffer, bytearray):
            plain = bytes(memoryview(buffer)[:length])
        else:
            buffer.resize(length)
            plain = buffer
        _inspect(inspect, plain)
        return plain


def _inspect(inspect: Inspect | None, plain: Plain | bytearray) -> None:
    if inspect is not None:
        with memoryview(plain) as view:
            inspect(view)


def _gunzip(data: memoryview, inspect: Inspect | None) -> bytes:
    """Feed each member small slices, then larger ones: zlib copies what follows the member's end in a slice."""
    plain = bytearray()
    position = 0
    while True:
        member = zlib.decompressobj(wbits=31)
        size = _LEAST_SLICE
        while not member.eof:
            taken = data[position : position + size]
            grown = member.decompress(taken, min(4 * _LARGEST_SLICE, MAX_DECOMPRESSED + 1 - len(plain)))
            plain += grown
            if not (taken or grown) or len(plain) > MAX_DECOMPRESSED:
                raise EOFError(f"{len(plain)} bytes and no end")
            _inspect(inspect, plain)
            position += len(taken) - len(member.unused_data) - len(member.unconsumed_tail)
            size = min(2 * size, _LARGEST_SLICE)
        if position == len(data):
            return bytes(plain)


def _snappy(data: bytes, inspect: Inspect | None) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        block = _raw_snappy(data, MAX_DECOMPRESSED)
        _inspect(inspect, block)
        return block
    plain = bytearray()
    position = _XERIAL.size
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if not 0 < length <= len(data) - position:
            raise ValueError(f"a snappy block of {length} bytes at byte {position} of {len(data)}")
        plain += _raw_snappy(data[position : position + length], MAX_DECOMPRESSED - len(plain))
        _inspect(inspect, plain)
        position += length
    return bytes(plain)


def _raw_snappy(data: bytes, limit: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)  # the block begins with its size
    if size > limit:
        raise ValueError(f"{size} bytes where at most {limit} may follow")
    if 3 * size > 64 * len(data):  # three bytes give at most 64
        raise ValueError(f"a snappy block of {len(data)} bytes claims {size} bytes")
    return bytes(cramjam.snappy.decompress_raw(data))

"""The five codecs a record batch may name, as Kafka's clients frame them.

    1 gzip    RFC 1952
    2 snappy  xerial framing (snappy-java): magic, version 1, compatible 1, then blocks of i32 length | raw snappy.
              Some clients send one raw snappy block without framing; that is read too.
    3 lz4     LZ4 frame with independent blocks (Kafka's Java client refuses dependent ones)
    4 zstd    RFC 8878 (KIP-110)

The produce and fetch paths never come here: batches stay compressed as received. Only internal topics, compaction,
recompression (``compression.type``) and look-ups by timestamp do.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from enum import IntEnum

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


_XERIAL = struct.Struct(">8sii")
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_BLOCK = 32 * 1024
_LENGTH = struct.Struct(">i")


def compress(codec: Compression, data: bytes | bytearray) -> bytes:
    if codec is Compression.GZIP:
        return gzip.compress(data, compresslevel=6, mtime=0)
    if codec is Compression.SNAPPY:
        framed = bytearray(_XERIAL.pack(_XERIAL_MAGIC, 1, 1))
        for start in range(0, len(data), _XERIAL_BLOCK):
            block = cramjam.snappy.compress_raw(bytes(data[start : start + _XERIAL_BLOCK]))
            framed += _LENGTH.pack(len(block))
            framed += block
        return bytes(framed)
    if codec is Compression.LZ4:
        compressor = cramjam.lz4.Compressor(block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    if codec is Compression.ZSTD:
        return bytes(cramjam.zstd.compress(bytes(data)))
    return bytes(data)


def decompress(codec: Compression, data: memoryview) -> bytes | memoryview:
    """The records of a batch; ValueError when ``data`` is not what the codec writes."""
    try:
        if codec is Compression.GZIP:
            return gzip.decompress(data)
        if codec is Compression.SNAPPY:
            return _snappy(bytes(data))
        if codec is Compression.LZ4:
            return bytes(cramjam.lz4.decompress(bytes(data)))
        if codec is Compression.ZSTD:
            return bytes(cramjam.zstd.decompress(bytes(data)))
    except (cramjam.DecompressionError, OSError, EOFError, zlib.error, struct.error) as error:
        raise ValueError(f"records are not valid {codec.name.lower()}: {error}") from error
    return data


def _snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    plain = bytearray()
    position = _XERIAL.size
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(data):
            raise ValueError(f"a snappy block of {length} bytes at byte {position} of {len(data)}")
        plain += bytes(cramjam.snappy.decompress_raw(data[position : position + length]))
        position += length
    return bytes(plain)

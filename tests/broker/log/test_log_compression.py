"""The codecs: round trips, compatibility with Kafka's clients, and damaged input."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_kafka import compression
from millstream_kafka.compression import Compression, compress, decompress

codecs = st.sampled_from(Compression)


@given(st.binary(max_size=100_000), codecs)
@settings(deadline=None, max_examples=50)
def test_codecs_round_trip(data: bytes, codec: Compression) -> None:
    assert bytes(decompress(codec, memoryview(compress(codec, data)))) == data


def test_a_snappy_block_may_be_of_nothing() -> None:
    empty, full = (bytes(cramjam.snappy.compress_raw(data)) for data in (b"", b"x" * 9))
    framed = compress(Compression.SNAPPY, b"")
    for block in (empty, full, empty):
        framed += struct.pack(">i", len(block)) + block
    assert len(empty) == 1
    assert decompress(Compression.SNAPPY, memoryview(framed)) == b"x" * 9


def test_snappy_may_come_without_framing() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"x" * 1000))
    assert decompress(Compression.SNAPPY, memoryview(raw)) == b"x" * 1000


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_a_small_batch_cannot_fill_the_memory(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 4 << 20
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED", limit)
    just = compress(codec, bytes(limit))
    assert len(decompress(codec, memoryview(just))) == limit
    too_large = compress(codec, bytes(limit + 1))
    with pytest.raises(ValueError, match=r"too large|at most"):
        decompress(codec, memoryview(too_large))


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("data", [b"", b"no codec wrote this", zlib.compress(b"another format")])
def test_what_the_codec_did_not_write_is_refused(codec: Compression, data: bytes) -> None:
    with pytest.raises(ValueError, match=codec.name.lower()):
        decompress(codec, memoryview(data))


@pytest.mark.parametrize("beyond", [-100, 0, 1])
def test_a_snappy_block_lies_within_the_records(beyond: int) -> None:
    data = bytearray(compress(Compression.SNAPPY, b"some bytes"))
    length = len(data) - 20 + beyond if beyond else 0
    data[16:20] = struct.pack(">i", length)
    with pytest.raises(ValueError, match=f"a snappy block of {length} bytes at byte 20 of {len(data)}"):
        decompress(Compression.SNAPPY, memoryview(data))


def test_all_members_of_gzip_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data beyond the limit is not even decompressed."""
    limit = 4 << 20
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED", limit)
    member = compress(Compression.GZIP, bytes(limit))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="too large"):
            decompress(Compression.GZIP, memoryview(member + member))
        assert tracemalloc.get_traced_memory()[1] < 3 * limit
    finally:
        tracemalloc.stop()


def test_gzip_may_have_several_members() -> None:
    data = compress(Compression.GZIP, b"one") + compress(Compression.GZIP, b"two")
    assert decompress(Compression.GZIP, memoryview(data)) == b"onetwo"
    for broken in (data[:-1], data + b"\0", data + data[:5]):
        with pytest.raises(ValueError, match="gzip"):
            decompress(Compression.GZIP, memoryview(broken))


@given(st.lists(st.binary(max_size=3) | st.integers(0, 300_000).map(random.Random(1).randbytes), max_size=5))
@settings(deadline=None, max_examples=30)
def test_gzip_may_have_members_of_any_size(parts: list[bytes]) -> None:
    data = b"".join(compress(Compression.GZIP, part) for part in (*parts, b"x"))
    assert decompress(Compression.GZIP, memoryview(data)) == b"".join(parts) + b"x"


def test_each_gzip_member_reads_few_bytes_of_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each used to copy all that followed, so four times the members took sixteen times as long."""
    fed = 0

    class Counted:
        def __init__(self, wbits: int) -> None:
            self._member = made(wbits=wbits)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._member, name)

        def decompress(self, data: memoryview, most: int) -> bytes:
            nonlocal fed
            fed += len(data)
            return self._member.decompress(data, most)

    made = zlib.decompressobj
    monkeypatch.setattr(compression.zlib, "decompressobj", Counted)
    members = 1_000
    data = compress(Compression.GZIP, b"") * members + compress(Compression.GZIP, b"x")
    assert decompress(Compression.GZIP, memoryview(data)) == b"x"
    assert len(data) <= fed <= 1024 * (members + 1)


def test_equal_records_give_equal_bytes() -> None:
    data = b"".join(b"value %d of %d " % (n, n * n % 977) for n in range(3000))
    for codec in Compression:
        assert compress(codec, data) == compress(codec, data)
    assert compress(Compression.GZIP, data)[4:8] == bytes(4)  # no timestamp


def test_the_default_level_of_gzip_is_6() -> None:
    data = b"".join(b"value %d of %d " % (n, n * n % 977) for n in range(3000))
    default = compress(Compression.GZIP, data)
    assert default == compress(Compression.GZIP, data, -1) == compress(Compression.GZIP, data, 6)
    for level in (1, 5, 7, 9):
        assert default != compress(Compression.GZIP, data, level)
    assert len(compress(Compression.GZIP, data, 1)) > len(default)


def test_snappy_is_framed_as_version_1() -> None:
    framed = compress(Compression.SNAPPY, bytes(70_000))
    assert framed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    sizes, position = [], 16
    while position < len(framed):
        (length,) = struct.unpack_from(">i", framed, position)
        block = framed[position + 4 : position + 4 + length]
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(block))))
        position += 4 + length
    assert sizes == [32_768, 32_768, 70_000 - 65_536]


def test_lz4_blocks_are_independent() -> None:
    """Kafka's Java client rejects linked blocks."""
    frame = compress(Compression.LZ4, bytes(300_000))
    assert frame[:4] == struct.pack("<I", 0x184D2204)
    assert frame[4] & 0x20


@pytest.mark.parametrize("name", ["none", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_names_of_codecs(name: str) -> None:
    codec = Compression.from_name(name)
    assert codec.name.lower() == ("none" if name == "uncompressed" else name)

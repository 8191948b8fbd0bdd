"""Zigzag varints, and bytes behind a length of that form, as the records of a batch contain them."""

from __future__ import annotations

import mmap

Data = bytes | memoryview | mmap.mmap

VARINT, VARLONG = 35, 70  # bits that five and ten bytes have


def write_varint(data: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)


def read_varint(data: Data, position: int, most_bits: int = VARINT) -> tuple[int, int]:
    """The number at ``position``, and the position after it. IndexError, ValueError."""
    byte = data[position]
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > most_bits:
            raise ValueError(f"a number of more than {most_bits // 7} bytes at byte {position}")
    return (value >> 1) ^ -(value & 1), position + 1


def write_bytes(data: bytearray, value: bytes | None) -> None:
    if value is None:
        data.append(1)  # the varint -1
    else:
        write_varint(data, len(value))
        data += value


def read_bytes(data: Data, position: int) -> tuple[bytes | None, int]:
    """The bytes whose length is at ``position``, None for a negative one; and the position after them."""
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data):
        raise ValueError(f"{length} bytes at byte {position} of {len(data)}")
    return bytes(data[position:end]), end

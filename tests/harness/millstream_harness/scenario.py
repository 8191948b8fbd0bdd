"""The scenario that every compatibility test runs with its client.

A client produces ``RECORDS`` once with each codec and reads back exactly these; its groups resume where they
committed, share partitions and hand them over; its admin calls create, describe and delete topics.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP_MS = 1_700_000_000_000
DEADLINE_S = 60.0
"""For what takes a second on an idle machine."""

T = TypeVar("T")

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Sample:
    """A record that a client writes and must read back."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


def _sample(number: int) -> Sample:
    return Sample(
        key=None if number % 10 == 9 else b"key-%d" % (number % 7),
        value=None if number % 25 == 23 else b"value-%d " % number + b"x" * (number * 3),
        headers=() if number % 3 else (("trace", b"%d" % number), ("empty", b"")),
        timestamp_ms=BASE_TIMESTAMP_MS + number,
    )


# Null and empty keys and values, empty headers, values long enough for a codec to matter.
RECORDS: tuple[Sample, ...] = tuple(_sample(number) for number in range(200))


def unique(name: str) -> str:
    """A name of a topic or group, unique in this run."""
    return f"{name}-{os.getpid()}-{next(_numbers)}"


def eventually(
    read: Callable[[], T], accept: Callable[[T], bool], what: str, seconds: float = DEADLINE_S
) -> T:
    """Call ``read`` until ``accept`` accepts the result; AssertionError with the last result at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = read()
        if accept(value):
            return value
        assert time.monotonic() < deadline, f"{what}: still {value!r} after {seconds} s"
        time.sleep(0.02)


def log_bytes(folder: Path) -> float:
    """Size of a partition's segments; infinite while the cleaner replaces one of them."""
    try:
        return sum(path.stat().st_size for path in folder.glob("*.log"))
    except FileNotFoundError:
        return math.inf


def partitions_by_key(pairs: Iterable[tuple[bytes | None, int]]) -> Mapping[bytes, int]:
    """The partition of each key; AssertionError if a key is in two."""
    found: dict[bytes, int] = {}
    for key, partition in pairs:
        if key is not None:
            assert found.setdefault(key, partition) == partition, f"{key!r} is in two partitions"
    return found

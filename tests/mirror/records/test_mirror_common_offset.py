"""The last common offset of two logs: found for any logs with a common beginning, with few comparisons."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from millstream_kafka.batch import Record, build_batch, read_header
from millstream_mirror.records.common_offset import CommonOffset

SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=40)
"""Records of each batch, and offsets missing before it."""


class Log:
    def __init__(self, start: int = 0) -> None:
        self.batches: list[bytes] = []
        self.start = self.end = start

    def add(self, records: int, gap: int, epoch: int, value: bytes) -> None:
        first = self.end + gap
        self.end = first + records
        self.batches.append(
            build_batch([Record(None, value, 1)] * records, base_offset=first, leader_epoch=epoch)
        )

    def at(self, offset: int) -> bytes | None:
        return next((one for one in self.batches if read_header(one).next_offset > offset), None)

    def without(self, count: int) -> None:
        """Retention deletes the first batches."""
        if count:
            self.start = read_header(self.batches[count - 1]).next_offset
            del self.batches[:count]


def search(one: Log, other: Log, bound: int) -> tuple[CommonOffset, int]:
    found, requested = CommonOffset(max(one.start, other.start), bound), 0
    while (offset := found.next_offset) is not None:
        assert max(one.start, other.start) <= offset < bound
        found.compare(one.at(offset), other.at(offset))
        requested += 1
    return found, requested


def logs(
    common: list[tuple[int, int]], mine: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> tuple[Log, Log, int]:
    one, other = Log(), Log()
    for records, gap in common:
        for log in (one, other):
            log.add(records, gap, 0, b"common")
    parted = one.end
    for records, gap in mine:
        one.add(records, gap, 0, b"mine")
    for records, gap in theirs:
        other.add(records, gap, 5, b"theirs")
    return one, other, parted


@given(SHAPES, SHAPES, SHAPES)
def test_common_offset_is_where_logs_part(
    common: list[tuple[int, int]], mine: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    one, other, parted = logs(common, mine, theirs)
    found, requested = search(one, other, min(one.end, other.end))
    assert (found.offset, found.is_found) == (parted, bool(common))
    assert found.epoch == (0 if common else -1)
    assert requested <= 2 * math.log2(max(one.end, other.end, 1) + 1) + 3


@given(SHAPES.filter(len), SHAPES, SHAPES, st.data())
def test_common_offset_with_different_starts_is_found(
    common: list[tuple[int, int]],
    mine: list[tuple[int, int]],
    theirs: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    one, other, parted = logs(common, mine, theirs)
    one.without(data.draw(st.integers(0, len(common) - 1)))
    other.without(data.draw(st.integers(0, len(common) - 1)))
    least = min(one.end, other.end)
    found, _ = search(one, other, data.draw(st.integers(min(parted, least), least)))
    assert (found.offset, found.is_found) == (parted, True)


def test_logs_without_common_batch_are_reported() -> None:
    one, other = Log(10), Log(10)
    one.add(3, 0, 0, b"mine")
    other.add(3, 0, 0, b"theirs")
    found, _ = search(one, other, 13)
    assert (found.offset, found.epoch, found.is_found) == (10, -1, False)


@given(SHAPES, st.integers(0, 10), SHAPES)
def test_common_offset_of_compacted_log_is_never_too_high(
    common: list[tuple[int, int]], removed: int, mine: list[tuple[int, int]]
) -> None:
    one, other, parted = logs(common, mine, [])
    del one.batches[:: removed + 2]
    found, _ = search(one, other, min(one.end, other.end))
    assert found.offset <= parted
    if found.is_found:
        assert any(read_header(batch).next_offset == found.offset for batch in other.batches)

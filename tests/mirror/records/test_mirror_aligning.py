"""Where a task continues in a source that was compacted, against a model of source, target and cleaner."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_kafka.batch import Record
from millstream_mirror.records.aligning import Alignment, Fingerprint, Overlap

START = 100


@dataclass(frozen=True)
class World:
    written: tuple[Record, ...]
    """From the progress on, by the offsets of the source."""
    sent: int
    """So many of them."""
    source: tuple[Record, ...]
    target: tuple[Record, ...]
    """What is left of them."""

    def next_offset(self) -> int:
        alignment = Alignment(START, (known(one) for one in self.target))
        for record in self.source:
            alignment.add(record.offset, known(record))
        return alignment.next_offset

    @property
    def unsent(self) -> list[Record]:
        end = START if not self.sent else self.written[self.sent - 1].offset + 1
        return [one for one in self.source if one.offset >= end]


def known(record: Record) -> Fingerprint:
    return Fingerprint.of(record)


def cleaned(draw: st.DrawFn, records: list[Record], end: int) -> list[Record]:
    """Of records before ``end`` only the last one of a key, but with none behind it none. As if the cleaner had
    stopped anywhere: what is behind ``done`` was not rewritten yet."""
    done = draw(st.integers(0, end))
    last = {record.key: record.offset for record in records[:end]}
    return [
        one
        for index, one in enumerate(records)
        if index >= done or (one.offset == last[one.key] and (one.value is not None or draw(st.booleans())))
    ]


@st.composite
def worlds(draw: st.DrawFn, *, unique: bool, target_too: bool) -> World:
    count = draw(st.integers(0, 24))
    offset, written = START, []
    for number in range(count):
        offset += draw(st.integers(0, 2))
        value = (b"%d" % number) if unique else draw(st.sampled_from([b"a", b"b", None]))
        written.append(Record(draw(st.sampled_from([b"x", b"y", b"z"])), value, 7, (), offset))
        offset += 1
    sent = draw(st.integers(0, count))
    source = cleaned(draw, written, draw(st.integers(0, count)))
    target = written[:sent]
    if target_too:
        target = cleaned(draw, target, draw(st.integers(0, max(0, sent - 1))))
    return World(tuple(written), sent, tuple(source), tuple(target))


def state(records: list[Record]) -> dict[bytes | None, bytes | None]:
    """What a reader of all of them knows in the end."""
    last = {one.key: one.value for one in records}
    return {key: value for key, value in last.items() if value is not None}


@given(worlds(unique=True, target_too=False))
def test_alignment_continues_at_first_unsent_record(world: World) -> None:
    assert [one for one in world.source if one.offset >= world.next_offset()] == world.unsent


@given(worlds(unique=True, target_too=True))
def test_alignment_with_compacted_target_loses_nothing(world: World) -> None:
    again = [one for one in world.source if one.offset >= world.next_offset()]
    assert again[len(again) - len(world.unsent) :] == world.unsent
    assert state([*world.target, *again]) == state([*world.target, *world.unsent])


@given(st.data(), st.booleans())
def test_alignment_of_equal_records_keeps_latest_values(data: st.DataObject, target_too: bool) -> None:
    world = data.draw(worlds(unique=False, target_too=target_too))
    again = [one for one in world.source if one.offset >= world.next_offset()]
    assert state([*world.target, *again]) == state([*world.target, *world.unsent])


def record(key: str, value: str, offset: int, timestamp: int = 7) -> Record:
    return Record(key.encode(), value.encode(), timestamp, (("h", b"1"),), offset)


def test_alignment_tells_repeated_value_from_earlier() -> None:
    sent = [record("x", "on", 100), record("x", "off", 101)]
    again = record("x", "on", 102)
    world = World((*sent, again), 2, (again,), tuple(sent))
    assert world.next_offset() == 100


@pytest.mark.parametrize("is_stamped", [False, True])
def test_alignment_compares_timestamps_unless_stamped(is_stamped: bool) -> None:
    alignment = Alignment(
        START, [Fingerprint.of(record("x", "v", START, timestamp=8), is_stamped=is_stamped)]
    )
    alignment.add(START, known(record("x", "v", START)))
    assert alignment.next_offset == (START + 1 if is_stamped else START)


@pytest.mark.parametrize("other", [("y", "v"), ("x", "w")])
def test_alignment_rejects_other_record(other: tuple[str, str]) -> None:
    alignment = Alignment(START, [known(record("x", "v", START))])
    alignment.add(START, known(record(*other, START)))
    assert alignment.is_over
    alignment.add(START + 1, known(record("x", "v", START + 1)))
    assert alignment.next_offset == START


def test_alignment_compares_headers() -> None:
    alignment = Alignment(START, [known(record("x", "v", START))])
    alignment.add(START, known(record("x", "v", START)._replace(headers=())))
    assert alignment.next_offset == START


@given(
    st.lists(st.sampled_from("ab"), max_size=12),
    st.lists(st.sampled_from("ab"), max_size=12),
    st.integers(-3, 12),
)
def test_overlap_is_smallest_fit(sent: list[str], left: list[str], least: int) -> None:
    """Against every possible one; few different records, so that several fit."""

    def known_of(values: list[str]) -> list[Fingerprint]:
        return [known(Record(b"k", value.encode(), 1)) for value in values]

    fits = [
        n for n in range(max(least, 1), len(sent) + 1) if n <= len(left) and sent[len(sent) - n :] == left[:n]
    ]
    expected = min(fits, default=None if least > 0 else 0)
    assert Overlap(known_of(left)).with_end_of(known_of(sent), least) == expected


def test_overlap_ignores_timestamps_of_target() -> None:
    sent = [Fingerprint.of(Record(b"k", value, 99), is_stamped=True) for value in (b"a", b"b")]
    assert Overlap([known(Record(b"k", b"b", 2)), known(Record(b"k", b"c", 3))]).with_end_of(sent, 0) == 1
    sent = [known(Record(b"k", value, 99)) for value in (b"a", b"b")]
    assert Overlap([known(Record(b"k", b"b", 2))]).with_end_of(sent, 0) == 0

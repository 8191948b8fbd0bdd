"""Spans: translation of source offsets to target offsets."""

from __future__ import annotations

import random

from millstream_kafka.batch import INT32_MAX, advance_sequence
from millstream_mirror.kafka.progress import Progress
from millstream_mirror.records.offset_map import OffsetMap, spans_of
from millstream_mirror.records.rewrite import Outgoing

START = Progress(100, 7, 0, INT32_MAX - 20, 40, "topic", "cluster", 0)


def whole(next_offset: int, records: int, sequence: int) -> Outgoing:
    following = advance_sequence(sequence, records)
    return Outgoing(memoryview(b""), 0, sequence, following, next_offset, records)


def rebuilt(next_offset: int, sequence: int, *runs: range) -> Outgoing:
    records = sum(map(len, runs))
    following = advance_sequence(sequence, records)
    return Outgoing(memoryview(b""), -1, sequence, following, next_offset, records, None, runs)


def test_adjacent_batches_form_one_span() -> None:
    known = OffsetMap(START)
    assert known.find(100) is None, "nothing was sent yet: look into the target"
    offset, sequence, target = START.offset, START.sequence, START.target_offset
    for _ in range(500):
        batches = []
        for _ in range(3):
            batches.append(whole(offset + 10, 10, sequence))
            offset, sequence = offset + 10, batches[-1].next_sequence
        known.add(spans_of(batches), target)
        target += 30
    assert len(known) == 1
    assert [known.find(each) for each in (99, 100, 117, offset - 1, offset, offset + 5)] == [
        None,
        40,
        57,
        target - 1,
        target,
        target,
    ]


def test_offsets_translate_over_markers_and_other_writers() -> None:
    """Compared with a plain list of each record's offset."""
    for seed in range(200):
        chance = random.Random(seed)
        known = OffsetMap(START, limit=chance.choice([1, 3, 50]))
        where: dict[int, int] = {}
        offset, sequence, target = START.offset, START.sequence, START.target_offset
        for _ in range(chance.randrange(1, 40)):
            batches = []
            for _ in range(chance.randrange(1, 4)):
                offset += chance.choice([0, 0, 1, 5])  # control batches, aborted transactions
                records = chance.randrange(1, 9)
                for number in range(records):
                    where[offset + number] = target + sum(one.records for one in batches) + number
                batches.append(whole(offset + records, records, sequence))
                offset, sequence = offset + records, batches[-1].next_sequence
            known.add(spans_of(batches), target)
            target += sum(one.records for one in batches) + chance.choice([0, 0, 3])  # another source
        for each in range(START.offset, offset + 2):
            found = known.find(each)
            before = [to for origin, to in where.items() if origin < each]
            behind = [to for origin, to in where.items() if origin >= each]
            if found is None:
                assert each < known.start.offset
                continue
            assert all(to < found for to in before), (seed, each)
            assert all(to >= found for to in behind), (seed, each)
        assert known.find(known.start.offset) is not None


def test_batch_with_holes_translates_each_record() -> None:
    known = OffsetMap(START)
    compacted = rebuilt(130, START.sequence, range(105, 107), range(115, 116), range(129, 130))
    known.add(spans_of([compacted, whole(140, 10, compacted.next_sequence)]), 40)
    assert [known.find(each) for each in (99, 100, 105, 106, 107, 115, 116, 129, 130, 135)] == [
        None,
        *(40, 40, 41, 42, 42, 43, 43, 44, 49),
    ]


def test_records_of_another_worker_end_known_spans() -> None:
    known = OffsetMap(START)
    known.add(spans_of([whole(110, 10, START.sequence)]), 40)
    later = advance_sequence(START.sequence, 30)
    known.add(spans_of([whole(140, 10, later)]), 70)
    assert [known.find(each) for each in (105, 129, 130, 135)] == [None, None, 70, 75]


def test_rewind_keeps_spans_of_equal_number_only() -> None:
    known = OffsetMap(START)
    known.add(spans_of([whole(110, 10, START.sequence)]), 40)
    here = Progress(110, 7, 0, advance_sequence(START.sequence, 10), 50, "topic", "cluster", 0)
    known.rewound(here)
    assert known.find(105) == 45
    known.rewound(Progress(110, 7, 1, here.sequence, 50, "topic", "cluster", 0))
    assert known.find(105) is None
    known.add(spans_of([whole(120, 10, here.sequence)]), 90)
    assert (known.find(115), known.find(105)) == (95, None)
    known.rewound(START)
    assert known.find(115) is None

"""One partition's log against a model: appended to, cut, compacted, restarted at an offset, recreated under the same
name; stopped, killed, and crashed before any file operation of any of these.

A topic's records name their life, so the model recognises records of an earlier one. After a crash the log must be as
before the operation, as after it, or, if the operation removes records, anything between the two.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from millstream_broker.log.compaction import Allowance, Compaction
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_harness.crashes import before_each_file_operation
from millstream_kafka.batch import Record, build_batch, read_header, read_records

pytestmark = [
    pytest.mark.soak,
    pytest.mark.once,
]

NOW = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=250,
    index_interval_bytes=100,
    segment_ms=2**60,
    retention_ms=-1,
    cleanup_policy="compact",
    delete_retention_ms=0,
)
MEMORY = "/dev/shm"  # hundreds of fsyncs, which nothing here depends on: a killed process loses no write
PRODUCER = 7
KEYS = [b"a", b"b", b"c"]

Stored = dict[int, tuple[bytes, bytes | None]]
moments = st.none() | st.integers(0, 40)
"""The process dies before this file operation of a step; None: it survives."""


@dataclass
class Life:
    """The expected content of a topic's log."""

    number: int
    topic_id: uuid.UUID
    start: int = 0
    end: int = 0
    records: Stored = field(default_factory=dict)
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    """First and last offset, and the producer's last sequence; -1 without a producer."""
    sequence: int = 0
    """The producer's next sequence."""
    last_sent: tuple[bytes, int] | None = None

    def copy(self) -> Life:
        return replace(self, records=dict(self.records), batches=list(self.batches))

    def readable(self) -> Stored:
        return {offset: one for offset, one in self.records.items() if offset >= self.start}


def table(records: Stored) -> dict[bytes, bytes]:
    """The final value of each key for a reader from the start."""
    state: dict[bytes, bytes] = {}
    for _, (key, value) in sorted(records.items()):
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state


class LivesModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
        self.root = self.folder / "0"
        self.roots = 0
        self.value = 0
        self.life = Life(0, uuid.uuid4())

    def teardown(self) -> None:
        self.abandon()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self) -> None:
        """As at a broker's start: open all logs, then apply the topic's id."""
        self.manager = LogManager([self.root], CONFIG)
        self.manager.lock()
        self.manager.identify(1, "c")
        self.manager.start()
        known = (None, self.life.topic_id)
        self.manager.put_aside(self.manager.release_others(("t", 0), lambda topic_id: topic_id in known))
        self.log: Log = self.manager.get_or_create("t", 0, self.life.topic_id)

    def abandon(self) -> None:
        for log in self.manager:
            log.close(clean=False)
        self.manager.unlock()

    # -- what the log shows -----------------------------------------------------------------------------------

    def seen(self) -> Stored:
        start = self.log.log_start_offset
        found: Stored = {}
        for batch in self.log.batches_from(start):
            for record in read_records(batch):
                assert record.key is not None
                assert record.offset not in found
                if record.offset >= start:
                    found[record.offset] = record.key, record.value
        return found

    def check(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.life.start, self.life.end)
        assert self.seen() == self.life.readable()
        assert self.log.topic_id == self.life.topic_id

    def take_over(self) -> None:
        """Copy the log's state, which has been checked, to the model."""
        life = self.life
        life.start, life.end, life.records = self.log.log_start_offset, self.log.log_end_offset, self.seen()
        headers = [read_header(batch) for batch in self.log.batches_from(self.log.segments.first_offset)]
        sequences = [(h, h.last_sequence if h.producer_id == PRODUCER else -1) for h in headers]
        life.batches = [(h.base_offset, h.last_offset, sequence) for h, sequence in sequences]
        self.take_over_producer()

    def take_over_producer(self) -> None:
        """The log knows the producer at least by its last remaining batch, and by none beyond the end."""
        life, known = self.life, self.log.producers.by_id.get(PRODUCER)
        left = [sequence for _, _, sequence in life.batches if sequence >= 0]
        if known is None:
            assert not left
            life.sequence, life.last_sent = 0, None
            return
        last = known.batches[-1]
        assert last.last_offset < life.end
        assert not left or last.last_sequence >= left[-1]
        assert last.last_sequence < life.sequence
        if last.last_sequence + 1 != life.sequence:
            life.last_sent = None
        life.sequence = last.last_sequence + 1

    # -- a step, and a crash within it ------------------------------------------------------------------------

    def step(
        self,
        act: Callable[[], object],
        after: Callable[[Life], None],
        moment: int | None,
        between: Callable[[Life, Life], None] | None = None,
    ) -> None:
        """``after`` applies ``act`` to the model. ``between`` checks a crashed log that matches neither state."""
        before, survivor, count = self.life, self.folder / str(self.roots + 1), 0

        def copy() -> None:
            nonlocal count
            if count == moment:
                shutil.copytree(self.root, survivor)
            count += 1

        with before_each_file_operation(copy):
            act()
        self.life = before.copy()
        after(self.life)
        if moment is None:
            self.check()
            return
        if count <= moment:  # dies only after the last operation
            shutil.copytree(self.root, survivor)
        self.abandon()
        self.roots += 1
        self.root = survivor
        died_after = self.life
        self.open()
        self.check_survivor(before, died_after, between)
        if before.number == died_after.number:
            self.life.sequence = max(before.sequence, died_after.sequence)
        self.take_over()

    def check_survivor(self, before: Life, after: Life, between: Callable[[Life, Life], None] | None) -> None:
        seen, end = self.seen(), self.log.log_end_offset
        if before.number != after.number:
            assert (seen, end) == ({}, 0)
            return
        for life in (after, before):
            # Checkpoints are written now and then: after a crash the log start, and records before it, may be
            # back.
            if self.is_end_of(life, end) and self.log.log_start_offset <= life.start:
                shown = {offset: one for offset, one in seen.items() if offset >= life.start}
                older = {offset: one for offset, one in seen.items() if offset < life.start}
                if shown == life.readable() and all(
                    before.records.get(at, one) == one for at, one in older.items()
                ):
                    assert all(self.is_of_this_life(one) for one in older.values())
                    return
        assert between is not None, (before, after, seen, end)
        between(before, after)

    def is_end_of(self, life: Life, end: int) -> bool:
        """Without a batch, nothing on disk says where the log ended: after a crash it starts at its segment again.

        Kafka does the same. No record is lost.
        """
        return end == life.end or (not life.batches and self.log.segments.first_offset <= end < life.end)

    def is_of_this_life(self, stored: tuple[bytes, bytes | None]) -> bool:
        return stored[1] is None or stored[1].startswith(b"%d:" % self.life.number)

    # -- operations -------------------------------------------------------------------------------------------

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        deleted=st.booleans(),
        idempotent=st.booleans(),
        moment=moments,
        times=st.integers(1, 4),
    )
    def append(
        self, keys: list[bytes], deleted: bool, idempotent: bool, moment: int | None, times: int
    ) -> None:
        for number in range(times):
            self.append_one(keys, deleted, idempotent, moment if number == times - 1 else None)

    def append_one(self, keys: list[bytes], deleted: bool, idempotent: bool, moment: int | None) -> None:
        life, records = self.life, []
        for key in keys:
            self.value += 1
            records.append(Record(key, None if deleted else b"%d:%d" % (life.number, self.value), NOW))
        producer = (
            {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": life.sequence}
            if idempotent
            else {}
        )
        batch = build_batch(records, **producer)  # type: ignore[arg-type]

        def after(life: Life) -> None:
            first, last = life.end, life.end + len(keys) - 1
            for offset, record in enumerate(records, first):
                life.records[offset] = record.key or b"", record.value
            life.end = last + 1
            life.batches.append((first, last, life.sequence + len(keys) - 1 if idempotent else -1))
            if idempotent:
                life.sequence += len(keys)
                life.last_sent = batch, first

        def act() -> None:
            info = self.log.append(batch, leader_epoch=0, now_ms=NOW)
            assert (info.first_offset, info.duplicate) == (life.end, False)

        self.step(act, after, moment)

    @rule()
    def send_again(self) -> None:
        if self.life.last_sent is not None:
            batch, first = self.life.last_sent
            info = self.log.append(batch, leader_epoch=0, now_ms=NOW)
            assert (info.first_offset, info.duplicate) == (first, True)

    @rule(moment=moments)
    def roll(self, moment: int | None) -> None:
        self.step(lambda: self.log.roll(now_ms=NOW), lambda life: None, moment)

    @rule(moment=moments)
    def flush(self, moment: int | None) -> None:
        self.step(self.log.flush, lambda life: None, moment)

    @rule(moment=moments)
    def checkpoint(self, moment: int | None) -> None:
        self.step(self.manager.checkpoint, lambda life: None, moment)

    @rule(moment=moments)
    def remove_deleted(self, moment: int | None) -> None:
        self.step(self.manager.remove_deleted, lambda life: None, moment)

    @rule(data=st.data(), moment=moments)
    def truncate(self, data: st.DataObject, moment: int | None) -> None:
        self.truncate_to(data.draw(st.integers(self.life.start, self.life.end)), moment)

    def truncate_to(self, offset: int, moment: int | None) -> None:
        def after(life: Life) -> None:
            cut = [batch for batch in life.batches if batch[1] >= offset]
            life.end = min([offset, *(first for first, _, _ in cut)])
            life.start = min(life.start, life.end)
            life.records = {at: one for at, one in life.records.items() if at < life.end}
            life.batches = life.batches[: len(life.batches) - len(cut)]

        def between(before: Life, after: Life) -> None:
            """As if the log had been cut at a later batch. After a crash, nothing is known about a hole."""
            end = self.log.log_end_offset
            assert end <= before.end
            kept = [last + 1 for _, last, _ in after.batches]
            assert end >= max([self.log.log_start_offset, *kept])
            assert self.seen().items() <= before.records.items()
            assert {
                at: one for at, one in before.readable().items() if at < end
            }.items() <= self.seen().items()

        self.step(lambda: self.log.truncate_to(offset, now_ms=NOW), after, moment, between)
        self.take_over()

    @rule(gap=st.integers(0, 50), moment=moments)
    def truncate_fully_and_start_at(self, gap: int, moment: int | None) -> None:
        offset = self.life.end + gap

        def after(life: Life) -> None:
            life.start = life.end = offset
            life.records, life.batches = {}, []
            life.sequence, life.last_sent = 0, None

        def between(before: Life, after: Life) -> None:
            """The leader has none of these records: any prefix may be left, and the follower starts anew again."""
            seen, end = self.seen(), self.log.log_end_offset
            assert end <= before.end
            assert seen == {
                at: one for at, one in before.records.items() if self.log.log_start_offset <= at < end
            }

        self.step(lambda: self.log.truncate_fully_and_start_at(offset, now_ms=NOW), after, moment, between)

    @rule(data=st.data(), moment=moments)
    def delete_records(self, data: st.DataObject, moment: int | None) -> None:
        self.delete_before(data.draw(st.integers(self.life.start, self.life.end)), moment)

    def delete_before(self, offset: int, moment: int | None) -> None:
        def after(life: Life) -> None:
            life.start = offset

        self.step(lambda: self.log.delete_records_before(offset), after, moment)
        self.take_over()

    @rule(limit=st.integers(0, 2000), moment=moments)
    def retain(self, limit: int, moment: int | None) -> None:
        self.log.config = replace(CONFIG, cleanup_policy="compact,delete", retention_bytes=limit)
        log = self.log

        def after(life: Life) -> None:
            life.start = max(life.start, log.segments.first_offset)
            assert life.start <= life.end

        def between(before: Life, after: Life) -> None:
            start = self.log.log_start_offset
            assert self.log.log_end_offset == before.end
            assert start <= after.start
            assert self.seen() == {at: one for at, one in before.records.items() if at >= start}

        self.step(lambda: log.delete_old_segments(NOW), after, moment, between)
        log.config = CONFIG
        self.take_over()

    @rule(most=st.sampled_from([1, 2, 1000]), moment=moments)
    def compact(self, most: int, moment: int | None) -> None:
        readable, log = self.life.readable(), self.log

        def act() -> None:
            end = log.segments.active.base_offset
            compaction = Compaction(log, end, now_ms=NOW, allowance=Allowance(max_keys=most))
            while compaction.work():
                assert compaction.commit()
            compaction.finish()
            log.remove_deleted_files()

        def check() -> None:
            seen = self.seen()
            assert self.log.log_end_offset == self.life.end
            assert {at: one for at, one in seen.items() if at >= self.life.start}.items() <= readable.items()
            assert table(seen) == table(readable) or self.log.log_start_offset != self.life.start
            assert not log.uncleanable

        def after(life: Life) -> None:
            if moment is None:
                check()
                life.records = self.seen()

        self.step(act, after, moment, lambda before, after: check())
        self.take_over()

    @rule(moment=moments)
    def delete_and_make_anew(self, moment: int | None) -> None:
        """The controller's decision counts before any file changes."""
        made = Life(self.life.number + 1, uuid.uuid4())
        old = self.life.topic_id

        def act() -> None:
            assert self.log.topic_id == old
            self.manager.delete("t", 0)
            self.log = self.manager.get_or_create("t", 0, made.topic_id)

        def after(life: Life) -> None:
            self.life = made

        self.step(act, after, moment)

    @rule()
    def stop_and_start(self) -> None:
        self.manager.close()
        self.open()
        if not self.life.batches:  # after a cut within a hole, nothing says how far the log went
            self.take_over_end()
        self.check()
        self.take_over()

    def take_over_end(self) -> None:
        self.life.end = min(self.life.end, self.log.log_end_offset)
        self.life.start = min(self.life.start, self.life.end)


TestLivesModel = LivesModel.TestCase
TestLivesModel.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)

OPERATIONS: dict[str, Callable[[LivesModel, int | None], None]] = {
    "truncate": lambda model, moment: model.truncate_to(9, moment),
    "truncate to nothing": lambda model, moment: model.truncate_to(0, moment),
    "start anew": lambda model, moment: model.truncate_fully_and_start_at(10, moment),
    "retain": lambda model, moment: model.retain(700, moment),
    "delete records": lambda model, moment: model.delete_before(35, moment),
    "compact": lambda model, moment: model.compact(1000, moment),
    "delete and make anew": lambda model, moment: model.delete_and_make_anew(moment),
    "checkpoint": lambda model, moment: model.checkpoint(moment),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_before_each_file_operation(name: str) -> None:
    """A log of several segments, with a checkpoint beyond its start; more appends and another crash follow."""
    for moment in [None, *range(60)]:
        model = LivesModel()
        model.begin()
        for number in range(12):
            model.append_one([KEYS[number % 3]] * 4, number % 5 == 4, True, None)
        model.delete_before(6, None)
        model.checkpoint(None)
        assert len(model.log.segments) > 4
        OPERATIONS[name](model, moment)
        for _ in range(2):
            model.append_one(KEYS, False, True, None)
            model.send_again()
        model.roll(0)
        model.send_again()
        model.append_one(KEYS, False, True, None)
        model.teardown()

"""Transactions of a log against a plain model: any order of batches, markers, rolls, restarts, crashes and truncations.

The model is the list of the batches alone. Whatever the log remembers, it must be what the list says.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.log.transaction_index import AbortedTransaction
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.control_batch import EndTransactionMarker, build_marker

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, segment_ms=2**60, retention_ms=-1)
PRODUCERS = st.integers(1, 4)


class Entry(NamedTuple):
    first: int
    last: int
    producer: int
    committed: bool | None  # of a marker


def replay(entries: list[Entry]) -> tuple[dict[int, int], list[tuple[int, int]], list[AbortedTransaction]]:
    """First offsets of open transactions by producer; first and marker offsets of ended ones; the aborted ones."""
    begun: dict[int, int] = {}
    ended: list[tuple[int, int]] = []
    aborted: list[AbortedTransaction] = []
    for entry in entries:
        if entry.committed is None:
            begun.setdefault(entry.producer, entry.first)
        elif (first := begun.pop(entry.producer, None)) is not None:
            ended.append((first, entry.last))
            if not entry.committed:
                stable = min(begun.values(), default=entry.last + 1)
                aborted.append(AbortedTransaction(entry.producer, first, entry.last, stable))
    return begun, ended, aborted


class TransactionsModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.entries: list[Entry] = []
        self.high_watermark = 0
        self.sequences: dict[int, int] = {}
        self.is_fresh = False  # the last append was a marker, and nothing has happened since
        self.log = self.opened(clean=True)

    def opened(self, *, clean: bool, recovery_point: int = 0, page_cache_kept: bool = False) -> Log:
        return Log.open(
            self.root / "t-0",
            CONFIG,
            clean=clean,
            recovery_point=recovery_point,
            page_cache_kept=page_cache_kept,
            now_ms=NOW,
        )

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.root)

    @property
    def end(self) -> int:
        return self.entries[-1].last + 1 if self.entries else 0

    def appended(self, batch: bytes, producer: int, committed: bool | None, origin: AppendOrigin) -> None:
        info = self.log.append(batch, leader_epoch=0, now_ms=NOW, origin=origin)
        assert info.first_offset == self.end
        self.entries.append(Entry(info.first_offset, info.last_offset, producer, committed))
        self.is_fresh = committed is not None

    @rule(producer=PRODUCERS, count=st.integers(1, 3))
    def send(self, producer: int, count: int) -> None:
        sequence = self.sequences.get(producer, 0)
        if not self.log.producers.is_open(producer, 0):
            verifications = self.log.producers.verifications
            verifications.verified(verifications.begin(producer, 0, sequence, bumps_epoch=False))
        batch = build_batch(
            [Record(b"k", b"v", NOW)] * count,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        self.appended(batch, producer, None, AppendOrigin.TRANSACTION)
        self.sequences[producer] = sequence + count

    @rule(producer=PRODUCERS, committed=st.booleans())
    def mark(self, producer: int, committed: bool) -> None:
        marker = EndTransactionMarker(committed, 0)
        batch = build_marker(marker, producer_id=producer, producer_epoch=0, timestamp=NOW)
        self.appended(batch, producer, committed, AppendOrigin.MARKER)

    @rule()
    def roll(self) -> None:
        self.log.roll(now_ms=NOW)
        self.is_fresh = False

    @rule(data=st.data())
    def replicate(self, data: st.DataObject) -> None:
        self.high_watermark = data.draw(st.integers(self.high_watermark, self.end))

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = self.opened(clean=True)
        self.is_fresh = False

    @rule()
    def kill(self) -> None:
        """The kill may come between the write of a marker and that of the index."""
        ended = len(replay(self.entries)[2]) > len(replay(self.entries[:-1])[2])
        self.log.close(clean=False)
        if self.is_fresh and ended:
            path = Path(self.log.segments.aborted.path(self.log.segments.active.base_offset))
            os.truncate(path, path.stat().st_size - 34)
        self.log = self.opened(clean=False, page_cache_kept=True)
        self.is_fresh = False

    @rule()
    def lose_power(self) -> None:
        """Nothing after the recovery point is certain, so lose all indexes that may be lost."""
        recovery_point = self.log.flushed_offset
        self.log.close(clean=False)
        for base in self.log.segments.aborted.bases:
            following = self.log.segments.end_of(
                self.log.segments[self.log.segments.index_of(base)], self.end
            )
            if following > recovery_point:
                Path(self.log.segments.aborted.path(base)).unlink()
        self.log = self.opened(clean=False, recovery_point=recovery_point)
        self.is_fresh = False

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.high_watermark, self.end))
        self.log.truncate_to(offset, now_ms=NOW)
        self.entries = [entry for entry in self.entries if entry.last < offset]
        self.sequences = {}
        for entry in self.entries:
            if entry.committed is None:
                count = entry.last - entry.first + 1
                self.sequences[entry.producer] = self.sequences.get(entry.producer, 0) + count
        self.high_watermark = min(self.high_watermark, self.end)

    @rule(data=st.data())
    def follow(self, data: st.DataObject) -> None:
        """A new leader has the same stable offset: another log, which has copied this one."""
        copied = Log.open(self.root / "copy-0", CONFIG, clean=True, now_ms=NOW)
        batches = list(self.log.batches_from(0))
        while batches:
            count = data.draw(st.integers(1, len(batches)))
            copied.append_as_follower(b"".join(batches[:count]), now_ms=NOW)
            del batches[:count]
        self.check_state(copied)
        copied.close()
        shutil.rmtree(self.root / "copy-0")

    @invariant()
    def same_state(self) -> None:
        self.check_state(self.log)

    def check_state(self, log: Log) -> None:
        begun, ended, aborted = replay(self.entries)
        transactions = log.producers.transactions
        assert {producer: first for first, producer in transactions.open.items()} == begun
        for producer in range(1, 5):
            known = log.producers.by_id.get(producer)
            assert (-1 if known is None else known.transaction_first_offset) == begun.get(producer, -1)
        limit = self.high_watermark
        unstable = [first for first, marker in ended if marker >= limit] + list(begun.values())
        stable = transactions.last_stable_offset(limit, 0)
        if log is self.log:
            # A snapshot has no ended transactions, as in Kafka: a restart forgets those that were not replicated.
            assert min([limit, *unstable]) <= stable <= min([limit, *begun.values()])
        else:
            assert stable == min([limit, *unstable])
        assert log.segments.aborted.collect(0, 0, self.end + 1) == aborted

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """A reader gets each aborted transaction that it may meet, and none that begins after its range."""
        if not self.end:
            return
        offset = data.draw(st.integers(0, self.end - 1))
        upper = data.draw(st.integers(offset + 1, self.end))
        if self.log.read(offset, data.draw(st.integers(0, 1000)), upper=upper, min_one=True) is None:
            return
        end = self.log.segments.read_end
        expected = [
            each for each in replay(self.entries)[2] if each.last_offset >= offset and each.first_offset < end
        ]
        base = self.log.segments[self.log.segments.index_of(offset)].base_offset
        if (
            min(replay(self.entries)[0].values(), default=self.end) >= end
        ):  # a reader of committed records gets there
            assert self.log.aborted_before_read_end(offset) == [
                each for each in expected if each.last_offset >= base
            ]


TransactionsModel.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTransactions = TransactionsModel.TestCase

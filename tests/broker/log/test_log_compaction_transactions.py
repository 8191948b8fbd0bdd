"""Compaction of a log with transactions: aborted records go, markers stay as long as readers need them."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream_broker.log.append_origin import AppendOrigin
from millstream_broker.log.cleaned_transactions import CleanedTransactions
from millstream_broker.log.compaction import Allowance, Compaction
from millstream_broker.log.compaction_due import dirtiest
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.log.transaction_index import AbortedTransaction
from millstream_kafka.batch import DELETE_HORIZON, BatchHeader, Record, build_batch, read_header, read_records
from millstream_kafka.control_batch import EndTransactionMarker, build_marker, read_marker

NOW = 1_700_000_000_000
DAY_MS = 24 * 3_600_000
CONFIG = LogConfig(
    cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, delete_retention_ms=DAY_MS, segment_ms=2**60
)


class Writer:
    """Writes transactions, each producer's with ascending sequences."""

    def __init__(self, folder: Path, config: LogConfig = CONFIG) -> None:
        self.folder = folder
        self.config = config
        self.log = Log.open(folder, config, clean=True, now_ms=NOW)
        self.sequences: dict[int, int] = {}
        self.now = NOW

    def send(self, producer: int, key: str, value: str | None, *, transactional: bool = True) -> int:
        sequence = self.sequences.get(producer, 0)
        if transactional and not self.log.producers.is_open(producer, 0):
            verifications = self.log.producers.verifications
            verifications.verified(verifications.begin(producer, 0, sequence, bumps_epoch=False))
        batch = build_batch(
            [Record(key.encode(), None if value is None else value.encode(), NOW)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.sequences[producer] = sequence + 1
        origin = AppendOrigin.TRANSACTION if transactional else AppendOrigin.CLIENT
        return self.log.append(batch, leader_epoch=0, now_ms=NOW, origin=origin).first_offset

    def end(self, producer: int, *, committed: bool) -> int:
        marker = EndTransactionMarker(committed, 0)
        batch = build_marker(marker, producer_id=producer, producer_epoch=0, timestamp=NOW)
        info = self.log.append(batch, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.MARKER)
        return info.first_offset

    def roll(self) -> None:
        self.log.roll(now_ms=NOW)

    def compact(self, after_ms: int = 0) -> bool:
        """One pass, at a time that has gone on; returns whether one was due."""
        self.now += after_ms
        compaction = dirtiest([(("t", 0), self.log)], self.now)
        if compaction is None:
            return False
        run(compaction)
        return True

    def compact_all(self, after_ms: int = 0) -> None:
        """One pass over all closed segments, even if none is dirty."""
        self.now += after_ms
        self.log.roll(now_ms=NOW)
        run(Compaction(self.log, self.log.log_end_offset, now_ms=self.now))

    def batches(self) -> list[tuple[BatchHeader, bytes]]:
        return [(read_header(batch), batch) for batch in self.log.batches_from(0)]

    def offsets(self) -> list[tuple[int, int]]:
        """Base offset and number of records of each batch."""
        return [(header.base_offset, header.record_count) for header, _ in self.batches()]

    def reopen(self, *, clean: bool = True) -> None:
        self.log.close(clean)
        self.log = Log.open(self.folder, self.config, clean=clean, page_cache_kept=True, now_ms=NOW)

    def committed(self) -> dict[int, tuple[str, str | None]]:
        """What a consumer of committed records reads, by its own rules."""
        found: dict[int, tuple[str, str | None]] = {}
        end = self.log.producers.transactions.last_stable_offset(self.log.log_end_offset, 0)
        aborted = sorted(self.log.segments.aborted.collect(0, 0, end), key=lambda each: each.first_offset)
        skipped: set[int] = set()
        for header, batch in self.batches():
            if header.last_offset >= end:
                break
            while aborted and aborted[0].first_offset <= header.last_offset:
                skipped.add(aborted.pop(0).producer_id)
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and not marker.committed:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                for record in read_records(batch):
                    value = None if record.value is None else record.value.decode()
                    found[record.offset] = (record.key or b"").decode(), value
        return found


def run(compaction: Compaction) -> None:
    while compaction.work():
        compaction.commit()
    compaction.finish()


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "t-0")


def test_aborted_records_go_and_replace_nothing(writer: Writer) -> None:
    writer.send(9, "a", "kept", transactional=False)  # 0
    writer.send(1, "a", "aborted")  # 1
    writer.send(1, "b", None)  # 2
    writer.end(1, committed=False)  # 3
    writer.send(9, "b", "kept", transactional=False)  # 4
    writer.send(1, "z", "later", transactional=False)  # 5
    writer.compact_all()
    assert writer.offsets() == [(0, 1), (3, 1), (4, 1), (5, 1)]
    assert writer.committed() == {0: ("a", "kept"), 4: ("b", "kept"), 5: ("z", "later")}


def test_aborted_tombstone_deletes_nothing(writer: Writer) -> None:
    writer.send(9, "a", "kept", transactional=False)
    writer.send(1, "a", None)
    writer.end(1, committed=False)
    for _ in range(4):
        writer.compact_all(2 * DAY_MS)
    assert writer.committed() == {0: ("a", "kept")}


def test_last_batch_of_a_producer_stays_empty(writer: Writer) -> None:
    writer.send(1, "a", "aborted")  # 0
    writer.send(1, "b", "aborted")  # 1
    writer.end(1, committed=False)  # 2
    for _ in range(3):
        writer.compact_all(2 * DAY_MS)
        assert writer.offsets()[0] == (1, 0)
        assert (2, 1) in writer.offsets()  # the marker, because a batch of the transaction is there
    writer.reopen(clean=False)
    assert writer.log.producers.by_id[1].last.last_sequence == 1
    assert not writer.log.producers.transactions.open


def test_marker_goes_after_its_records_and_a_delete_horizon(writer: Writer) -> None:
    writer.send(1, "a", "aborted")  # 0
    writer.end(1, committed=False)  # 1
    writer.send(2, "a", "old")  # 2
    writer.end(2, committed=True)  # 3
    for producer in (1, 2):
        writer.send(producer, "z", "last", transactional=False)  # 4, 5
    writer.send(9, "a", "new", transactional=False)  # 6
    writer.compact_all()  # the records go
    assert writer.offsets() == [(1, 1), (3, 1), (4, 0), (5, 1), (6, 1)]
    assert len(writer.log.segments.aborted.collect(0, 0, 99)) == 1
    assert not any(header.attributes & DELETE_HORIZON for header, _ in writer.batches())
    writer.compact_all()  # nobody needs the markers, except earlier readers
    horizons = [header.base_timestamp for header, _ in writer.batches() if header.attributes & DELETE_HORIZON]
    assert horizons == [writer.now + DAY_MS] * 2
    assert writer.log.segments.aborted.collect(0, 0, 99) == []
    writer.log.remove_deleted_files()
    assert not list(writer.folder.glob("*.txnindex*"))
    assert [read_marker(batch) for header, batch in writer.batches() if header.is_control] == [
        (False, 0),
        (True, 0),
    ]
    writer.compact_all(DAY_MS - 1)
    assert sum(header.is_control for header, _ in writer.batches()) == 2
    writer.compact_all(1)
    assert sum(header.is_control for header, _ in writer.batches()) == 0


def test_marker_that_alone_remembers_an_epoch_stays_empty(writer: Writer) -> None:
    marker = build_marker(EndTransactionMarker(True, 0), producer_id=5, producer_epoch=3, timestamp=NOW)
    writer.log.append(marker, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.MARKER)
    writer.send(9, "a", "v", transactional=False)
    for _ in range(4):
        writer.compact_all(2 * DAY_MS)
    assert writer.offsets() == [(0, 0), (1, 1)]
    writer.reopen(clean=False)
    assert writer.log.producers.by_id[5].epoch == 3


def test_nothing_at_or_after_an_open_transaction_is_compacted(writer: Writer) -> None:
    for value in ("1", "2"):
        writer.send(9, "a", value, transactional=False)
    writer.roll()
    writer.send(1, "b", "open")
    for value in ("3", "4"):
        writer.send(9, "a", value, transactional=False)
    writer.roll()
    assert writer.compact()
    assert [offset for offset, _ in writer.offsets()] == [1, 2, 3, 4]
    assert not writer.compact()
    writer.end(1, committed=True)
    writer.roll()
    assert writer.compact()
    assert [offset for offset, count in writer.offsets() if count] == [2, 4, 5]


def test_transaction_over_segments_keeps_its_marker(writer: Writer) -> None:
    writer.send(1, "a", "v")
    writer.roll()
    writer.end(1, committed=True)
    writer.send(1, "b", "v", transactional=False)
    for _ in range(4):
        writer.compact_all(2 * DAY_MS)
    assert writer.offsets() == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize("stage", ["index", "log", "placed"])
def test_kill_during_the_replacement_keeps_the_index(writer: Writer, stage: str) -> None:
    writer.send(1, "a", "aborted")
    writer.end(1, committed=False)
    writer.roll()
    writer.send(1, "b", "aborted")
    writer.end(1, committed=False)
    writer.send(1, "c", "v", transactional=False)
    writer.roll()
    expected = writer.log.segments.aborted.collect(0, 0, 99)
    assert len(expected) == 2
    compaction = Compaction(writer.log, writer.log.log_end_offset, now_ms=NOW)
    assert compaction.work()
    log, index = (writer.folder / f"{0:020d}{suffix}.cleaned" for suffix in (".log", ".txnindex"))
    index.rename(index.with_suffix(".swap" if stage != "placed" else ""))
    if stage != "index":
        log.rename(log.with_suffix(".swap"))
    writer.reopen(clean=False)
    assert writer.log.segments.aborted.collect(0, 0, 99) == expected
    assert writer.committed() == {4: ("c", "v")}
    assert not list(writer.folder.glob("*.swap"))


def test_marker_after_the_noted_part_stays_as_it_is(writer: Writer) -> None:
    writer.send(9, "a", "v", transactional=False)
    writer.end(1, committed=True)  # without records
    writer.roll()
    before = writer.batches()
    run(Compaction(writer.log, 2, now_ms=NOW, allowance=Allowance(max_keys=1)))
    assert writer.batches() == before
    run(Compaction(writer.log, 2, now_ms=NOW))
    assert [bool(header.attributes & DELETE_HORIZON) for header, _ in writer.batches()] == [False, True]


def test_entry_without_its_marker_drops_no_later_transaction() -> None:
    transactions = CleanedTransactions([AbortedTransaction(1, 0, 5, 6)])
    batch = build_batch([Record(b"k", b"v", NOW)], base_offset=7, producer_id=1, transactional=True)
    assert not transactions.drops_data(read_header(batch))
    within = read_header(batch)._replace(base_offset=4)
    assert CleanedTransactions([AbortedTransaction(1, 0, 5, 6)]).drops_data(within)


def test_lost_power_rebuilds_the_index_from_the_remaining_records(writer: Writer) -> None:
    writer.send(1, "a", "aborted")
    writer.end(1, committed=False)
    writer.send(1, "b", "v", transactional=False)
    writer.roll()
    writer.send(2, "c", "aborted")
    writer.end(2, committed=False)
    writer.send(2, "d", "v", transactional=False)
    compaction = Compaction(writer.log, writer.log.segments.active.base_offset, now_ms=NOW)
    run(compaction)
    writer.log.close(clean=False)
    writer.log = Log.open(writer.folder, CONFIG, clean=False, now_ms=NOW)
    assert [each.producer_id for each in writer.log.segments.aborted.collect(0, 0, 99)] == [2]
    assert writer.committed() == {2: ("b", "v"), 5: ("d", "v")}


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 3), st.sampled_from("abc"), st.sampled_from([None, "v", "w"])),
    st.tuples(st.just("plain"), st.integers(8, 9), st.sampled_from("abc"), st.sampled_from([None, "v", "w"])),
    st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("compact"), st.sampled_from([0, 2 * DAY_MS])),
    st.tuples(st.just("all"), st.sampled_from([0, 2 * DAY_MS])),
    st.tuples(st.just("reopen"), st.booleans()),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=40))
def test_readers_of_committed_records_find_the_latest_of_each_key(steps: list[tuple[object, ...]]) -> None:
    """Whatever is compacted, and when."""
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder) / "t-0", replace(CONFIG, segment_bytes=700))
        written: list[tuple[int, int, str, str | None]] = []  # offset, producer, key, value
        pending: dict[int, list[tuple[int, int, str, str | None]]] = {}
        for kind, *arguments in steps:
            if kind in ("send", "plain"):
                producer, key, value = arguments
                offset = writer.send(producer, key, value, transactional=kind == "send")  # type: ignore[arg-type]
                row = offset, producer, key, value
                (pending.setdefault(producer, []) if kind == "send" else written).append(row)  # type: ignore[arg-type]
            elif kind == "end":
                producer, committed = arguments
                writer.end(producer, committed=committed)  # type: ignore[arg-type]
                rows = pending.pop(producer, [])  # type: ignore[arg-type]
                written += rows if committed else []
            elif kind == "roll":
                writer.roll()
            elif kind == "compact":
                writer.compact(*arguments)  # type: ignore[arg-type]
            elif kind == "all" and not pending:
                writer.compact_all(*arguments)  # type: ignore[arg-type]
            elif kind == "reopen":
                writer.reopen(clean=arguments[0])  # type: ignore[arg-type]
        first = min((rows[0][0] for rows in pending.values()), default=writer.log.log_end_offset)
        stable = sorted(row for row in written if row[0] < first)
        latest = {key: (offset, value) for offset, _, key, value in stable}
        found = writer.committed()
        assert found.items() <= {offset: (key, value) for offset, _, key, value in stable}.items()
        shown = {key: (offset, value) for offset, (key, value) in found.items()}
        for key, (offset, value) in latest.items():
            if value is not None:
                assert shown[key] == (offset, value)
            else:
                assert shown.get(key, (offset, None)) == (offset, None)
        assert set(writer.log.producers.transactions.open.values()) == pending.keys()

"""Compaction: the latest record of each key stays at its offset, even if the process dies at any moment."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_broker.log.compaction import Compaction
from millstream_broker.log.compaction_due import due
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_harness.compaction import NOW, compact, put, stored
from millstream_harness.crashes import before_each_file_operation
from millstream_harness.java import run_kafka_tool
from millstream_kafka.batch import CONTROL, Record, build_batch, read_header, read_records
from millstream_kafka.compression import Compression

pytestmark = pytest.mark.process

CONFIG = LogConfig(
    cleanup_policy="compact", segment_bytes=600, index_interval_bytes=100, delete_retention_ms=1000
)


def open_log(folder: Path, *, clean: bool = True, page_cache_kept: bool = False) -> Log:
    return Log.open(folder, CONFIG, clean=clean, page_cache_kept=page_cache_kept, now_ms=NOW)


def table(records: list[Record]) -> dict[bytes | None, bytes]:
    """The final value of each key for a reader from the start."""
    state: dict[bytes | None, bytes] = {}
    for record in records:
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def test_the_latest_of_each_key_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for i in range(60):
        put(log, (f"k{i % 5}", f"v{i}"), ("often", f"{i}"), codec=Compression(i % 5))
    log.roll(now_ms=NOW)
    put(log, ("k1", "last"))
    before = stored(log)
    size = log.size
    compact(log)
    after = stored(log)
    assert [(r.key, r.value) for r in after] == [
        *((f"k{i % 5}".encode(), f"v{i}".encode()) for i in range(55, 59)),
        (b"k4", b"v59"),
        (b"often", b"59"),
        (b"k1", b"last"),  # the active segment does not count, and stays as it is
    ]
    assert set(after) <= set(before)
    assert log.size < size / 3
    assert log.first_dirty_offset == 120
    assert log.log_end_offset == 121
    log.close()
    log = open_log(tmp_path / "t-0")
    assert stored(log) == after
    assert (log.log_start_offset, log.log_end_offset) == (0, 121)
    compact(log)  # segments that are small now are joined
    assert stored(log) == after
    assert len(log.segments) == 2


def test_tombstones_go_after_their_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("c", "1"))
    log.roll(now_ms=NOW)
    compact(log)
    assert [(r.key, r.value, r.timestamp) for r in stored(log)] == [
        (b"b", b"1", NOW),
        (b"a", None, NOW),
        (b"c", b"1", NOW),
    ]
    header = read_header(list(log.batches_from(0))[1])
    assert (header.base_timestamp, header.max_timestamp) == (NOW + 1000, NOW)  # the delete horizon
    compact(log, now=NOW + 999)
    assert len(stored(log)) == 3
    compact(log, now=NOW + 1000)
    assert [r.key for r in stored(log)] == [b"b", b"c"]
    assert [r.offset for r in stored(log)] == [0 + 1, 3]


def test_a_producers_last_batch_stays_as_an_empty_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")

    def send(sequence: int, producer: int) -> bool:
        batch = build_batch(
            [Record(b"k", b"v", NOW)], producer_id=producer, producer_epoch=0, base_sequence=sequence
        )
        return log.append(batch, leader_epoch=0, now_ms=NOW).duplicate

    send(0, producer=1)
    send(1, producer=1)
    put(log, ("k", "other"))
    log.roll(now_ms=NOW)
    compact(log)
    headers = [read_header(batch) for batch in log.batches_from(0)]
    assert [(h.base_offset, h.record_count, h.producer_id) for h in headers] == [(1, 0, 1), (2, 1, -1)]
    log.close(clean=False)
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    log = open_log(tmp_path / "t-0", clean=False)
    assert send(1, producer=1)
    assert not send(2, producer=1)
    log.roll(now_ms=NOW)
    compact(log)  # the empty batch is no longer the log's last, and "other" no longer the latest
    assert [read_header(batch).base_offset for batch in log.batches_from(0)] == [3]


def test_control_batches_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    put(log, ("k", "1"))
    marker = build_batch(
        [Record(b"\0\0\0\1", b"\0\0\0\0\0\0", NOW)],
        control=True,
        producer_id=3,
        producer_epoch=0,
        base_offset=1,
    )
    log.append_as_follower(marker, now_ms=NOW)
    put(log, ("k", "2"))
    log.roll(now_ms=NOW)
    compact(log)
    assert [read_header(b).attributes & CONTROL for b in log.batches_from(0)] == [CONTROL, 0]


def test_small_memory_takes_several_passes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for i in range(50):
        put(log, (f"k{i % 25}", f"{i}"))
    log.roll(now_ms=NOW)
    expected = table(stored(log))
    passes = 0
    while log.first_dirty_offset < 50:
        compact(log, max_keys=7)
        assert table(stored(log)) == expected
        passes += 1
    assert passes > 5
    assert len(stored(log)) == 25


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.lists(
                st.tuples(st.sampled_from("abcdefg"), st.none() | st.text("xyz", max_size=20)),
                min_size=1,
                max_size=4,
            ),
        ),
        st.tuples(
            st.sampled_from(["roll", "compact", "later", "clean stop", "kill", "power loss"]), st.none()
        ),
    ),
    max_size=60,
)


@given(operations, st.integers(1, 12))
@settings(deadline=None, max_examples=150)
def test_what_a_reader_ends_up_with_never_changes(
    steps: list[tuple[str, list[tuple[str, str | None]] | None]], max_keys: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        log = open_log(Path(root) / "t-0")
        expected: dict[bytes | None, bytes] = {}
        ever: set[Record] = set()
        now = NOW
        for step, pairs in steps:
            match step:
                case "put":
                    assert pairs is not None
                    put(log, *pairs)
                    records = list(read_records(list(log.batches_from(log.log_end_offset - 1))[-1]))
                    ever |= set(records)
                    expected = table([*(Record(k, v) for k, v in expected.items()), *records])
                case "roll":
                    log.roll(now_ms=NOW)
                case "compact":
                    compact(log, now=now, max_keys=max_keys)
                case "later":
                    now += 600
                case _:
                    dirty = log.first_dirty_offset
                    log.close(clean=step == "clean stop")
                    log = open_log(
                        Path(root) / "t-0", clean=step == "clean stop", page_cache_kept=step == "kill"
                    )
                    log.first_dirty_offset = dirty
            records = stored(log)
            assert table(records) == expected
            assert set(records) <= ever
        log.roll(now_ms=NOW)
        for _ in range(2):
            compact(log, now=now)
            now += 1000
        assert table(stored(log)) == expected
        if log.first_dirty_offset == log.log_end_offset:
            compact(log, now=now)
            assert len({r.key for r in stored(log)}) == len(stored(log))


# -- dying in the middle ----------------------------------------------------------------------------------------


def test_death_before_any_step(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for i in range(40):
        put(log, (f"k{i % 7}", f"v{i}" if i % 4 else None), ("often", f"{i}"))
    log.roll(now_ms=NOW)
    put(log, ("k1", "last"))
    log.epochs.save()
    before = stored(log)
    moments: list[Path] = []

    def keep() -> None:
        moments.append(tmp_path / f"moment-{len(moments)}")
        shutil.copytree(log.directory, moments[-1])

    with before_each_file_operation(keep):
        compact(log)
    after = stored(log)
    assert len(moments) > 20
    seen = set()
    for moment in moments:
        survivor = Log.open(
            moment, CONFIG, clean=False, page_cache_kept=len(moment.name) % 2 == 0, now_ms=NOW
        )
        records = stored(survivor)
        assert table(records) == table(before)
        assert set(after) <= set(records) <= set(before)
        assert survivor.log_end_offset == log.log_end_offset
        assert not [p for p in moment.iterdir() if p.suffix in (".cleaned", ".swap", ".deleted")]
        seen.add(len(records))
        compact(survivor)
        assert stored(survivor) == after
        shutil.rmtree(moment)
    assert {len(before), len(after)} <= seen


WRITER = """
import sys
from pathlib import Path
from millstream_kafka.batch import Record, build_batch
from millstream_broker.log.compaction import Compaction
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log

config = LogConfig(cleanup_policy="compact", segment_bytes=600, index_interval_bytes=100)
log = Log.open(Path(sys.argv[1]), config, clean=False, page_cache_kept=True)
i = log.log_end_offset
while True:
    for _ in range(30):
        record = Record(b"k%d" % (i % 13), b"%d" % i, 1_700_000_000_000)
        log.append(build_batch([record]), leader_epoch=0, now_ms=1_700_000_000_000)
        print(i, flush=True)
        i += 1
    compaction = Compaction(log, log.segments.active.base_offset, now_ms=1_700_000_000_000)
    while compaction.work():
        compaction.commit()
    compaction.finish()
    log.remove_deleted_files()
"""


def test_kill_9_while_compacting(tmp_path: Path) -> None:
    acknowledged = -1
    for round_number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "t-0")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(200 + 31 * round_number):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        log = open_log(tmp_path / "t-0", clean=False, page_cache_kept=True)
        end = log.log_end_offset
        assert end in (acknowledged + 1, acknowledged + 2)
        assert table(stored(log)) == {f"k{i % 13}".encode(): str(i).encode() for i in range(end - 13, end)}
        assert all(int(record.value or b"") == record.offset for record in stored(log))
        log.close(clean=False)


# -- concurrent work --------------------------------------------------------------------------------------------


def test_a_log_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for i in range(40):
        put(log, ("k", f"{i}"))
    compaction = Compaction(log, log.segments.active.base_offset, now_ms=NOW)
    assert compaction.work()
    log.config = replace(CONFIG, cleanup_policy="compact,delete", retention_bytes=1000)
    assert log.delete_old_segments(NOW) > 0
    left = stored(log)
    assert not compaction.commit()
    assert stored(log) == left
    assert not list((tmp_path / "t-0").glob("*.cleaned"))


def test_cancelled(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for i in range(40):
        put(log, ("k", f"{i}"))
    left = stored(log)
    compaction = Compaction(log, log.segments.active.base_offset, now_ms=NOW)
    compaction.cancel()
    assert not compaction.work()
    compaction.finish()
    assert log.first_dirty_offset == 0
    assert stored(log) == left
    assert not list((tmp_path / "t-0").glob("*.cleaned"))


def test_a_log_that_cannot_be_read_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path / "t-0")
    for i in range(20):
        put(log, ("k", f"{i}"))
    damaged = bytearray(build_batch([Record(b"k", b"v", NOW)], base_offset=20))
    damaged[61] = 0x7F  # a record longer than its batch, under a correct CRC
    damaged[17:21] = crc32c(damaged[21:]).to_bytes(4, "big")
    log.append_as_follower(damaged, now_ms=NOW)
    log.roll(now_ms=NOW)
    compaction = Compaction(log, log.log_end_offset, now_ms=NOW)
    assert not compaction.work()
    compaction.finish()
    assert log.first_dirty_offset == 0
    assert due(log, NOW, 21) is None
    assert "t-0 is no longer compacted: batch at offset 20" in caplog.text


def test_readers_go_on_with_the_old_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for i in range(40):
        put(log, ("k", f"{i}"))
    part = log.read(0, 10_000, upper=40, min_one=True)
    assert part is not None
    data = part.read()
    offset = 0
    log.read(3, 100, upper=40, min_one=True)
    compact(log)
    assert part.read() == data
    for offset in range(41):
        log.read(offset, 100, upper=40, min_one=True)


def test_the_manager_picks_the_dirtiest_and_remembers(tmp_path: Path) -> None:
    manager = LogManager([tmp_path], CONFIG)
    manager.lock()
    manager.identify(1, "c")
    manager.start()
    for partition, count in ((0, 20), (1, 60)):
        log = manager.get_or_create("t", partition)
        for i in range(count):
            put(log, ("k", f"{i}"))
    assert manager.next_compaction(NOW, lambda key: 0) is None
    done = []
    while (compaction := manager.next_compaction(NOW)) is not None:
        while compaction.work():
            compaction.commit()
        compaction.finish()
        done.append(compaction.log.directory.name)
    assert sorted(done) == ["t-0", "t-1"]
    expected = {log.directory.name: log.first_dirty_offset for log in manager}
    manager.close()
    assert (tmp_path / "cleaner-offset-checkpoint").read_text().startswith("0\n2\nt 0 ")
    manager = LogManager([tmp_path], CONFIG)
    manager.lock()
    manager.start()
    assert {log.directory.name: log.first_dirty_offset for log in manager} == expected
    manager.close()


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4, Compression.SNAPPY])
def test_kafka_reads_compacted_segments(tmp_path: Path, codec: Compression) -> None:
    log = open_log(tmp_path / "t-0")
    for i in range(60):
        put(log, (f"k{i % 5}", f"v{i}"), (f"deleted{i % 3}", None), codec=codec)
    log.roll(now_ms=NOW)
    compact(log)
    expected = len(stored(log))
    log.close()
    files = sorted(
        str(p) for p in (tmp_path / "t-0").iterdir() if p.suffix in (".log", ".index", ".timeindex")
    )
    dump = run_kafka_tool("dump-log", "--deep-iteration", "--files", ",".join(files)).stdout
    assert dump.count("| offset: ") == expected == 8
    assert "ismatch" not in dump
    assert "deleteHorizonMs: OptionalLong[1700000001000]" in dump

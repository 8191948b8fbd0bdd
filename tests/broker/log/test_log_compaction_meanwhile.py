"""A log changes while a thread compacts it: the pass changes nothing that it has not seen."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from millstream_broker.log import compaction as compaction_module
from millstream_broker.log.compaction import Allowance, Compaction, Throttler
from millstream_broker.log.compaction_due import due
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache
from millstream_broker.log.log import Log
from millstream_broker.log.manager import LogManager
from millstream_harness.compaction import NOW, compact, pass_over, put, run, stored, values
from millstream_kafka.batch import read_records

CONFIG = LogConfig(
    cleanup_policy="compact", segment_bytes=600, index_interval_bytes=100, delete_retention_ms=0
)


def table(log: Log) -> dict[bytes | None, bytes | None]:
    """The final value of each key for a reader from the start, tombstones included."""
    return {record.key: record.value for batch in log.batches_from(0) for record in read_records(batch)}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log.open(tmp_path / "t-0", CONFIG, clean=True, now_ms=NOW)
    for i in range(40):
        put(log, (f"k{i % 7}", f"v{i}"))
    return log


def test_a_log_that_is_truncated_keeps_what_the_pass_did_not_see(log: Log) -> None:
    compaction = pass_over(log)
    assert compaction.work()
    log.truncate_to(3, now_ms=NOW)  # the closed segment is the active one again
    put(log, ("k0", "after"))
    left = list(log.batches_from(0))
    assert not compaction.commit()
    while compaction.work():
        assert not compaction.commit()
    compaction.finish()
    assert list(log.batches_from(0)) == left
    assert (log.first_dirty_offset, log.uncleanable) == (0, False)
    assert not list(log.directory.glob("*.cleaned"))


def test_a_log_that_is_made_anew_gets_nothing_of_the_old_one(tmp_path: Path) -> None:
    manager = LogManager([tmp_path], CONFIG)
    manager.lock()
    manager.identify(1, "c")
    manager.start()
    old = manager.get_or_create("t", 0)
    for i in range(40):
        put(old, ("k", f"old {i}"))
    compaction = pass_over(old)
    assert compaction.work()
    manager.delete("t", 0)
    new = manager.get_or_create("t", 0)
    put(new, ("k", "new"))
    assert not compaction.commit()
    assert not compaction.work()
    compaction.finish()
    assert table(new) == {b"k": b"new"}
    assert not list(new.directory.glob("*.swap"))
    manager.close()


def test_a_pass_writes_nothing_more_when_its_log_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whichever sleep: otherwise it would write into the files of a pass over the folder's new log."""
    for moment in count(1):
        if not deleted_at(moment, tmp_path / str(moment), monkeypatch):
            break
    assert moment > 10


def deleted_at(moment: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a pass sleeps so often after it has begun to write; then its log is deleted meanwhile."""
    files = FileCache()
    folder.mkdir()
    old = Log.open(folder / "t-0", CONFIG, clean=True, now_ms=NOW, files=files)
    for i in range(20):
        put(old, (f"k{i}", "old"))
    others: list[Compaction] = []
    sleeps = 0

    def written() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder / "t-0").glob("*.cleaned")}

    def sleep() -> float:
        nonlocal sleeps
        if others or not (folder / "t-0" / f"{0:020d}.log.cleaned").exists():
            return 0.0
        sleeps += 1
        if sleeps == moment:
            old.move(folder / "t-0.deleted")
            new = Log.open(folder / "t-0", CONFIG, clean=True, now_ms=NOW, files=files)
            put(new, ("gone", "1"), ("gone", "2"))
            for i in range(20):
                put(new, (f"k{i}", "new"))
            others.append(pass_over(new))
            with monkeypatch.context() as patch:
                patch.setattr(compaction_module, "pause_after", lambda worked_s, share: 0.0)
                assert others[0].work()
            before.update(written())
        return 0.0

    class Sleeping(Throttler):
        def take(self, size: int) -> float:
            return sleep()

    before: dict[str, bytes] = {}
    monkeypatch.setattr(compaction_module, "pause_after", lambda worked_s, share: sleep())
    one = Compaction(
        old, old.segments.active.base_offset, now_ms=NOW, allowance=Allowance(throttle=Sleeping(lambda: 1.0))
    )
    is_prepared = one.work()
    if not others:
        return False
    assert not is_prepared
    assert written() == before, f"the pass went on after sleep {moment}"
    (other,) = others
    assert other.commit()
    assert table(other.log) == {b"gone": b"2"} | {f"k{i}".encode(): b"new" for i in range(20)}
    assert old.is_deleted
    assert not old.uncleanable
    return True


def test_a_log_that_is_deleted_while_a_segment_is_replaced_stays_deleted(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a missing file would count as a failure of the disk."""
    rename = os.rename

    def deleting(source: str, target: str) -> None:
        rename(source, target)
        if target.endswith(".swap"):
            log.move(tmp_path / "t-0.deleted")

    compaction = pass_over(log)
    assert compaction.work()
    monkeypatch.setattr(os, "rename", deleting)
    with pytest.raises(FileNotFoundError):
        compaction.commit()
    assert log.is_deleted


def test_where_retention_takes_a_part_the_log_is_not_compacted_yet(tmp_path: Path) -> None:
    """Otherwise the next pass would remove a tombstone before the older value in the omitted segment."""
    log = Log.open(tmp_path / "t-0", CONFIG, clean=True, now_ms=NOW)
    put(log, ("too old", "1"))
    log.roll(now_ms=NOW)
    put(log, ("deleted", "old"))
    log.roll(now_ms=NOW)
    put(log, ("deleted", None))
    log.roll(now_ms=NOW)
    compaction = pass_over(log)
    assert compaction.work()
    log.config = replace(
        CONFIG, cleanup_policy="compact,delete", retention_bytes=log.size - log.segments[0].size
    )
    assert log.delete_old_segments(NOW) == 1
    assert not compaction.commit()
    assert not compaction.work()
    compaction.finish()
    log.config = CONFIG
    for _ in range(3):
        assert table(log).get(b"deleted") is None
        compact(log)
    assert table(log) == {}


def test_where_retention_takes_a_whole_group_the_rest_is_compacted(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "t-0", CONFIG, clean=True, now_ms=NOW)
    for key in ("a", "b", "c"):
        put(log, (key, "1"), (key, "x" * 300))
        log.roll(now_ms=NOW)
    compaction = pass_over(log)
    assert compaction.work()
    assert compaction.commit()  # commits the first segment
    log.config = replace(CONFIG, cleanup_policy="compact,delete", retention_bytes=log.segments[2].size)
    assert log.delete_old_segments(NOW) == 2
    log.config = CONFIG
    run(compaction)
    assert values(log) == [(5, "c", "x" * 300)]
    assert log.first_dirty_offset == 6


def test_a_pass_without_anything_prepared_commits_nothing(log: Log) -> None:
    compaction = pass_over(log)
    left = stored(log)
    assert not compaction.commit()
    assert compaction.work()
    assert compaction.commit()
    changed = stored(log)
    assert not compaction.commit()
    assert len(changed) < len(left)
    assert stored(log) == changed


def test_a_pass_changes_nothing_of_a_log_that_is_offline(log: Log) -> None:
    compaction = pass_over(log)
    assert compaction.work()
    files = sorted(path.name for path in log.directory.glob("*.log"))
    log.offline = OSError(errno.EIO, "the disk failed")
    assert not compaction.commit()
    assert not compaction.work()
    compaction.finish()
    assert sorted(path.name for path in log.directory.glob("*.log")) == files
    assert log.first_dirty_offset == 0


def test_a_log_that_is_truncated_after_the_last_replacement_is_dirty_from_there_on(log: Log) -> None:
    compaction = pass_over(log)
    while compaction.work():
        assert compaction.commit()
    log.truncate_to(3, now_ms=NOW)
    compaction.finish()
    assert log.first_dirty_offset <= 3


def test_what_fails_because_the_log_was_truncated_does_not_make_it_uncleanable(log: Log) -> None:
    class Truncating(Throttler):
        def take(self, size: int) -> float:
            log.truncate_to(3, now_ms=NOW)
            raise ValueError("half of a record")

    allowance = Allowance(throttle=Truncating(lambda: 1.0))
    compaction = Compaction(log, log.segments.active.base_offset, now_ms=NOW, allowance=allowance)
    assert not compaction.work()
    compaction.finish()
    assert not log.uncleanable
    assert log.first_dirty_offset == 0


def test_a_log_that_is_half_replaced_is_offline(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start completes the replacement; until then the log refuses writes."""
    rename = os.rename

    def failing(source: str, target: str) -> None:
        if source.endswith(".swap"):
            raise OSError(errno.EIO, "the disk failed")
        rename(source, target)

    before = stored(log)
    compaction = pass_over(log)
    assert compaction.work()
    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="the disk failed") as caught:
        compaction.commit()
    assert log.offline is caught.value
    monkeypatch.undo()
    log.close(clean=False)
    log = Log.open(log.directory, CONFIG, clean=False, now_ms=NOW)
    assert table(log) == {record.key: record.value for record in before}
    assert len(stored(log)) < len(before)


def test_a_segment_that_ends_too_early_is_named_as_damaged(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    class Cutting(Throttler):
        def take(self, size: int) -> float:
            os.truncate(log.segments[0].path(), 0)
            return 0.0

    allowance = Allowance(throttle=Cutting(lambda: 1.0))
    compaction = Compaction(log, log.segments.active.base_offset, now_ms=NOW, allowance=allowance)
    assert not compaction.work()
    assert log.uncleanable
    assert "t-0 is no longer compacted: the batch at offset 0 is damaged" in caplog.text


def test_damage_is_not_written_anew_under_a_right_crc(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    segment = log.segments[1]
    with open(segment.path(), "r+b") as file:
        file.seek(segment.size - 3)
        file.write(b"\xff")
    before = segment.read(0, segment.size)
    compact(log)
    assert log.uncleanable
    assert due(log, NOW, log.log_end_offset) is None
    assert "t-0 is no longer compacted" in caplog.text
    assert log.segments[1].read(0, segment.size) == before
    assert log.first_dirty_offset == 0


def test_what_lies_behind_damage_is_not_dropped(log: Log) -> None:
    segment = log.segments[0]
    (position, _), *_ = list(segment.headers(0))[2:]
    with open(segment.path(), "r+b") as file:
        file.seek(position + 16)
        file.write(b"\x7f")  # not a batch
    size = segment.size
    compact(log)
    assert log.uncleanable
    assert log.segments[0].size == size


def test_one_log_that_fails_leaves_the_others_their_turn(tmp_path: Path) -> None:
    """Even if it fails while the cleaner checks which log is due, and while logs are opened."""
    manager = LogManager([tmp_path], CONFIG)
    manager.lock()
    manager.identify(1, "c")
    manager.start()
    for partition in range(3):
        one = manager.get_or_create("t", partition)
        for i in range(20 + partition):
            put(one, ("k", f"{i}"))

    def high_watermark(key: tuple[str, int]) -> int:
        manager.get_or_create("made-meanwhile", len(manager))  # as the thread that opens logs does
        found = manager.get(*key)
        assert found is not None
        return "not a number" if key == ("t", 1) else found.log_end_offset  # type: ignore[return-value]

    done = []
    while (compaction := manager.next_compaction(NOW, high_watermark)) is not None:
        while compaction.work():
            compaction.commit()
        compaction.finish()
        done.append(compaction.log.directory.name)
    assert sorted(done) == ["t-0", "t-2"]
    assert [log.directory.name for log in manager if log.uncleanable] == ["t-1"]
    manager.close()

"""Leader epochs: start offsets, truncation, and when the file is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from millstream_broker.log import epochs as epochs_module
from millstream_broker.log.config import LogConfig
from millstream_broker.log.epochs import LeaderEpochs
from millstream_broker.log.log import Log
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.errors import ApiError


def epochs_of(folder: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    """Leader epochs with these entries, saved."""
    epochs = LeaderEpochs(folder)
    for entry in entries:
        epochs.assign(*entry)
    epochs.save()
    return epochs


def written(folder: Path, text: str) -> LeaderEpochs:
    (folder / "leader-epoch-checkpoint").write_text(text)
    return LeaderEpochs(folder)


def test_an_epoch_begins_with_its_first_record(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path)
    assert epochs.latest == -1
    for epoch, offset in [(0, 0), (2, 3), (2, 5), (3, 10), (3, 11), (1, 12), (-1, 13)]:
        epochs.assign(epoch, offset)
    assert (epochs.entries, epochs.latest) == ([(0, 0), (2, 3), (3, 10)], 3)


def test_an_epoch_without_records_makes_room_for_the_next(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path, (2, 0), (3, 10), (5, 20), (7, 20))
    assert epochs.entries == [(2, 0), (3, 10), (7, 20)]
    epochs.assign(8, 10)
    assert epochs.entries == [(2, 0), (8, 10)]
    epochs.assign(9, 0)
    assert epochs.entries == [(9, 0)]


def test_the_end_of_an_epoch_is_where_the_next_begins(tmp_path: Path) -> None:
    epochs = epochs_of(tmp_path, (2, 1), (3, 10), (7, 20))
    assert [epochs.end_offset(epoch, 30) for epoch in (-1, 0, 1, 2, 3, 4, 6, 7, 8)] == [
        (-1, -1),
        (0, 1),
        (1, 1),
        (2, 10),
        (3, 20),
        (3, 20),
        (3, 20),
        (7, 30),
        (-1, -1),
    ]
    assert epochs_of(tmp_path).end_offset(0, 30) == (-1, -1)


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (21, [(2, 0), (3, 10), (7, 20)]),
        (20, [(2, 0), (3, 10)]),
        (11, [(2, 0), (3, 10)]),
        (1, [(2, 0)]),
        (0, []),
    ],
)
def test_truncation_at_the_end_drops_epochs_that_begin_there_or_later(
    tmp_path: Path, offset: int, left: list[tuple[int, int]]
) -> None:
    epochs = epochs_of(tmp_path, (2, 0), (3, 10), (7, 20))
    epochs.truncate_from_end(offset)
    assert (epochs.entries, epochs.dirty) == (left, len(left) < 3)


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (4, [(2, 5), (3, 10), (7, 20)]),
        (5, [(2, 5), (3, 10), (7, 20)]),
        (6, [(2, 6), (3, 10), (7, 20)]),
        (9, [(2, 9), (3, 10), (7, 20)]),
        (10, [(3, 10), (7, 20)]),
        (11, [(3, 11), (7, 20)]),
        (20, [(7, 20)]),
        (25, [(7, 25)]),
    ],
)
def test_truncation_at_the_start_keeps_the_epoch_of_the_first_record(
    tmp_path: Path, offset: int, left: list[tuple[int, int]]
) -> None:
    epochs = epochs_of(tmp_path, (2, 5), (3, 10), (7, 20))
    epochs.truncate_from_start(offset)
    assert (epochs.entries, epochs.dirty) == (left, offset > 5)


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    epochs_of(tmp_path, (2, 0), (3, 12))
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n2 0\n3 12\n"
    again = LeaderEpochs(tmp_path)
    assert again.load()
    assert (again.entries, again.dirty) == ([(2, 0), (3, 12)], False)


def test_epochs_without_records_are_believed(tmp_path: Path) -> None:
    """Kafka before 2.0 wrote such epochs."""
    epochs = written(tmp_path, "0\n3\n1 0\n2 5\n3 5\n")
    assert epochs.load()
    assert epochs.entries == [(1, 0), (2, 5), (3, 5)]
    assert epochs.end_offset(2, 9) == (2, 5)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "0\n2\n1 0\n",
        "0\n1\n1 0 0\n",
        "0\n1\n1 x\n",
        "0\n2\n1 0\n1 5\n",
        "0\n2\n2 0\n1 5\n",
        "0\n3\n1 0\n2 6\n3 5\n",
    ],
)
def test_a_file_that_cannot_be_believed_says_nothing(tmp_path: Path, text: str | None) -> None:
    epochs = epochs_of(tmp_path, (1, 0), (2, 5))
    if text is None:
        (tmp_path / "leader-epoch-checkpoint").unlink()
    else:
        written(tmp_path, text)
    assert not epochs.load()
    assert epochs.entries == []


def test_there_is_no_file_before_the_first_epoch(tmp_path: Path) -> None:
    log = Log.open(tmp_path, LogConfig(), clean=True)
    assert not (tmp_path / "leader-epoch-checkpoint").exists()
    log.epochs.sync()
    log.assign_leader_epoch(0)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    log.close()


def test_the_disk_is_waited_for_once_after_each_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    epochs = epochs_of(tmp_path, (1, 0))
    assert not epochs.dirty
    assert not synced, "save does not wait"
    epochs.sync()
    assert len(synced) == 2, "the file and its name"
    epochs.sync()
    assert len(synced) == 2
    epochs.assign(2, 5)
    assert epochs.dirty
    epochs.save()
    epochs.sync()
    assert len(synced) == 4


def test_a_sync_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = epochs_of(tmp_path, (1, 0))

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for _ in range(2):
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", fail)
            with pytest.raises(OSError, match="Input/output error"):
                epochs.sync()
    epochs.sync()


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str, data: bytes, *, sync: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(epochs_module, "write_atomically", fail)


def test_recovery_point_stays_behind_an_epoch_that_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no start would find it again, and followers would truncate this leader's records for ever."""
    log = Log.open(tmp_path, LogConfig(), clean=True)
    log.append(bytearray(build_batch([Record(b"k", b"v", 0)])), leader_epoch=1, now_ms=0)
    log.flush()
    with monkeypatch.context() as full:
        fill_disk(full)
        log.append(bytearray(build_batch([Record(b"k", b"v", 0)])), leader_epoch=2, now_ms=0)
        log.roll(now_ms=0)
        with pytest.raises(ApiError, match="No space left"):
            log.flush()
        with pytest.raises(ApiError, match="No space left"):
            log.flush_closed()
        assert log.flushed_offset == 1
        assert log.offline is None
    log.flush()
    assert log.flushed_offset == 2
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 1\n"
    log.close()


def test_log_whose_epochs_are_not_written_is_not_closed_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path, LogConfig(), clean=True)
    fill_disk(monkeypatch)
    log.assign_leader_epoch(1)
    with pytest.raises(OSError, match="No space left"):
        log.close()

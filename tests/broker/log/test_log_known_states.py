"""The states of partitions that a broker has seen, in its log directories."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millstream_broker.log import directory_notes
from millstream_broker.log.epochs import LeaderEpochs
from millstream_broker.log.known_states import FILE_NAME, KnownState, KnownStates, TopicIdPartition, forgotten

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
EVERY = {(A, 0), (A, 1), (B, 0)}


def begun(*directories: Path, keep: set[TopicIdPartition] = EVERY) -> KnownStates:
    states = KnownStates()
    states.begin(directories, keep)
    return states


def test_states_are_known_after_a_restart(tmp_path: Path) -> None:
    states = begun(tmp_path)
    states.note("a", A, 0, 3, 7)
    states.note("b", B, 0, 0, 0)
    states.write()
    states.note("a", A, 0, 3, 8)
    states.note("a", A, 1, -1, -1)
    states.write()
    again = begun(tmp_path)
    assert again.all() == {(A, 0): KnownState(3, 8), (B, 0): KnownState(0, 0)}
    assert again.topics == {A: "a", B: "b"}
    assert begun(tmp_path, keep={(B, 0)}).all() == {(B, 0): KnownState(0, 0)}
    assert begun(tmp_path).all() == {(B, 0): KnownState(0, 0)}, "what is not kept is gone"


def test_older_states_are_ignored(tmp_path: Path) -> None:
    states = begun(tmp_path)
    calls: list[int] = []
    states.on_change = lambda: calls.append(0)
    for leader_epoch, version in ((3, 7), (3, 7), (3, 6), (2, 9), (3, 8), (4, 0)):
        states.note("a", A, 0, leader_epoch, version)
    assert states.all() == {(A, 0): KnownState(4, 0)}
    assert len(calls) == 3
    states.note("a", A, 1, -1, 0)
    assert states.all()[A, 1] == KnownState(-1, 0), "the first state of all"


def test_the_newest_of_several_directories_counts(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path, version in ((one, 5), (other, 6)):
        path.mkdir()
        states = begun(path)
        states.note("a", A, 0, 1, version)
        states.write()
    states = begun(one, other)
    assert states.all() == {(A, 0): KnownState(1, 6)}
    states.notes.leave(other)
    states.note("a", A, 0, 1, 7)
    states.write()
    assert begun(other).all() == {(A, 0): KnownState(1, 6)}
    assert begun(one).all() == {(A, 0): KnownState(1, 7)}


def test_a_line_that_a_crash_has_cut_off_is_skipped(tmp_path: Path) -> None:
    states = begun(tmp_path)
    states.note("a", A, 0, 1, 5)
    states.note("b", B, 0, 1, 5)
    states.write()
    path = tmp_path / FILE_NAME
    for data in (path.read_bytes()[:-4], path.read_bytes() + b"\xff", b"2\n", b"", b"1\nx 0 1 2 t\n"):
        path.write_bytes(data)
        assert set(begun(tmp_path).all()) <= {(A, 0), (B, 0)}


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_notes, "SLACK", 10)
    states = begun(tmp_path)
    for version in range(100):
        states.note("a", A, 0, 1, version)
        states.write()
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) <= 16
    assert begun(tmp_path).all() == {(A, 0): KnownState(1, 99)}


def test_a_forgotten_state_does_not_come_back_unless_a_newer_one_was_seen(tmp_path: Path) -> None:
    states = begun(tmp_path)
    states.note("a", A, 0, 3, 7)
    states.note("b", B, 0, 3, 7)
    states.write()
    before = states.all()
    states.note("b", B, 0, 5, 2)
    states.forget(before)
    assert begun(tmp_path).all() == {(B, 0): KnownState(5, 2)}


def test_a_failure_is_passed_on(tmp_path: Path) -> None:
    failures: list[Path] = []
    states = begun(tmp_path)
    states.notes.failed = lambda directory, error: failures.append(directory)
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).mkdir()
    states.note("a", A, 0, 1, 5)
    states.write()
    assert failures == [tmp_path]


@pytest.mark.parametrize(
    ("stored", "by"),
    [
        ((3, 7), 0),
        ((3, 8), 0),
        ((4, 8), 0),
        ((3, 6), 1),
        ((4, 6), 1),
        ((4, 7), 1),
        ((2, 9), 1),
        ((0, 0), 3),
        (None, 0),
    ],
)
def test_a_state_that_contradicts_the_known_one_is_noticed(stored: tuple[int, int] | None, by: int) -> None:
    found = {} if stored is None else {(A, 0): KnownState(*stored)}
    assert forgotten({(A, 0): KnownState(3, 7)}, found) == ({(A, 0): by} if by else {})


@pytest.mark.parametrize(
    ("entries", "end", "epoch"),
    [
        ([], 0, -1),
        ([(4, 0)], 0, 4),
        ([(4, 0)], 10, 4),
        ([(4, 0), (6, 10)], 10, 4),
        ([(4, 0), (6, 10)], 11, 6),
        ([(4, 10)], 10, 4),
    ],
)
def test_an_epoch_without_records_is_not_that_of_the_last_record(
    tmp_path: Path, entries: list[tuple[int, int]], end: int, epoch: int
) -> None:
    """Of a log whose records were all deleted, the last one counts."""
    epochs = LeaderEpochs(tmp_path)
    for entry in entries:
        epochs.assign(*entry)
    assert epochs.of_last_record(end) == epoch

"""Checkpoint files, Kafka's and ours: content, errors, and fsync."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import pytest

from millstream_broker.log import checkpoints
from millstream_broker.log.checkpoints import CheckpointError

ONE, TWO = (uuid.UUID(int=number) for number in (1, 2))
ENTRIES = {("b", 1): (TWO, 5), ("a", 10): (ONE, 7), ("a", 2): (None, 0)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the lines '0' and a number of entries"),
        ("0\n", "expected the lines '0' and a number of entries"),
        ("1\n0\n", "expected the lines '0' and a number of entries"),
        ("0\nx\n", "expected the lines '0' and a number of entries"),
        ("0\n-1\n", "expected the lines '0' and a number of entries"),
        ("0\n0\nt 0 1\n", "1 entries where its second line says 0"),
        ("0\n2\nt 0 1\n", "1 entries where its second line says 2"),
        ("0\n1\nt 0\n", "'t 0' does not have 3 columns"),
        ("0\n2\nt 0 1\nt 1 5 x\n", "'t 1 5 x' does not have 3 columns"),
        ("0\n1\nt x 5\n", "invalid literal for int() with base 10: 'x'"),
        ("0\n1\nt 0 y\n", "invalid literal for int() with base 10: 'y'"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(CheckpointError, match=f"^{re.escape(f'{tmp_path}/checkpoint: {message}')}"):
        checkpoints.read_offsets(str(tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    "text", ["0\n2\nt 0 1\nt 1 5\n", "0\n2\nt 0 1\nt 1 5", " 0 \n 2 \n\n t  0 1\n\nt 1 5\n\n"]
)
def test_spaces_and_empty_lines_do_not_count(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint").write_text(text)
    assert checkpoints.read_offsets(str(tmp_path / "checkpoint")) == {("t", 0): 1, ("t", 1): 5}


def test_entries_come_back_with_their_topic_ids(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    checkpoints.store(path, ENTRIES)
    found = checkpoints.load(path)
    assert found.offsets == {key: offset for key, (_, offset) in ENTRIES.items()}
    for key, (topic_id, _) in ENTRIES.items():
        assert [found.applies(key, each) for each in (None, ONE, TWO)] == [
            each == topic_id for each in (None, ONE, TWO)
        ]
    assert not found.applies(("a", 3), None)


def test_an_empty_file_with_ids_hides_the_other(tmp_path: Path) -> None:
    """This broker did not write the other file's content."""
    path = str(tmp_path / "checkpoint")
    checkpoints.store(path, {})
    checkpoints.write_offsets(path, {("a", 2): 5})
    found = checkpoints.load(path)
    assert (found.offsets, found.topic_ids) == ({}, {})


@pytest.mark.parametrize(
    ("offsets", "topic_ids"),
    [(None, {}), ({}, {}), ({("a", 2): 5}, None)],
    ids=["missing", "empty", "entries"],
)
def test_only_entries_of_a_file_without_ids_lack_them(
    tmp_path: Path, offsets: dict[tuple[str, int], int] | None, topic_ids: dict[str, str] | None
) -> None:
    path = str(tmp_path / "checkpoint")
    if offsets is not None:
        checkpoints.write_offsets(path, offsets)
    found = checkpoints.load(path)
    assert (found.offsets, found.topic_ids) == (offsets or {}, topic_ids)
    assert found.applies(("a", 2), ONE) == bool(offsets)


def test_the_disk_is_waited_for_where_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our file alone is fsynced: Kafka's is never read while ours exists."""
    path = str(tmp_path / "checkpoint")
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(os.path.realpath(f"/proc/self/fd/{_number(file)}"))
    )
    checkpoints.store(path, ENTRIES)
    assert synced == [f"{path}.by-id.tmp", str(tmp_path)]
    synced.clear()
    checkpoints.store(path, ENTRIES, sync=False)
    checkpoints.write_offsets(path, {}, sync=False)
    assert synced == []
    checkpoints.write_offsets(path, {})
    assert synced == [f"{path}.tmp", str(tmp_path)]


def _number(file: object) -> int:
    return file if isinstance(file, int) else file.fileno()  # type: ignore[attr-defined,no-any-return]


def test_the_file_with_ids_is_written_first(tmp_path: Path) -> None:
    """Otherwise a crash in between would leave only Kafka's, which the broker would then trust."""
    (tmp_path / "checkpoint.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        checkpoints.store(str(tmp_path / "checkpoint"), ENTRIES)
    assert len(checkpoints.load(str(tmp_path / "checkpoint")).offsets) == 3

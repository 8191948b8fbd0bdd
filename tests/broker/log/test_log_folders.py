"""The folders of a log directory: partitions, their topics, and deleted ones."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from millstream_broker.log import folders

TOPIC_ID = uuid.UUID("c5db41bf-48d3-41db-be1b-a6a230589398")
DELETED = f"t-3.{'0123456789abcdef' * 2}-delete"
STRAY = f"t-1-3.{'0123456789abcdef' * 2}-stray"


def test_partitions_and_deleted_partitions_are_told_by_their_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a-file-0", ".lock"):
        (tmp_path / name).write_text("")
    partitions = {
        "a-0": ("a", 0),
        "b-1-12": ("b-1", 12),
        "c.d_e-7": ("c.d_e", 7),
        "t.0123-delete-4": ("t.0123-delete", 4),
    }
    strange = ["my notes", "a-", "-3", "ä-0", "t-3.0123-delete", "t-3.0123-stray"]
    for name in (*partitions, DELETED, STRAY, "lost+found", *strange):
        (tmp_path / name).mkdir()
    found = folders.find(tmp_path)
    assert {path.name: key for path, key in found.partitions} == partitions
    assert found.deleted == [tmp_path / DELETED]
    assert found.strays == [(tmp_path / STRAY, ("t-1", 3))]
    assert caplog.messages == [
        f"{tmp_path / name} is not a partition's folder (TOPIC-NUMBER): left alone"
        for name in sorted(strange)
    ]


def test_a_directory_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        folders.find(tmp_path / "gone")


@pytest.mark.parametrize("topic", ["t", "x" * 249])
def test_a_deleted_partition_has_a_name_of_its_own(tmp_path: Path, topic: str) -> None:
    """A name that the file system accepts and :func:`find` recognises."""
    names = {folders.name_when_deleted((topic, 12345)) for _ in range(2)}
    for name in names:
        (tmp_path / name).mkdir()
    assert folders.find(tmp_path) == ([], sorted(tmp_path / name for name in names), [])
    assert len(names) == 2
    assert all(name.startswith(f"{topic}-12345"[:200] + ".") for name in names)


@pytest.mark.parametrize("topic", ["t", "x" * 249])
def test_a_stray_has_a_name_with_its_topic_id_and_its_whole_number(tmp_path: Path, topic: str) -> None:
    assert not folders.has_data(tmp_path)
    name = folders.name_when_stray((topic, 12345), TOPIC_ID)
    (tmp_path / name).mkdir()
    assert name.endswith(f"-12345.{TOPIC_ID.hex}-stray")
    ((path, (shortened, number)),) = folders.find(tmp_path).strays
    assert (path.name, number) == (name, 12345)
    assert topic.startswith(shortened)
    assert len(name) <= 255 - len("-delete")
    assert folders.has_data(tmp_path)
    assert not folders.has_data(tmp_path / name)
    (tmp_path / name / "t-0").touch()
    (tmp_path / name / "other").mkdir()
    assert not folders.has_data(tmp_path / name), "a file is no partition, and not every folder is"
    assert folders.name_when_stray((topic, 0), None) != folders.name_when_stray((topic, 0), None)


def test_a_folder_is_removed_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "a").write_text("")
    folders.remove(tmp_path / "t-0")
    assert list(tmp_path.iterdir()) == []
    folders.remove(tmp_path / "t-0")


def test_a_folder_that_cannot_be_removed_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t-0" / "folder").mkdir(parents=True)
    folders.remove(tmp_path / "t-0")
    assert (tmp_path / "t-0" / "folder").exists()
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path / 't-0'}: cannot be removed: ")


def test_a_folder_says_whose_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without fsync: a topic has thousands."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert folders.read_topic_id(tmp_path) is None
    folders.write_topic_id(tmp_path, TOPIC_ID)
    assert (tmp_path / "partition.metadata").read_text() == "version: 0\ntopic_id: xdtBv0jTQdu-G6aiMFiTmA\n"
    assert folders.read_topic_id(tmp_path) == TOPIC_ID
    assert (caplog.messages, synced) == ([], [])


@pytest.mark.parametrize(
    "content",
    [b"", b"version: 0\n", b"topic_id: x\n", b"topic_id: xdtBv0jTQdu-G2qGMFiTmAAA\n", b"topic_id\n"],
)
def test_a_folder_without_a_valid_id_is_taken_for_its_name(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "partition.metadata").write_bytes(content)
    assert folders.read_topic_id(tmp_path) is None
    assert caplog.messages == [
        f"{tmp_path}: partition.metadata has no valid topic_id: assuming the topic of that name"
    ]


def test_an_id_that_cannot_be_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "partition.metadata").mkdir()
    assert folders.read_topic_id(tmp_path) is None
    (tmp_path / "partition.metadata").rmdir()
    (tmp_path / "partition.metadata").write_bytes(b"\xff")
    assert folders.read_topic_id(tmp_path) is None
    directory, text = caplog.messages
    assert directory.startswith(f"{tmp_path}: partition.metadata cannot be read: ")
    assert text.startswith(f"{tmp_path}: partition.metadata cannot be read: 'utf-8'")

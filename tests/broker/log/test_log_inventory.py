"""Which logs a broker has had: directories and folders that are gone are noticed, and nothing else."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from millstream_broker.log import folders
from millstream_broker.log.directory_notes import SLACK
from millstream_broker.log.folders import PARTITION_METADATA, read_topic_id
from millstream_broker.log.inventory import FILE_NAME, Inventory, Place
from millstream_harness.log_dirs import full_disk, kill, send, start

pytestmark = pytest.mark.usefixtures("no_fsync")

ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def missing(*dirs: Path) -> set[tuple[uuid.UUID, int]]:
    """The missing logs of a broker that starts, and is killed."""
    manager = start(*dirs)
    kill(manager)
    return set(manager.inventory.missing)


def fill(*dirs: Path) -> None:
    manager = start(*dirs)
    for partition in range(4):
        manager.get_or_create("t", partition, ONE)
    manager.get_or_create("other", 0, OTHER)
    kill(manager)


def test_a_directory_that_is_gone_is_missed_until_it_is_back(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    fill(a, b)
    assert missing(a, b) == set()
    in_b = {(ONE, int(path.name.partition("-")[2])) for path in b.glob("t-*")}
    assert len(in_b) == 2
    for _ in range(2):
        assert missing(a) >= in_b
    assert missing(c, a) >= in_b
    assert missing(b, a) == set()
    assert missing(b, c) == missing(b)


def test_a_folder_that_is_gone_is_missed(tmp_path: Path) -> None:
    fill(tmp_path)
    shutil.rmtree(tmp_path / "t-2")
    assert missing(tmp_path) == {(ONE, 2)}
    manager = start(tmp_path)
    assert manager.inventory.missing == {(ONE, 2): Place("t", str(tmp_path))}
    manager.get_or_create("t", 2, ONE)
    assert manager.inventory.missing == {}
    kill(manager)
    assert missing(tmp_path) == set()


def test_a_directory_that_has_lost_all_its_folders_is_not_new(tmp_path: Path) -> None:
    fill(tmp_path / "a")
    for folder in (tmp_path / "a").glob("*-[0-9]"):
        shutil.rmtree(folder)
    for name, has_data in (("a", True), ("b", False)):
        manager = start(tmp_path / name)
        assert manager.has_data() == has_data
        kill(manager)


@pytest.mark.parametrize("metadata", [None, b"", b"garbage"])
def test_a_log_whose_folder_has_lost_its_topic_id_is_not_missed(
    tmp_path: Path, metadata: bytes | None
) -> None:
    fill(tmp_path)
    manager = start(tmp_path)
    send(manager.get_or_create("t", 2, ONE), 3)
    kill(manager)
    for partition in (2, 3):
        damage(tmp_path / f"t-{partition}", metadata)
    manager = start(tmp_path)
    log = manager.get("t", 2)
    assert log is not None
    assert (log.topic_id, log.log_end_offset) == (ONE, 3)
    assert set(manager.inventory.missing) == {(ONE, 3)}, "an empty one may stand for a log that is gone"
    kill(manager)
    assert read_topic_id(tmp_path / "t-2") == ONE
    assert missing(tmp_path) == {(ONE, 3)}


def test_a_log_that_may_be_one_of_several_stays_missing(tmp_path: Path) -> None:
    fill(tmp_path)
    manager = start(tmp_path)
    send(manager.get_or_create("t", 2, ONE))
    manager.inventory.add(OTHER, 2, Place("t", str(tmp_path)))
    kill(manager)
    damage(tmp_path / "t-2", None)
    assert missing(tmp_path) == {(ONE, 2), (OTHER, 2)}


def test_a_log_in_another_directory_stays_missing(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    fill(a, b)
    manager = start(a, b)
    send(manager.get_or_create("t", 2, ONE))
    kill(manager)
    (here,) = tmp_path.glob("*/t-2")
    damage(here, None)
    here.rename((b if here.parent == a else a) / "t-2")
    assert missing(a, b) == {(ONE, 2)}


def test_a_full_disk_leaves_a_log_without_its_topic_id_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    manager = start(tmp_path)
    send(manager.get_or_create("t", 2, ONE))
    kill(manager)
    damage(tmp_path / "t-2", None)

    def refused(path: Path, topic_id: uuid.UUID) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(folders, "write_topic_id", refused)
        assert missing(tmp_path) == {(ONE, 2)}
    assert missing(tmp_path) == set()


def damage(folder: Path, metadata: bytes | None) -> None:
    """Write this into the file with the topic id; None removes it."""
    path = folder / PARTITION_METADATA
    path.unlink()
    if metadata is not None:
        path.write_bytes(metadata)


@pytest.mark.parametrize("stray", ["", "is a stray"])
def test_a_log_that_was_deleted_or_is_a_stray_is_not_missed(tmp_path: Path, stray: str) -> None:
    fill(tmp_path)
    manager = start(tmp_path)
    manager.put_aside(manager.release([("t", 1)], stray))
    manager.remove_deleted()
    kill(manager)
    assert missing(tmp_path) == set()
    for path in tmp_path.glob("*-stray"):
        shutil.rmtree(path)
    assert missing(tmp_path) == set()


def test_a_directory_that_was_away_does_not_bring_back_what_was_deleted(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    fill(a, b)
    manager = start(a)
    (one, *_) = manager.partitions()
    manager.delete(*one)
    kill(manager)
    assert missing(a, b) == set()


def test_directories_of_an_earlier_version_miss_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    shutil.rmtree(tmp_path / "t-0")
    manager = start(tmp_path)
    assert not manager.inventory.is_known
    assert manager.inventory.missing == {}
    kill(manager)


@pytest.mark.parametrize("text", ["", "x", "1", "9 1\n+ AAAAAAAAAAAAAAAAAAAAAQ 7 t /a\n", "\xff"])
def test_a_file_that_cannot_be_used_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(text.encode("latin-1"))
    assert missing(tmp_path) == set()


def test_a_line_that_a_crash_has_cut_off_is_left_out(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text() + "+ AAAAAAAAAAAAAAAAAAAAAQ 9")
    assert missing(tmp_path) == set()


def test_names_with_spaces_and_many_changes(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    one = Inventory()
    one.begin([folder], {})
    for _ in range(SLACK):
        one.add(ONE, 1, Place("t", str(folder)))
        one.remove(ONE, 1)
    one.add(ONE, 1, Place("t", str(folder)))
    assert len((folder / FILE_NAME).read_text().splitlines()) <= SLACK
    again = Inventory()
    again.begin([folder], {})
    assert again.missing == {(ONE, 1): Place("t", str(folder))}


def test_a_full_disk_does_not_stop_a_broker(tmp_path: Path) -> None:
    manager = start(tmp_path)
    with full_disk():
        manager.inventory.add(ONE, 1, Place("t", str(tmp_path)))
    assert manager.dirs[0].failure is None
    kill(manager)

"""Strays, one by one: their names, their notes, and which of them is a log again."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.log import folders
from millstream_broker.log.config import LogConfig
from millstream_broker.log.files import FileCache
from millstream_broker.log.log import Log
from millstream_broker.log.strays import KNOWN_S, NOTE, LogEnd, Stray, Strays, distrust
from millstream_harness.replica import NOW_MS, PlayedHome, batch

ID = uuid.UUID(int=7)
KEY = ("t", 3)
HOME: Any = PlayedHome()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def strays(clock: Clock | None = None) -> Strays:
    return Strays(FileCache(10), clock or Clock())


def open_log(home: Path, *values: str, start: int = 0, epoch: int = 4) -> Log:
    home.mkdir(exist_ok=True)
    log = Log.open(home / "t-3", LogConfig(), clean=True, topic_id=ID)
    folders.write_topic_id(home / "t-3", ID)
    for offset, value in enumerate(values):
        log.append_as_follower(batch(value, offset=offset, epoch=epoch), now_ms=NOW_MS)
    log.last_high_watermark = max(len(values) - 1, 0)
    log.delete_records_before(start)
    return log


def note(stray: Stray) -> dict[str, int]:
    found: dict[str, int] = json.loads((stray.path / NOTE).read_bytes())
    return found


def take_back(strays: Strays, *which: Stray) -> Log | None:
    return strays.take_back(KEY, which, LogConfig(), lambda path: HOME)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_log_that_becomes_a_stray_is_noted(tmp_path: Path, is_replaced: bool) -> None:
    found, log = strays(), open_log(tmp_path, "a", "b", "c", start=1)
    before_ms = int(time.time() * 1000)
    found.add(KEY, log, "fits nothing", is_replaced=is_replaced)
    (stray,) = found
    assert before_ms <= stray.since_ms <= time.time() * 1000
    assert stray == Stray(
        tmp_path / f"t-3.{ID.hex}-stray", "t", 3, ID, stray.since_ms, is_replaced=is_replaced
    )
    assert note(stray) == {
        "version": 1,
        "since_ms": stray.since_ms,
        "log_start_offset": 1,
        "recovery_point": log.flushed_offset,
        "high_watermark": 2,
        **({"replaced": 1} if is_replaced else {}),
    }
    assert found.of(ID, 3, [tmp_path]) == ([] if is_replaced else [stray])
    assert found.of(ID, 3, [tmp_path / "other"]) == found.of(None, 3, [tmp_path]) == []
    assert found.end(stray) == LogEnd(4, 3)
    restarted = strays()
    restarted.found(stray.path, KEY)
    assert list(restarted) == [stray]


def test_a_second_stray_of_a_partition_has_a_name_of_its_own(tmp_path: Path) -> None:
    found = strays()
    for value in "ab":
        found.add(KEY, open_log(tmp_path, value), "fits nothing")
    first, second = found
    assert first.path.name == f"t-3.{ID.hex}-stray"
    assert second.path.parent == tmp_path
    assert second.path != first.path
    assert second.topic_id == ID
    assert found.of(ID, 3, [tmp_path]) == [first, second]


def test_the_most_complete_stray_is_the_log_again_as_it_was(tmp_path: Path) -> None:
    found = strays()
    for home, values in (("one", "ab"), ("two", "abcd"), ("three", "abc")):
        found.add(KEY, open_log(tmp_path / home, *values, start=1), "fits nothing")
    log = take_back(found, *found)
    assert log is not None
    assert (log.directory, log.home, log.topic_id) == (tmp_path / "two" / "t-3", HOME, ID)
    assert (log.log_start_offset, log.log_end_offset, log.last_high_watermark) == (1, 4, 3)
    assert log.unconfirmed
    assert [stray.path.parent.name for stray in found] == ["one", "three"]
    assert take_back(found, *found) is not None
    (left,) = found
    os.rename(left.path, tmp_path / "moved")
    assert take_back(found, left) is None, "somebody has removed it"
    assert len(found) == 0


def test_a_stray_that_changed_meanwhile_is_another_one(tmp_path: Path) -> None:
    found = strays()
    found.add(KEY, open_log(tmp_path, "a"), "fits nothing")
    (stray,) = found
    assert take_back(found, stray._replace(since_ms=stray.since_ms - 1)) is None
    assert found.remove(stray.path, stray.since_ms - 1) is None
    assert found.remove(tmp_path / "t-9.stray", stray.since_ms) is None
    assert list(found) == [stray]


@pytest.mark.parametrize(
    ("text", "start", "high_watermark"),
    [
        (None, 0, 0),
        ("no JSON", 0, 0),
        ('{"log_start_offset": 2, "high_watermark": 9}', 2, 3),
        ('{"log_start_offset": 3}', 3, 0),
        ('{"log_start_offset": 4}', 0, 0),
    ],
    ids=["none", "damaged", "beyond the end", "the end", "of another log"],
)
def test_a_note_is_believed_as_far_as_the_log_goes(
    tmp_path: Path, text: str | None, start: int, high_watermark: int
) -> None:
    open_log(tmp_path, "a", "b", "c").close()
    found = strays()
    found.add_folder(tmp_path / "t-3", KEY, "fits nothing")
    (stray,) = found
    if text is None:
        (stray.path / NOTE).unlink()
    else:
        (stray.path / NOTE).write_text(text)
    log = take_back(found, stray)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (start, 3)
    assert log.last_high_watermark == high_watermark


def test_without_a_note_a_stray_is_as_old_as_its_folder(tmp_path: Path) -> None:
    path = tmp_path / f"t-3.{ID.hex}-stray"
    path.mkdir()
    os.utime(path, (1_700_000_000.5, 1_700_000_000.5))
    found = strays()
    found.found(path, KEY)
    (stray,) = found
    assert stray.since_ms == 1_700_000_000_500
    (path / NOTE).write_text('{"since_ms": 5}')
    found.found(path, KEY)
    assert [each.since_ms for each in found] == [5]
    before_ms = int(time.time() * 1000)
    found.found(tmp_path / "gone", KEY)
    assert before_ms <= [each.since_ms for each in found][-1] <= time.time() * 1000


def test_a_stray_is_removed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = strays()
    found.add(KEY, open_log(tmp_path, "a"), "fits nothing")
    (stray,) = found
    removed = found.remove(stray.path, stray.since_ms)
    assert removed is not None
    assert removed.name.endswith("-delete")
    assert removed.exists()
    assert caplog.messages[-1] == f"{stray.path} (topic id {ID}): the stray is removed"
    assert found.remove(stray.path, stray.since_ms) is None
    assert (list(found), found.of(ID, 3, [tmp_path])) == ([], [])


def test_strays_of_a_deleted_topic_and_of_an_offline_directory_are_forgotten(tmp_path: Path) -> None:
    found = strays()
    for home in ("one", "two"):
        found.add(KEY, open_log(tmp_path / home, "a"), "fits nothing")
    first, second = found
    found.forget(tmp_path / "one")
    assert list(found) == [second]
    assert found.delete(ID, 2) == []
    assert found.delete(ID, 3) == [second.path]
    assert list(found) == []
    assert first.path.exists()
    assert second.path.exists()


def test_age_counts_after_an_hour_of_this_process(tmp_path: Path) -> None:
    clock = Clock()
    found = strays(clock)
    found.add(KEY, open_log(tmp_path, "a"), "fits nothing")
    (stray,) = found
    for now_s, age_ms, is_outdated in (
        (KNOWN_S - 1, 1000, False),
        (KNOWN_S, 999, False),
        (KNOWN_S, 1000, True),
    ):
        clock.now = now_s
        assert (found.outdated(1000, stray.since_ms + age_ms) == [stray]) == is_outdated


def test_sizes_are_measured_and_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    found = strays()
    for home in ("one", "two"):
        found.add(KEY, open_log(tmp_path / home, "a"), "fits nothing")
    first, second = found
    os.rename(first.path, tmp_path / "moved")
    found.refresh()
    assert found.sizes == {second.path: sum(each.stat().st_size for each in second.path.iterdir())}
    assert list(found) == [second]


def test_a_log_is_distrusted_until_a_leader_has_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, "a", "b", start=1)
    distrust(log)
    assert log.unconfirmed
    written = json.loads((log.directory / NOTE).read_bytes())
    assert {name: written[name] for name in ("log_start_offset", "high_watermark")} == {
        "log_start_offset": 1,
        "high_watermark": 1,
    }
    assert log.is_suspect(-1)
    log.confirm(0)
    assert not log.unconfirmed
    assert not (log.directory / NOTE).exists()

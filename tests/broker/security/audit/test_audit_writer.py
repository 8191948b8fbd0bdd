"""Lines reach the file whole, and it never exceeds its limit."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from millstream_broker.security.audit import writer as module
from millstream_broker.security.audit.writer import AuditFile, Writer


def test_a_file_is_for_its_user_only_and_keeps_earlier_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    for line in (b"one\n", b"two\n"):
        file = AuditFile(path, 1000)
        file.write(line)
        file.close()
    assert path.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_files_of_limited_size_remain(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.json", 100)
    for number in range(1000):
        file.write(b"%09d\n" % number)
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.json", "audit.json.1"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert (tmp_path / "audit.json").read_bytes().endswith(b"000000999\n")


def test_a_file_that_others_rename_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    file = AuditFile(path, 1000)
    file.write(b"one\n")
    path.rename(tmp_path / "audit.old")
    file.write(b"two\n")
    path.unlink()
    file.write(b"three\n")
    file.close()
    assert (tmp_path / "audit.old").read_bytes() == b"one\n"
    assert path.read_bytes() == b"three\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "audit.json").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        AuditFile(tmp_path / "audit.json", 1000)


def test_a_line_that_a_full_disk_cuts_off_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.json"
    file = AuditFile(path, 1000)
    file.write(b"one\n")
    write, rooms = os.write, [2, 0]

    def full(fd: int, data: bytes) -> int:
        if not (room := rooms.pop(0)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:room])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            file.write(b"two\n")
    file.write(b"three\n")
    file.close()
    assert path.read_bytes() == b"one\nthree\n"


def test_a_reader_that_stops_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 10)
    go_on, begun, written = threading.Event(), threading.Event(), list[bytes]()

    def write(line: bytes) -> None:
        begun.set()
        go_on.wait()
        written.append(line)

    writer = Writer(write)
    writer.put(b"first")
    begun.wait()
    for number in range(25):
        writer.put(b"%d" % number)
    assert writer.lost == 15
    go_on.set()
    writer.close()
    assert written == [b"first", *(b"%d" % number for number in range(10))]


def test_lines_that_cannot_be_written_are_counted_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problems = [OSError("disk full"), OSError("disk full"), None]

    def write(line: bytes) -> None:
        if (problem := problems.pop(0)) is not None:
            raise problem

    writer, closed = Writer(write, lambda: closed.append(True)), list[bool]()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            writer.put(b"line")
        writer.close()
    assert (writer.lost, closed) == (2, [True])
    assert [record.getMessage() for record in caplog.records] == [
        "the audit log cannot be written, and loses events: disk full",
        "the audit log is written again",
    ]

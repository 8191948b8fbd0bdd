"""Sending: bytes and file ranges in order, slow clients, slow disks."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream_broker.log.files import FileSlice, OpenFile
from millstream_broker.network import channel
from millstream_broker.network.channel import PlainChannel
from millstream_broker.network.outbox import Outbox
from millstream_broker.runtime.stats import Stats
from millstream_harness.members import until


class Client:
    """An outbox and the other end of its socket."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.drained = 0
        self.failed: list[Exception] = []
        loop = asyncio.get_running_loop()
        self.stats = Stats()
        self.channel = PlainChannel(self.ours, loop)
        self.outbox = Outbox(self.channel, loop, self.stats, self._drained, self.failed.append)

    def _drained(self) -> None:
        self.drained += 1

    async def read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            received += await asyncio.get_running_loop().sock_recv(self.theirs, 1 << 16)
        return bytes(received)

    def close(self) -> None:
        self.outbox.close()
        self.channel.close()
        self.theirs.close()


def file_of(folder: Path, size: int) -> tuple[OpenFile, bytes]:
    content = random.Random(size).randbytes(size)
    path = folder / f"{size}.log"
    path.write_bytes(content)
    return OpenFile(str(path)), content


async def test_bytes_and_ranges_arrive_in_order(tmp_path: Path) -> None:
    client = Client()
    file, content = file_of(tmp_path, 5_000_000)
    expected = bytearray()
    chance = random.Random(1)
    for _ in range(60):
        if chance.random() < 0.5:
            part = chance.randbytes(chance.randrange(1, 2000))
            client.outbox.put(part)
            expected += part
        else:
            start = chance.randrange(4_000_000)
            length = chance.choice([1, 61, 5000, 900_000])
            client.outbox.put(FileSlice(file, start, length))
            expected += content[start : start + length]
    if not client.outbox.blocked:
        client.outbox.send()
    assert client.outbox.blocked, "more than the socket takes"
    assert await client.read(len(expected)) == expected
    assert client.stats.bytes_out == len(expected)
    assert (client.drained, client.failed) == (1, [])
    client.close()


def uncached(file: OpenFile) -> None:
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def test_an_uncached_range_is_loaded_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    file, content = file_of(tmp_path, 9_000_000)
    uncached(file)
    loads = []
    read_ahead: Callable[[FileSlice], None] = channel.read_ahead

    def noted(part: FileSlice) -> None:
        loads.append(part.position)
        read_ahead(part)

    monkeypatch.setattr(channel, "read_ahead", noted)
    monkeypatch.setattr(OpenFile, "is_cached", lambda file, position, size: False)
    client.outbox.put(FileSlice(file, 0, len(content)))
    assert client.outbox.blocked
    assert client.stats.bytes_out == 0, "the loop has not waited for the disk"
    assert await client.read(len(content)) == content
    assert len(loads) == 3, (
        "a few megabytes at a time, and never twice, even where the cache denies having it"
    )
    client.close()


def test_is_cached_agrees_with_the_page_cache(tmp_path: Path) -> None:
    file, content = file_of(tmp_path, 3_000_000)
    assert file.is_cached(0, len(content))
    uncached(file)
    channel.read_ahead(FileSlice(file, 0, len(content)))
    assert file.is_cached(0, len(content))
    assert file.is_cached(len(content) - 1, 1)


async def test_a_disconnect_is_reported_once(tmp_path: Path) -> None:
    client = Client()
    file, content = file_of(tmp_path, 3_000_000)
    client.outbox.put(FileSlice(file, 0, len(content)))
    assert client.outbox.blocked
    client.theirs.close()
    await until(lambda: client.failed)
    (error,) = client.failed
    assert isinstance(error, OSError)
    client.close()


async def test_a_file_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    client = Client()
    file, _ = file_of(tmp_path, 1000)
    with pytest.raises(OSError, match="shorter than its log says"):
        client.outbox.put(FileSlice(file, 1000, 1_000_000))
    client.close()

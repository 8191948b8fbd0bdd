"""Look-ups of blocks outside the page cache: a thread waits for the disk, not the loop."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.broker import Broker
from millstream_broker.log.files import NotCachedError, OpenFile, waiting, without_waiting
from millstream_broker.replication import fetch_session
from millstream_broker.replication.fetch_session import Session
from millstream_harness.in_process import connected, create, running
from millstream_harness.log_dirs import NOW
from millstream_harness.wire import record
from millstream_kafka.batch import build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

RECORDS = 200


class Disk:
    """A cold page cache: only a thread's reads fill it, and only while `keeps` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cold = True
        self.keeps = True
        self.reads: list[threading.Thread] = []
        """The threads that waited for the disk."""
        self.held: list[threading.Thread] = []
        """The threads that reached the disk, whether they wait for it still or not."""
        self.may_read = threading.Event()
        self.may_read.set()
        self._preadv, self._pread = os.preadv, os.pread
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "pread", self.pread)

    def preadv(self, fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT and self.is_cold:
            raise BlockingIOError
        return self._preadv(fd, buffers, position)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        if self.is_cold:
            thread = threading.current_thread()
            if thread is not threading.main_thread():
                self.held.append(thread)
                assert self.may_read.wait(60)
            self.reads.append(thread)
        return self._pread(fd, length, position)

    async def reached(self, count: int) -> None:
        """Wait until this many threads have reached the disk."""
        while len(self.held) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def is_read(self) -> None:
        if self.keeps:
            self.is_cold = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(monkeypatch)
    disk.is_cold = False
    return disk


async def serve(broker: Broker, client: Connection, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions 0 and 1 of t have records in several segments, and the page cache is empty."""
    await create(client, "t", 2, segment_bytes="6000", index_interval_bytes="300")
    for index in range(2):
        log = broker.replicas.partition("t", index).log
        loading = type(log).loading

        def noted(self: Any, *args: Any, loading: Callable[..., Any] = loading, **more: Any) -> Any:
            load = loading(self, *args, **more)

            def loaded() -> None:
                load()
                disk.is_read()

            return loaded

        if not index:
            monkeypatch.setattr(type(log), "loading", noted)
        for number in range(RECORDS):
            batch = memoryview(bytearray(build_batch([record(f"{number:03}", timestamp=NOW)])))
            broker.replicas.partition("t", index).append(batch, int(time.time() * 1000))
        assert len(log.segments) > 2
    disk.is_cold = True


def request(*offsets: int, session: tuple[int, int] = (0, -1), **more: Any) -> FetchRequest:
    partitions = [FetchPartition(index, -1, offset, -1, -1, 100) for index, offset in enumerate(offsets)]
    return FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic("t", partitions=partitions)] if partitions else [],
        **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **more},
    )


async def poll_waits(broker: Broker) -> None:
    """Wait until a session's request waits for records."""
    while not any(session._delayed for session in broker.fetch_sessions._consumers.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def ask(client: Connection, asked: FetchRequest) -> FetchResponse:
    answer: FetchResponse = await client.call(fetch.API, 12, asked)
    assert answer.error_code == 0
    return answer


def first_offsets(answer: FetchResponse) -> dict[int, int]:
    """The first record's offset of each partition with records."""
    return {
        data.partition_index: int.from_bytes(bytes(data.records[:8]), "big")
        for topic in answer.responses
        for data in topic.partitions
        if data.records
    }


@pytest.mark.parametrize("keeps", [True, False], ids=["cached", "thrown out at once"])
async def test_a_thread_looks_up_what_is_not_cached(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """The response waits for the thread, once, although the client does not wait for records."""
    disk.keeps = keeps
    monkeypatch.setattr(fetch_session, "LOAD_S", 60.0)  # a thread may be slow on a busy machine
    async with running(tmp_path) as broker, connected(broker) as client:
        await serve(broker, client, disk, monkeypatch)
        for offset in (137, 20):
            disk.is_cold = True
            disk.reads.clear()
            assert first_offsets(await ask(client, request(offset))) == {0: offset}
            waited = {thread is threading.main_thread() for thread in disk.reads}
            assert waited == {False} if keeps else {False, True}
        disk.is_cold = False
        assert first_offsets(await ask(client, request(138))) == {0: 138}


async def test_partitions_that_are_cached_are_answered_at_once(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await serve(broker, client, disk, monkeypatch)
        disk.may_read.clear()
        # The end of a log is known without a look-up.
        at_end = broker.replicas.partition("t", 1).log
        last = len(build_batch([record("199", timestamp=NOW)]))
        at_end.segments._hints[RECORDS - 1] = (at_end.segments.active, at_end.segments.active.size - last)
        first = await ask(client, request(50, RECORDS - 1, session=(0, 0)))
        assert set(first_offsets(first)) == {1}
        forgotten = [ForgottenTopic("t", partitions=[1])]
        waits = request(session=(first.session_id, 1), max_wait_ms=30_000, forgotten_topics_data=forgotten)
        second = asyncio.create_task(ask(client, waits))
        await poll_waits(broker)
        await disk.reached(1)
        assert not second.done()
        disk.may_read.set()
        assert first_offsets(await second) == {0: 50}


async def test_a_partition_may_be_forgotten_while_it_is_looked_up(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, connected(broker) as client, connected(broker) as other:
        await serve(broker, client, disk, monkeypatch)
        disk.may_read.clear()
        first = asyncio.create_task(ask(client, request(50, 60, session=(0, 0))))
        gone = asyncio.create_task(other.call(fetch.API, 12, request(70)))
        await disk.reached(3)
        gone.cancel()
        await other.close()
        session = (await first).session_id  # after a second without records
        forgotten = [ForgottenTopic("t", partitions=[0])]
        second = ask(
            client, request(session=(session, 1), max_wait_ms=30_000, forgotten_topics_data=forgotten)
        )
        waiting = asyncio.create_task(second)
        await poll_waits(broker)
        disk.may_read.set()
        assert first_offsets(await waiting) == {1: 60}
        third = await ask(client, request(session=(session, 2)))
        assert set(first_offsets(third)) <= {1}


@pytest.mark.parametrize("at_once", [1, 5])
async def test_few_partitions_are_looked_up_at_once_and_each_once(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(fetch_session, "LOADS_AT_ONCE", at_once)
    monkeypatch.setattr(fetch_session, "LOAD_S", 0.001)
    async with running(tmp_path) as broker, connected(broker) as client:
        await serve(broker, client, disk, monkeypatch)
        disk.may_read.clear()
        first = await ask(client, request(50, 60, session=(0, 0)))
        (session,) = broker.fetch_sessions._consumers.values()
        for epoch in (1, 2):
            assert [one.is_loading for one in session._fetched.values()] == [True, at_once > 1]
            assert session._loading == min(at_once, 2)
            if epoch == 1:
                await ask(client, request(session=(first.session_id, 1)))
        waits = request(session=(first.session_id, 2), max_wait_ms=600_000, min_bytes=1 << 20)
        waiting = asyncio.create_task(ask(client, waits))
        await poll_waits(broker)
        disk.may_read.set()
        assert first_offsets(await waiting), "what was looked up does not wait for more bytes"
        await asyncio.wait_for(until_idle(session), 60)
        assert [one.is_loading for one in session._fetched.values()] == [False, False]


async def until_idle(session: Session) -> None:
    while session._loading:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def test_a_look_up_that_fails_or_is_cancelled_is_left_to_the_read(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t", 2)
        await ask(client, request(0, session=(0, 0)))
        (session,) = broker.fetch_sessions._consumers.values()
        (fetched,) = session._fetched.values()
        failed, cancelled = (asyncio.get_running_loop().create_future() for _ in range(2))
        failed.set_exception(OSError(5, "Input/output error"))
        cancelled.cancel()
        for loading in (failed, cancelled):
            session._loading, fetched.is_loading = 1, True
            session._loaded(fetched, loading)
            assert (session._loading, fetched.is_loading, fetched.is_loaded) == (0, False, True)
        del failed, loading
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_reads_that_must_not_wait(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "file"
    content = bytes(range(256)) * 100
    path.write_bytes(content)
    file = OpenFile(str(path))
    for position, length in ((0, 10), (1000, 20_000), (25_590, 100), (30_000, 5)):
        expected = content[position : position + length]
        assert without_waiting(lambda: file.pread(length, position)) == expected  # noqa: B023
    disk.is_cold = True
    with pytest.raises(NotCachedError):
        without_waiting(lambda: file.pread(1, 0))
    assert without_waiting(lambda: waiting(lambda: file.pread(1, 0))) == b"\0"
    assert file.pread(1, 0) == b"\0", "only within it"


def test_a_part_that_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    file = OpenFile(str(path))
    preadv = os.preadv

    def half(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        if position >= 50:
            raise BlockingIOError
        return preadv(fd, [memoryview(buffers[0])[: 50 - position]], position)

    monkeypatch.setattr(os, "preadv", half)
    assert without_waiting(lambda: file.pread(30, 20)) == b"x" * 30
    with pytest.raises(NotCachedError):
        without_waiting(lambda: file.pread(31, 20))


def test_a_kernel_that_names_the_end_of_the_file_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux 5.9 and 5.10 return 0 for uncached pages; a broker that took this for the end would skip records."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    file = OpenFile(str(path))
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(NotCachedError):
        without_waiting(lambda: file.pread(30, 20))
    assert without_waiting(lambda: file.pread(30, 100)) == b""


def test_a_file_system_that_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then everything counts as cached, as on tmpfs."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    asked = []

    def unsupported(*args: object) -> int:
        asked.append(args)
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "preadv", unsupported)
    file = OpenFile(str(path))
    for _ in range(2):
        assert without_waiting(lambda: file.pread(30, 20)) == b"x" * 30
    assert len(asked) == 1


def test_with_the_real_page_cache(tmp_path: Path) -> None:
    """The kernel may or may not have dropped the file, and the file system may not support the check."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1_000_000)
    file = OpenFile(str(path))
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        assert without_waiting(lambda: file.pread(10, 500_000)) == b"x" * 10
    except NotCachedError:
        assert file.pread(10, 500_000) == b"x" * 10
    assert without_waiting(lambda: file.pread(10, 500_000)) == b"x" * 10

"""Look-ups by time have a thread of their own, and end with those who asked."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from millstream_broker.api.list_offsets import LookUp, _looked_up
from millstream_broker.log.config import LogConfig
from millstream_broker.log.log import Log
from millstream_broker.log.timestamp_lookups import Check, LookUpEndedError, LookUps
from millstream_broker.network.handlers import REGISTERED
from millstream_harness.members import until
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol import list_offsets
from millstream_kafka.protocol.list_offsets import ListOffsetsPartitionResponse, ListOffsetsResponse

NOW = 1_700_000_000_000


class Endless:
    """A log whose look-ups only end when they are no longer wanted."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Semaphore(0), threading.Semaphore(0)

    def offset_for_timestamp(self, timestamp: int, check: Check) -> None:
        self.begun.release()
        try:
            while True:
                check()
        finally:
            self.ended.release()


class Instant:
    def offset_for_timestamp(self, timestamp: int, check: Check) -> tuple[int, int, int]:
        return timestamp, 7, 3


def look_up(log: Any) -> LookUp:
    return LookUp(ListOffsetsPartitionResponse(0, 0), cast(Log, log), 5, 100)


def answered(look_ups: LookUps, log: Any) -> asyncio.Task[ListOffsetsResponse]:
    return asyncio.create_task(_looked_up(ListOffsetsResponse(), look_ups, deque([look_up(log)])))


def run(test: Callable[[LookUps], Any]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended = ThreadPoolExecutor(1)
        ended.shutdown()
        loop.set_default_executor(ended)  # it takes nothing: fsyncs and the coordination need it
        look_ups = LookUps()
        try:
            async with asyncio.timeout(60):
                await test(look_ups)
        finally:
            look_ups.close()

    asyncio.run(main())


def test_the_handler_uses_the_thread_for_look_ups() -> None:
    assert LookUps in REGISTERED[list_offsets.API.key].needs


def test_look_ups_of_clients_that_have_gone_end() -> None:
    async def test(look_ups: LookUps) -> None:
        log, unread = Endless(), Endless()
        running = answered(look_ups, log)
        await asyncio.sleep(0)
        waiting = [answered(look_ups, unread) for _ in range(50)]
        await until(lambda: log.begun.acquire(blocking=False))
        for task in (running, *waiting):
            task.cancel()
        await asyncio.gather(running, *waiting, return_exceptions=True)
        wanted = look_up(Instant())
        await _looked_up(ListOffsetsResponse(), look_ups, deque([wanted]))
        assert wanted.found.offset == 7
        assert log.ended.acquire(blocking=False)
        assert not unread.begun.acquire(blocking=False)

    run(test)


def test_a_stop_does_not_wait_for_look_ups() -> None:
    async def test(look_ups: LookUps) -> None:
        log = Endless()
        running = answered(look_ups, log)
        await until(lambda: log.begun.acquire(blocking=False))
        running.cancel()
        look_ups.close()
        with pytest.raises(RuntimeError, match="shutdown"):
            await look_ups.run(lambda check: None)

    run(test)


def test_a_request_with_many_look_ups_does_not_keep_the_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream_broker.api.list_offsets.TURN_S", 0.001)

    async def test(look_ups: LookUps) -> None:
        many = deque(look_up(Instant()) for _ in range(100_000))
        slow = asyncio.create_task(_looked_up(ListOffsetsResponse(), look_ups, many))
        await asyncio.sleep(0)
        await answered(look_ups, Instant())
        assert not slow.done()
        await slow
        assert not many

    run(test)


@pytest.mark.parametrize(("checks", "reads"), [(1, 0), (4, 1)])
def test_a_look_up_that_is_not_wanted_reads_no_further_batch(
    tmp_path: Path, checks: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(tmp_path / "t-0", LogConfig(), clean=True, now_ms=NOW)
    for _ in range(3):
        batch = build_batch([Record(b"k", b"v", NOW)] * 100)
        log.append(bytearray(batch), leader_epoch=0, now_ms=NOW)
    seen: list[int] = []
    segment = log.segments.active
    read = type(segment).read

    def counted(self: Any, position: int, length: int) -> bytes:
        seen.append(position)
        return read(self, position, length)

    monkeypatch.setattr(type(segment), "read", counted)
    monkeypatch.setattr("millstream_broker.log.segment._CHECK_RECORDS", 1000)
    left = iter(range(checks))

    def check() -> None:
        if next(left, None) is None:
            raise LookUpEndedError

    monkeypatch.setattr(
        "millstream_broker.log.segment.skim_records",
        lambda batch, largest: ((NOW - 1, 0, None) for _ in range(10_000)),
    )
    with pytest.raises(LookUpEndedError):
        log.offset_for_timestamp(NOW, check)
    assert len(seen) == reads

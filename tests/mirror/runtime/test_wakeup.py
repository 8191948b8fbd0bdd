"""A wakeup wakes those that wait, once, and lets nobody wait too long."""

from __future__ import annotations

import asyncio

import pytest

from millstream_mirror.runtime.wakeup import Wakeup

LONG_S = 3600.0


async def test_wake_reaches_present_waiters_only() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    waiting = [asyncio.create_task(wakeup.wait(LONG_S)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting), "a ring before they came does not count"
    wakeup.wake()
    wakeup.wake()
    await asyncio.gather(*waiting)
    later = asyncio.create_task(wakeup.wait(LONG_S))
    await asyncio.sleep(0)
    assert not later.done()
    later.cancel()
    with pytest.raises(asyncio.CancelledError):
        await later
    wakeup.wake()


async def test_wait_ends_by_timeout() -> None:
    await Wakeup().wait(0.001)

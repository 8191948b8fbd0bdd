"""Background tasks: a failure is logged and counted, and restarts the task or ends the broker."""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from pathlib import Path

import pytest

from millstream_harness.broker import BrokerProcess
from millstream_harness.scenario import eventually
from millstream_harness.virtual_time import now, virtual_time
from millstream_harness.wire import Wire, record
from millstream_process import supervision

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def counted_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "failures", {})


@virtual_time
async def test_a_task_that_fails_is_logged_with_its_stack_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        await supervision.run("example", broken())
    await asyncio.sleep(0)
    assert caplog.messages == ["example failed"]
    assert "in broken" in caplog.text
    assert supervision.failures == {"example": 1}


@virtual_time
async def test_it_begins_again_after_pauses_that_grow(caplog: pytest.LogCaptureFixture) -> None:
    began: list[float] = []

    async def work() -> None:
        began.append(now())
        if len(began) == 8:
            await asyncio.sleep(100)
        if len(began) < 10:
            raise OSError("again")

    await supervision.keep("example", work)
    assert began == [0, 1, 3, 7, 15, 31, 61, 91, 192, 194]
    assert supervision.failures == {"example": 9}
    assert caplog.messages[:2] == [f"example failed, restarting in {pause} s" for pause in (1, 2)]


@virtual_time
async def test_a_task_that_ends_or_is_cancelled_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    await supervision.keep("ends", lambda: asyncio.sleep(1))
    task = supervision.keep("cancelled", lambda: asyncio.sleep(10))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert supervision.failures == {"ends": 0, "cancelled": 0}
    assert not caplog.messages


@virtual_time
async def test_the_owner_of_a_task_that_must_not_fail_gets_one_line() -> None:
    said: list[str] = []

    async def broken() -> None:
        raise OSError("no more")

    await asyncio.wait([supervision.run("example", broken(), fatal=said.append)])
    await asyncio.sleep(0)
    assert said == ["example failed: OSError('no more')"]


class Patched(BrokerProcess):
    """A broker with a defect: `patch` runs in it before it starts."""

    patch = ""

    @property
    def command(self) -> list[str]:
        program = f"import sys\n{self.patch}\nfrom millstream_broker.main import main\nsys.exit(main())"
        return [sys.executable, "-c", program, *super().command[1:]]


def test_a_broker_goes_on_when_background_work_fails(tmp_path: Path) -> None:
    class Forgetful(Patched):
        patch = """
from millstream_broker.background import background
checkpoint, broken = background._checkpoint, [True]
async def fails_once(*parts):
    if broken:
        raise ZeroDivisionError(broken.pop())
    await checkpoint(*parts)
background._checkpoint = fails_once
"""

    with Forgetful(tmp_path, {"log.flush.offset.checkpoint.interval.ms": "10"}) as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("t")
            assert wire.produce("t", [record("x")]).error_code == 0
        eventually(
            lambda: (broker.data / "recovery-point-offset-checkpoint").exists(), bool, "it is written later"
        )
        with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as response:
            metrics = response.read().decode().splitlines()
        assert 'millstream_task_failures_total{task="checkpoints"} 1.0' in metrics
        assert 'millstream_task_failures_total{task="retention"} 0.0' in metrics
        assert "checkpoints failed, restarting in 1 s\nTraceback" in broker.said()
        assert broker.stop() == 0


def test_a_broker_ends_when_nobody_knows_what_is_stored(tmp_path: Path) -> None:
    class Broken(Patched):
        patch = """
from millstream_broker.coordination.stores.file import FileStore
async def fails(self, waiting):
    if any("second" in repr(operations) for operations, _ in waiting):
        raise ZeroDivisionError("a bug")
    await write(self, waiting)
write, FileStore._write = FileStore._write, fails
"""

    with Broken(tmp_path) as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create("first")
            with pytest.raises((EOFError, ConnectionError)):
                wire.create("second")
        assert broker.wait(60) == 1
        (line,) = [line for line in broker.said().splitlines() if line.startswith("millstream-broker: ")]
        assert line == "millstream-broker: coordination.journal failed: ZeroDivisionError('a bug')"

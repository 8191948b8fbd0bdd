"""Which log directories are trusted: older copies, restarted machines, brokers killed before acceptance."""

from __future__ import annotations

import operator
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.cluster.generations import Generations
from millstream_broker.coordination import Conflict, CoordinationError
from millstream_broker.coordination.coordination import Coordination
from millstream_broker.coordination.stores.file import FILE_NAME, FileStore
from millstream_broker.log.config import LogConfig
from millstream_broker.log.directory import BOOT_ID, GENERATION
from millstream_broker.log.manager import LogManager
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.members import Member, members
from millstream_harness.scenario import eventually
from millstream_harness.wire import Wire, record
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.batch import build_batch
from millstream_kafka.protocol import metadata

pytestmark = pytest.mark.process


def coordination_in(folder: Path) -> Coordination:
    folder.mkdir(exist_ok=True)
    return Coordination(FileStore(folder / FILE_NAME), None)


class Life:
    """A broker's log directories over several starts; its coordination has a folder of its own and survives."""

    def __init__(self, folder: Path, count: int = 1) -> None:
        self.paths = [folder / f"data-{number}" for number in range(count)]
        self.coordination = coordination_in(folder)
        self.logs: LogManager
        self.generations: Generations

    async def start(self) -> bool:
        """Start; return whether the logs are trusted."""
        await self.coordination.connect()
        self.logs = LogManager(self.paths, LogConfig(segment_bytes=4096))
        self.logs.lock()
        self.logs.identify(1, "c1")
        self.generations = Generations(1, self.logs, self.coordination)
        await self.generations.load()
        self.logs.start(self.generations.known)
        await self.generations.judge()
        await self.generations.rise()
        return self.generations.vouches

    async def first(self) -> None:
        await self.start()
        await self.generations.accepted()

    def kill(self) -> None:
        self.logs.unlock()

    async def stop(self) -> None:
        await self.generations.stop()
        self.logs.close()

    def copy(self, number: int = 0) -> Path:
        target = self.paths[number].with_suffix(".copy")
        shutil.copytree(self.paths[number], target)
        return target

    def restore(self, copied: Path) -> None:
        shutil.rmtree(copied.with_suffix(""))
        copied.rename(copied.with_suffix(""))


@pytest.fixture
def life(tmp_path: Path) -> Life:
    tmp_path.joinpath("data").mkdir()
    return Life(tmp_path)


async def test_a_new_directory_vouches_for_nothing_until_it_is_accepted(life: Life) -> None:
    assert not await life.start()
    life.kill()
    assert not await life.start(), "a kill changes nothing"
    await life.generations.accepted()
    life.kill()
    assert await life.start()


@pytest.mark.parametrize("is_clean", [False, True])
async def test_restarts_are_no_copies(life: Life, is_clean: bool) -> None:
    await life.first()
    for _ in range(3):
        await (life.stop() if is_clean else life.generations.rise())
        life.kill()
        assert await life.start()


async def test_a_restarted_machine_is_not_forgotten_by_a_kill(life: Life) -> None:
    await life.first()
    life.kill()
    (life.paths[0] / BOOT_ID).write_text("of another boot")
    for _ in range(2):
        assert not await life.start()
        life.kill()
    await life.start()
    await life.generations.accepted()
    await life.generations.rise()
    life.kill()
    assert await life.start()


async def test_a_crash_between_directory_and_coordination_is_no_copy(life: Life) -> None:
    await life.first()
    life.logs.dirs[0].write_generation(2, sync=False)
    life.kill()
    assert await life.start()
    assert life.logs.dirs[0].generation == 3


@pytest.mark.parametrize("taken", ["stopped", "running"])
@pytest.mark.parametrize("until", ["start", "stop", "rise"])
async def test_an_older_copy(life: Life, taken: str, until: str, caplog: Any) -> None:
    await life.first()
    if taken == "stopped":
        await life.stop()
        copied = life.copy()
        assert await life.start()
    else:
        copied = life.copy()
    if until == "rise":
        await life.generations.rise()
    if until == "stop":
        await life.stop()
    life.kill()
    if until == "start" and taken == "running":
        assert await life.start()
        life.kill()
    life.restore(copied)
    assert not await life.start()
    assert life.generations.is_older_copy
    assert f"{life.paths[0]} is an older copy: its generation is" in caplog.text
    life.kill()
    assert not await life.start(), "a kill changes nothing"
    await life.generations.accepted()
    life.kill()
    assert await life.start()


async def test_the_logs_of_an_older_copy_are_verified(life: Life) -> None:
    """A disk's snapshot may lack writes that were only in the page cache, even if the machine has not restarted."""
    await life.first()
    log = life.logs.get_or_create("t", 0)
    for _ in range(20):
        log.append(build_batch([record(b"x" * 1000, timestamp=1)]), leader_epoch=0, now_ms=1)
    life.kill()
    copied = life.copy()
    second = sorted((copied / "t-0").glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[500] ^= 1
    second.write_bytes(data)
    assert await life.start()
    life.kill()
    life.restore(copied)
    assert not await life.start()
    again = life.logs.get("t", 0)
    assert again is not None
    assert again.log_end_offset == int(second.stem)


async def test_a_copy_from_before_there_were_generations(life: Life) -> None:
    await life.first()
    await life.stop()
    (life.paths[0] / GENERATION).unlink()
    assert not await life.start()


async def test_directories_from_before_there_were_generations(life: Life) -> None:
    await life.first()
    await life.stop()
    (life.paths[0] / GENERATION).unlink()
    life.coordination = coordination_in(life.paths[0].parent / "new")
    assert await life.start()
    assert life.logs.dirs[0].generation == 1


@pytest.mark.parametrize("number", [0, 1])
async def test_each_directory_is_judged_by_itself(tmp_path: Path, number: int, caplog: Any) -> None:
    life = Life(tmp_path, 2)
    await life.first()
    copied = life.copy(number)
    await life.stop()
    life.restore(copied)
    assert not await life.start()
    assert f"{life.paths[number]} is an older copy" in caplog.text
    assert f"{life.paths[1 - number]} is an older copy" not in caplog.text


async def test_an_older_coordination_is_noticed_until_it_is_handled(
    life: Life, tmp_path: Path, caplog: Any
) -> None:
    await life.first()
    older = await life.coordination.generations(1)
    for _ in range(3):
        await life.generations.rise()
    await life.stop()
    life.coordination = coordination_in(tmp_path / "restored")
    await life.coordination.connect()
    await life.coordination.show_generations(1, older)
    assert await life.start()
    assert "coordination was restored from an older copy" in caplog.text
    assert life.generations.ahead == 4, (
        "three rises and the two of the stop, of which one may just be missing"
    )
    assert await life.coordination.generations(1) == older, "until the controller has acted, it stays ahead"
    life.kill()
    assert await life.start()
    assert life.generations.ahead == 4
    await life.generations.accepted()
    shown = await life.coordination.generations(1)
    assert list(shown.values()) == [life.logs.dirs[0].generation]


async def test_generations_rise_when_logs_have_grown(life: Life) -> None:
    await life.first()
    log = life.logs.get_or_create("t", 0)
    await life.generations.rise_if_grown()
    before = life.logs.dirs[0].generation
    await life.generations.rise_if_grown()
    assert life.logs.dirs[0].generation == before
    log.truncate_fully_and_start_at(10, now_ms=0)
    await life.generations.rise_if_grown()
    assert (life.logs.dirs[0].generation or 0) > (before or 0)


# In ZooKeeper


async def test_zookeeper_has_the_generations(shared_zookeeper: ZooKeeperProcess) -> None:
    connect = shared_zookeeper.own_tree()
    async with members(connect, 1, 2) as (one, two):
        assert await one.coordination.generations(1) == {}
        await one.coordination.show_generations(1, {"a": 3})
        await one.coordination.show_generations(1, {"b": 1})
        await one.coordination.show_generations(1, {"a": 3, "b": 2})
        await two.coordination.show_generations(2, {"c": 1})
        assert await two.coordination.generations(1) == {"a": 3, "b": 2}
        with pytest.raises(Conflict, match="is used by another process, too"):
            await two.coordination.show_generations(1, {"a": 2})
        assert await two.coordination.generations(1) == {"a": 3, "b": 2}


async def test_a_copy_takes_over_no_registration(shared_zookeeper: ZooKeeperProcess) -> None:
    connect = shared_zookeeper.own_tree()
    async with members(connect, 1) as (one,):
        epoch = one.epoch
        other = Member(connect, 1)
        other.coordination._nodes.timeout = 0.5  # how long it waits for the holder's session to end
        try:
            await other.coordination.connect()
            with pytest.raises(CoordinationError, match="is taken"):
                await other.coordination.join(other.record, takes_over=False)
            assert one.epoch == epoch
            await other.coordination.join(other.record)
        finally:
            await other.coordination.leave()


# A broker by itself


def leader_epoch(wire: Wire, topic: str) -> int:
    asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=topic)])
    return wire.call(metadata.API, 12, asked).topics[0].partitions[0].leader_epoch


@pytest.mark.parametrize("number", [0, 1])
def test_a_broker_by_itself_leads_an_older_copy_and_says_so(tmp_path: Path, number: int) -> None:
    """No other broker has the data; leader epochs rise, so consumers notice (KIP-320)."""
    broker = InProcessBroker(tmp_path / "broker")
    dirs = [tmp_path / "first", tmp_path / "second"]
    broker.config["log.dirs"] = ",".join(map(str, dirs))
    topics = ("t", "u")
    copied = tmp_path / "copy"
    with broker.start():
        with Wire(broker.bootstrap) as wire:
            wire.create(*topics)
            for topic in topics:
                assert wire.produce(topic, [record("a")]).error_code == 0
        broker.stop()
        shutil.copytree(dirs[number], copied)
        broker.start()
        with Wire(broker.bootstrap) as wire:
            for topic in topics:
                assert wire.produce(topic, [record("b")]).error_code == 0
        broker.restart()
        with Wire(broker.bootstrap) as wire:
            epochs = {topic: leader_epoch(wire, topic) for topic in topics}
        broker.stop()
        shutil.rmtree(dirs[number])
        copied.rename(dirs[number])
        broker.start()
        with Wire(broker.bootstrap) as wire:
            for topic in topics:
                higher = partial(operator.lt, epochs[topic])
                eventually(partial(leader_epoch, wire, topic), higher, "its epoch is higher")
                wire.await_leader(topic)
            assert sorted(wire.end_offset(topic) for topic in topics) == [1, 2]
        if number == 0:
            assert f"{dirs[1]} has generation" in broker.said()
        else:
            assert f"{dirs[1]} is an older copy" in broker.said()

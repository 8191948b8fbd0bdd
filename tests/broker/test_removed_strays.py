"""Strays are listed and removed by requests, or by age; a log in use never is."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.coordination import OVERRIDE
from millstream_broker.log import strays as strays_module
from millstream_broker.log.files import FileCache
from millstream_broker.log.strays import KNOWN_S, Strays
from millstream_harness.in_process import connected, create, delete, running
from millstream_harness.shared_tree import SharedTree
from millstream_harness.wire import record
from millstream_kafka.batch import build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import describe_log_dirs, describe_strays, produce, remove_strays
from millstream_kafka.protocol.describe_strays import DescribedStray, DescribeStraysRequest
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.remove_strays import RemovedStray, RemoveStraysRequest, StrayToRemove

DAY_MS = 24 * 60 * 60 * 1000


async def send(client: Connection, topic: str) -> None:
    batch = memoryview(build_batch([record("1"), record("2")]))
    data = produce.TopicProduceData(topic, partition_data=[produce.PartitionProduceData(0, batch)])
    answer = await client.call(produce.API, 9, produce.ProduceRequest(None, -1, 10_000, [data]))
    assert answer.responses[0].partition_responses[0].error_code == 0


async def listed(client: Connection) -> list[DescribedStray]:
    answer = await client.call(describe_strays.API, 0, DescribeStraysRequest())
    assert answer.error_code == 0
    return list(answer.strays)


async def removed(client: Connection, *strays: StrayToRemove) -> list[RemovedStray]:
    answer = await client.call(remove_strays.API, 0, RemoveStraysRequest(list(strays)))
    return list(answer.strays)


def named(stray: DescribedStray) -> StrayToRemove:
    return StrayToRemove(stray.log_dir, stray.folder, stray.since_ms)


def topic_id(broker: Broker, name: str) -> object:
    (log,) = [log for key, log in broker.logs.logs() if key[0] == name]
    return log.topic_id


class Trees:
    """A broker's own tree, and an empty one, with which its logs are strays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.right, self.wrong = SharedTree(), SharedTree()

    @asynccontextmanager
    async def own(self) -> AsyncIterator[tuple[Broker, Connection]]:
        async with running(self.folder, None, self.right.store) as broker, connected(broker) as client:
            yield broker, client

    @asynccontextmanager
    async def empty(self, **config: str) -> AsyncIterator[tuple[Broker, Connection]]:
        config = {OVERRIDE: "true", **{name.replace("_", "."): value for name, value in config.items()}}
        async with running(self.folder, config, self.wrong.store) as broker, connected(broker) as client:
            yield broker, client


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


async def test_a_stray_is_listed_and_removed_by_a_request(trees: Trees) -> None:
    begun_ms = int(time.time() * 1000)
    async with trees.own() as (broker, client):
        await create(client, "t")
        await send(client, "t")
        of = topic_id(broker, "t")
    async with trees.empty() as (broker, client):
        (stray,) = await listed(client)
        assert (stray.log_dir, stray.topic, stray.partition) == (str(trees.folder), "t", 0)
        assert stray.topic_id == of
        assert stray.size > 0
        assert begun_ms <= stray.since_ms <= time.time() * 1000
    async with trees.empty() as (broker, client):
        assert await listed(client) == [stray], "a restart changes nothing"
        folder = Path(stray.log_dir) / stray.folder
        assert folder.is_dir()
        (answer,) = await removed(client, named(stray))
        assert (answer.folder, answer.error_code) == (stray.folder, 0)
        assert not folder.exists()
        assert not [*trees.folder.glob("*-delete")]
        assert await listed(client) == []
        (answer,) = await removed(client, named(stray))
        assert answer.error_code == ErrorCode.RESOURCE_NOT_FOUND


async def test_only_strays_are_removed(trees: Trees, tmp_path: Path) -> None:
    async with trees.own() as (_broker, client):
        await create(client, "t")
        await send(client, "t")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    async with trees.empty() as (_broker, client):
        await create(client, "used")
        (stray,) = await listed(client)
        here = str(trees.folder)
        wrong = [
            StrayToRemove(here, "used-0", stray.since_ms),
            StrayToRemove(here, f"../{outside.name}", stray.since_ms),
            StrayToRemove(str(outside.parent), outside.name, stray.since_ms),
            StrayToRemove(here, "", 0),
            StrayToRemove("", "", 0),
            StrayToRemove(here, stray.folder, stray.since_ms + 1),
        ]
        answers = await removed(client, *wrong)
        assert {one.error_code for one in answers} == {ErrorCode.RESOURCE_NOT_FOUND}
        assert await listed(client) == [stray]
        await send(client, "used")
    assert outside.is_dir()


async def test_a_log_that_was_in_use_again_is_another_stray(trees: Trees) -> None:
    async with trees.own() as (broker, client):
        await create(client, "t")
    async with trees.empty() as (broker, client):
        (before,) = await listed(client)
    async with trees.own() as (broker, client):
        await send(client, "t")
        assert await listed(client) == []
    async with trees.empty() as (broker, client):
        (now,) = await listed(client)
        assert now.folder == before.folder
        assert now.since_ms > before.since_ms
        (answer,) = await removed(client, named(before))
        assert answer.error_code == ErrorCode.RESOURCE_NOT_FOUND
        assert await listed(client) == [now]
    async with trees.own() as (broker, client):
        assert broker.logs.log_of(now.topic_id, "t", 0) is not None


async def test_a_stray_whose_folder_is_gone_takes_no_directory_offline(trees: Trees) -> None:
    """Its folder was removed by hand; then a log of the same partition is needed."""
    async with trees.own() as (broker, client):
        await create(client, "t")
        of = topic_id(broker, "t")
    async with trees.empty() as (broker, client):
        (stray,) = broker.logs.strays
        shutil.rmtree(stray.path)
        log = broker.logs.get_or_create("t", 0, stray.topic_id)
        assert (log.topic_id, log.log_end_offset) == (of, 0)
        assert broker.logs.offline == {}
        assert [home.failure for home in broker.logs.dirs] == [None]


async def test_describe_log_dirs_of_no_topic_returns_strays_alone(trees: Trees) -> None:
    async with trees.own() as (_broker, client):
        await create(client, "t")
    async with trees.empty() as (_broker, client):
        await create(client, "used")
        (stray,) = await listed(client)
        request = describe_log_dirs.DescribeLogDirsRequest([])
        (found,) = (await client.call(describe_log_dirs.API, 4, request)).results
        assert [one.name for one in found.topics] == [stray.folder]


async def test_a_topic_deleted_without_one_of_its_directories_leaves_a_stray_there(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in ("one", "other")]
    both, one = ({"log.dirs": ",".join(map(str, some))} for some in (dirs, dirs[:1]))
    async with running(tmp_path, both) as broker, connected(broker) as client:
        for name in ("a", "b"):
            await create(client, name)
            await send(client, name)
        (lost,) = [key[0] for key, home in broker.logs.partitions().items() if home.path == dirs[1]]
    async with running(tmp_path, one) as broker, connected(broker) as client:
        await delete(client, lost)
    async with running(tmp_path, both) as broker, connected(broker) as client:
        (stray,) = await listed(client)
        assert (stray.log_dir, stray.topic) == (str(dirs[1]), lost)
        (answer,) = await removed(client, named(stray))
        assert answer.error_code == 0
        assert [one.name for one in dirs[1].iterdir() if one.is_dir()] == []


# By age


async def test_strays_stay_unless_their_retention_is_set(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trees.own() as (broker, client):
        await create(client, "t")
    now = time.monotonic()
    for retention_ms, left in ((-1, 1), (2 * DAY_MS, 1), (DAY_MS, 0)):
        async with trees.empty(log_stray_retention_ms=str(retention_ms)) as (broker, client):
            (stray,) = broker.logs.strays
            broker.logs.strays._known[stray.path] = now - KNOWN_S
            later = (stray.since_ms + DAY_MS) / 1000
            monkeypatch.setattr("millstream_broker.broker.time", partial(float, later))
            await broker.settle_strays()
            assert len(broker.logs.strays) == left
            monkeypatch.undo()


def test_a_clock_that_is_ahead_removes_nothing_within_an_hour(tmp_path: Path) -> None:
    now = 0.0
    strays = Strays(FileCache(), lambda: now)
    (tmp_path / f"t-0.{0:032x}-stray").mkdir()
    strays.found(tmp_path / f"t-0.{0:032x}-stray", ("t", 0))
    (stray,) = strays
    far = stray.since_ms + 100 * DAY_MS
    assert strays.outdated(DAY_MS, far) == []
    now = KNOWN_S - 1
    assert strays.outdated(DAY_MS, far) == []
    now = KNOWN_S
    assert strays.outdated(DAY_MS, far) == [stray]
    assert strays.outdated(DAY_MS, stray.since_ms + DAY_MS - 1) == []
    assert strays.outdated(DAY_MS, stray.since_ms - DAY_MS) == [], (
        "its clock was ahead when it became a stray"
    )


@pytest.mark.parametrize("note", [b"", b"[]", b"{", b'{"since_ms": "x"}', b'{"version": 1}'])
def test_a_stray_without_a_usable_note_is_as_old_as_its_folder(tmp_path: Path, note: bytes) -> None:
    path = tmp_path / f"t-0.{0:032x}-stray"
    path.mkdir()
    (path / strays_module.NOTE).write_bytes(note)
    assert strays_module._since(path) == int(path.stat().st_mtime * 1000)

"""A broker with data starts only with its cluster's tree, and acts only on it while it runs."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.broker import Broker, StartError
from millstream_broker.coordination import OVERRIDE, tree
from millstream_broker.coordination.stores.file import FILE_NAME
from millstream_broker.coordination.stores.nodes import Nodes
from millstream_harness.in_process import connected, create, delete, running
from millstream_harness.members import until
from millstream_harness.shared_tree import SharedStore, SharedTree
from millstream_harness.wire import record
from millstream_kafka.batch import build_batch
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import describe_log_dirs, list_offsets, produce
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.list_offsets import LATEST, ListOffsetsPartition, ListOffsetsTopic

OVERRIDDEN = {OVERRIDE: "true"}


async def send(client: Connection, topic: str, count: int = 3) -> None:
    batch = build_batch([record(f"{number}") for number in range(count)])
    data = produce.TopicProduceData(
        topic, partition_data=[produce.PartitionProduceData(0, memoryview(batch))]
    )
    answer = await client.call(produce.API, 9, produce.ProduceRequest(None, -1, 10_000, [data]))
    assert answer.responses[0].partition_responses[0].error_code == 0


async def end(client: Connection, topic: str) -> int:
    """The end of the topic's log, once it has a leader: one that is compared first has none for a moment."""
    asked = ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, LATEST)])
    for _ in range(1000):
        answer = await client.call(list_offsets.API, 4, list_offsets.ListOffsetsRequest(-1, 0, [asked]))
        (found,) = answer.topics[0].partitions
        if found.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            break
        await asyncio.sleep(0.01)
    assert found.error_code == 0
    return int(found.offset)


async def filled(
    folder: Path, store: Any = None, config: dict[str, str] | None = None, **of_topic: str
) -> None:
    """A broker with three records in topic t ends cleanly."""
    async with running(folder, config, store) as broker, connected(broker) as client:
        await create(client, "t", **of_topic)
        await send(client, "t")


def logs_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.is_dir())


def strays(broker: Broker) -> list[tuple[str, int]]:
    return [(one.topic, one.partition) for one in broker.logs.strays]


async def refused(folder: Path, store: Any = None, config: dict[str, str] | None = None) -> str:
    with pytest.raises(StartError) as caught:
        async with running(folder, config, store):
            pass
    return str(caught.value)


# At the start


async def test_data_is_not_given_to_an_empty_tree(tmp_path: Path) -> None:
    right, empty = SharedTree(), SharedTree()
    await filled(tmp_path, right.store)
    why = await refused(tmp_path, empty.store, {"zookeeper.connect": "zk:2181/wrong"})
    assert "the shared tree has no cluster, but log.dirs: " in why
    assert "Check zookeeper.connect=zk:2181/wrong" in why
    assert f"--override {OVERRIDE}=true" in why
    assert list(empty.nodes.stored) == ["/"], "nothing is written"
    async with running(tmp_path, None, right.store) as broker, connected(broker) as client:
        assert await end(client, "t") == 3


async def test_data_is_not_given_to_another_clusters_tree(tmp_path: Path) -> None:
    right, wrong = SharedTree(), SharedTree()
    await filled(tmp_path / "one", right.store)
    await filled(tmp_path / "other", wrong.store)
    why = await refused(tmp_path / "one", wrong.store)
    assert "the shared tree has the tree of cluster" in why
    async with running(tmp_path / "one", None, right.store) as broker, connected(broker) as client:
        assert await end(client, "t") == 3


@pytest.mark.parametrize("is_empty", [True, False])
async def test_overridden_the_logs_are_strays_until_their_tree_is_back(
    tmp_path: Path, is_empty: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty tree gets the data's cluster id; then the right tree counts as an older copy, so that logs decide."""
    right, wrong = SharedTree(), SharedTree()
    await filled(tmp_path / "one", right.store)
    if not is_empty:
        await filled(tmp_path / "other", wrong.store)
    async with running(tmp_path / "one", OVERRIDDEN, wrong.store) as broker, connected(broker) as client:
        assert strays(broker) == [("t", 0)]
        if is_empty:
            await create(client, "t")
        assert await end(client, "t") == 0 if is_empty else True
        answer = await client.call(describe_log_dirs.API, 4, describe_log_dirs.DescribeLogDirsRequest(None))
        described = {one.name: one.partitions[0].partition_size for one in answer.results[0].topics}
        (stray,) = [name for name in described if name.endswith("-stray")]
        assert described[stray] > 0
        metrics = (await broker._metrics.text()).decode()
        assert "\nmillstream_stray_partitions 1" in metrics
        assert f"\nmillstream_stray_bytes {described[stray]}" in metrics
    caplog.clear()
    back = None if is_empty else OVERRIDDEN
    async with running(tmp_path / "one", back, right.store) as broker, connected(broker) as client:
        assert await end(client, "t") == 3
        assert strays(broker) == [("t", 0)], "the other topic's log, in turn"
        assert ("was restored from an older copy" in caplog.text) == is_empty


async def test_a_broker_without_data_founds_no_second_cluster(tmp_path: Path) -> None:
    """Its directories know their cluster: the tree gets that cluster's id."""
    right, empty = SharedTree(), SharedTree()
    async with running(tmp_path, None, right.store) as broker:
        cluster_id = broker.coordination.cluster_id
    async with running(tmp_path, None, empty.store) as broker:
        assert broker.coordination.cluster_id == cluster_id


async def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        await filled(tmp_path / name)
    both = {"log.dirs": f"{tmp_path}/one,{tmp_path}/other"}
    assert "Name only directories of one cluster" in await refused(tmp_path, None, both)


# A broker by itself


async def test_a_broker_by_itself_does_not_move_into_a_cluster(tmp_path: Path) -> None:
    shared = SharedTree()
    await filled(tmp_path)
    why = await refused(tmp_path, shared.store, {"zookeeper.connect": "zk:2181"})
    assert f"{tmp_path / FILE_NAME} shows that this broker was a cluster by itself" in why
    async with running(tmp_path, OVERRIDDEN, shared.store) as broker:
        assert strays(broker) == [("t", 0)]
    async with running(tmp_path) as broker, connected(broker) as client:
        assert await end(client, "t") == 3


async def test_a_broker_of_a_cluster_does_not_become_one_by_itself(tmp_path: Path) -> None:
    await filled(tmp_path, SharedTree().store)
    why = await refused(tmp_path)
    assert f"none has {FILE_NAME}" in why
    assert "set zookeeper.connect" in why
    assert not (tmp_path / FILE_NAME).exists()


async def test_a_directory_that_is_left_without_partitions_is_not_a_new_broker(tmp_path: Path) -> None:
    """The journal is in the other one."""
    dirs = [str(tmp_path / name) for name in ("one", "other")]
    await filled(tmp_path, None, {"log.dirs": ",".join(dirs)})
    (left,) = [one for one in dirs if not (Path(one) / FILE_NAME).exists()]
    for path in Path(left).glob("t-0"):
        shutil.rmtree(path)
    assert f"none has {FILE_NAME}" in await refused(tmp_path, None, {"log.dirs": left})


async def test_a_lost_journal_costs_no_records(tmp_path: Path) -> None:
    await filled(tmp_path, retention_ms="-1", cleanup_policy="delete")
    (tmp_path / FILE_NAME).unlink()
    assert "restore it from a copy" in await refused(tmp_path)
    for config in (OVERRIDDEN, None):
        async with running(tmp_path, config) as broker, connected(broker) as client:
            assert await end(client, "t") == 3
            log = broker.logs.get("t", 0)
            assert log is not None
            assert (log.config.retention_ms, log.config.retention_bytes) == (-1, -1)


@pytest.mark.parametrize("name", ["one", "other"])
async def test_the_order_of_log_directories_does_not_matter(tmp_path: Path, name: str) -> None:
    dirs = [str(tmp_path / name) for name in ("one", "other", "third")]
    await filled(tmp_path, None, {"log.dirs": ",".join(dirs[:2])}, retention_ms="-1")
    for order in (dirs[1::-1], dirs[::-1]):
        config = {"log.dirs": ",".join(order)}
        async with running(tmp_path, config) as broker, connected(broker) as client:
            assert await end(client, "t") == 3
            assert broker.replicas.metadata.topics["t"].config == {"retention.ms": "-1"}
    assert [path.parent.name for path in tmp_path.glob(f"*/{FILE_NAME}")] == ["one"]


@pytest.mark.parametrize("what", ["directory", "folder"])
async def test_a_log_that_is_gone_is_offline_until_it_is_back(tmp_path: Path, what: str) -> None:
    """A broker by itself, whose topic has a partition in each of two directories."""
    dirs = [tmp_path / name for name in ("one", "other")]
    both, one = ({"log.dirs": ",".join(map(str, some))} for some in (dirs, dirs[:1]))
    async with running(tmp_path, both) as broker, connected(broker) as client:
        await create(client, "t", 2)
        for name in ("a", "b"):
            await create(client, name)
            await send(client, name)
        (lost,) = [
            key for key, home in broker.logs.partitions().items() if home.path == dirs[1] and key[0] != "t"
        ]
    folder = dirs[1] / f"{lost[0]}-0"
    if what == "folder":
        folder.rename(tmp_path / "away")
    for _ in range(2):
        async with (
            running(tmp_path, one if what == "directory" else both) as broker,
            connected(broker) as client,
        ):
            assert "its log is missing: it was in" in broker.replicas.unopened[lost]
            assert lost not in broker.logs.partitions()
            await create(client, f"new{_}", 2)
            await broker.settle_strays()
    if what == "folder":
        (tmp_path / "away").rename(folder)
    async with running(tmp_path, both) as broker, connected(broker) as client:
        assert broker.replicas.unopened == {}
        assert [await end(client, name) for name in ("a", "b")] == [3, 3]


async def test_a_topic_whose_log_is_gone_can_be_deleted_and_created_again(tmp_path: Path) -> None:
    await filled(tmp_path)
    shutil.rmtree(tmp_path / "t-0")
    async with running(tmp_path) as broker, connected(broker) as client:
        assert list(broker.replicas.unopened) == [("t", 0)]
        await delete(client, "t")
        await broker.settle_strays()
        await create(client, "t")
        assert await end(client, "t") == 0
    async with running(tmp_path) as broker:
        assert broker.logs.inventory.missing == {}
        assert broker._generations.vouches


async def test_two_journals_are_refused(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in ("one", "other")]
    config = {"log.dirs": ",".join(map(str, dirs))}
    await filled(tmp_path, None, config)
    shutil.copy(dirs[0] / FILE_NAME, dirs[1])
    assert f"{dirs[0]} and {dirs[1]} each have {FILE_NAME}" in await refused(tmp_path, None, config)


async def test_a_journal_of_another_cluster_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path / "one")
    await filled(tmp_path / "other")
    shutil.copy(tmp_path / "other" / FILE_NAME, tmp_path / "one")
    why = await refused(tmp_path / "one")
    assert f"{tmp_path / 'one' / FILE_NAME} has the tree of cluster" in why


# While brokers run


async def elsewhere(tree_: SharedTree, nodes: Nodes) -> None:
    """The address leads to another ensemble from now on, which knows no session."""
    tree_.stop()
    tree_.nodes = nodes
    tree_._sessions.clear()
    tree_.start()


@pytest.mark.parametrize("kind", ["empty", "foreign"])
async def test_a_running_broker_does_not_act_on_another_tree(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    shared, other = SharedTree(), SharedTree()
    if kind == "foreign":
        await filled(tmp_path / "other", other.store)
    before = dict(other.nodes.stored)
    async with running(tmp_path / "one", None, shared.store) as broker, connected(broker) as client:
        await create(client, "t")
        await send(client, "t")
        right = shared.nodes
        await elsewhere(shared, other.nodes)
        await until(lambda: "continues with what it knows" in caplog.text)
        assert not broker.coordination.is_connected
        await broker.settle_strays()
        await send(client, "t")
        assert await end(client, "t") == 6
        assert other.nodes.stored == before, "nothing is written"
        await elsewhere(shared, right)
        await create(client, "later")
        assert logs_in(tmp_path / "one") == ["later-0", "t-0"]
    assert strays(broker) == []


@pytest.mark.parametrize("what", ["generation", "version"])
async def test_a_running_broker_ends_when_its_tree_becomes_an_older_one(tmp_path: Path, what: str) -> None:
    shared = SharedTree()
    async with running(tmp_path, None, shared.store) as broker, connected(broker) as client:
        await create(client, "t")
        older = Nodes()
        older.take(shared.nodes.zxid, dict(shared.nodes.stored), notify=False)
        await send(client, "t")
        if what == "generation":
            await broker._generations.rise()
        else:
            known = broker.replicas.latest_image.topics["t"].partitions[0]
            await broker.coordination.write_partition("t", 0, known)
        await elsewhere(shared, older)
        async with asyncio.timeout(20):
            why = await broker.failure
        assert f"the shared tree was restored from an older copy: it has {what}" in why
        assert "Start it again" in why
    async with running(tmp_path, None, shared.store) as broker, connected(broker) as client:
        assert await end(client, "t") == 3


async def test_an_older_request_to_delete_a_topic_does_not_delete_the_new_one(tmp_path: Path) -> None:
    """A tree restored in part, or a program that writes into it."""
    shared = SharedTree()
    async with running(tmp_path, None, shared.store) as broker, connected(broker) as client:
        await create(client, "t")
        await send(client, "t")
        path = tree.delete_topic_path("t")
        store: SharedStore = shared.store()
        store.start()
        await store.connected()
        await store.create(path, tree.deletion_json(uuid.uuid4()))
        await until(lambda: path not in shared.nodes)
        assert await end(client, "t") == 3
        await store.close(1)

"""Brokers' writes into the tree while others change it between two reads."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from millstream_broker.coordination import (
    NO_LEADER,
    ClusterState,
    Conflict,
    PartitionRecord,
    TopicRecord,
    tree,
    writes,
)
from millstream_broker.coordination.state_waits import leaderless as count_leaderless
from millstream_broker.coordination.stores import Delete, Node, Operation, Unavailable, Watch
from millstream_broker.coordination.stores.file import FILE_NAME, FileStore
from millstream_harness.members import topic_of


class Changing(FileStore):
    """Applies `change` just before a read of the node `before`."""

    before = ""
    change: Sequence[Operation] = ()

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        if path == self.before:
            self.before = ""
            await self.multi(self.change)
        return await super().get(path, watch)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Changing]:
    """A tree in which topic t is being deleted."""
    store = Changing(tmp_path / FILE_NAME)
    store.start()
    await store.ensure(*tree.ALWAYS)
    await writes.create_topic(store, topic_of("t"))
    await writes.request_deletion(store, "t", await writes.id_of_topic(store, "t"))
    yield store
    await store.close(5.0)


async def test_a_topic_whose_deletion_ends_meanwhile_is_created_at_the_next_attempt(nodes: Changing) -> None:
    anew = topic_of("t")
    with pytest.raises(Unavailable, match="still being deleted"):
        await writes.create_topic(nodes, anew)
    nodes.before = tree.delete_topic_path("t")
    nodes.change = [Delete(tree.topic_path("t")), Delete(nodes.before)]
    with pytest.raises(Unavailable, match="still being deleted"):
        await writes.create_topic(nodes, anew)
    await writes.create_topic(nodes, anew)
    node = await nodes.get(tree.topic_path("t"))
    assert node is not None
    assert tree.topic_from("t", node.data).topic_id == anew.topic_id
    with pytest.raises(Conflict, match="there is a topic t"):
        await writes.create_topic(nodes, topic_of("t"))


def test_partitions_of_a_topic_that_was_made_anew_meanwhile_need_no_leaders() -> None:
    """A caller may still wait for the predecessor's partitions, of which there were more."""
    led, leaderless = PartitionRecord((1,), 1, 0, (1,)), PartitionRecord((1,), NO_LEADER, 0, (1,))

    def missing(*partitions: PartitionRecord) -> int:
        topic = TopicRecord("t", uuid.uuid4(), partitions, {})
        return count_leaderless(ClusterState("cluster", {}, {"t": topic}, 1), "t", range(1, 3))

    assert missing(leaderless, led, leaderless, leaderless) == 1
    assert missing(leaderless) == 0
    assert missing(leaderless, leaderless) == 1
    assert count_leaderless(ClusterState("cluster", {}, {}, 1), "t", range(1, 3)) == 0

"""What brokers write into the tree, where somebody else changes it between two reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from millstream_broker.coordination import Conflict, tree, writes
from millstream_broker.coordination.stores import Delete, Node, Operation, Unavailable, Watch
from millstream_broker.coordination.stores.file import FILE_NAME, FileStore
from millstream_harness.members import topic_of


class Changing(FileStore):
    """`change` happens just before that node is read."""

    before = ""
    change: Sequence[Operation] = ()

    async def get(self, path: str, watch: Watch | None = None) -> Node | None:
        if path == self.before:
            self.before = ""
            await self.multi(self.change)
        return await super().get(path, watch)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Changing]:
    """Topic t is there, and being deleted."""
    store = Changing(tmp_path / FILE_NAME)
    store.start()
    await store.ensure(*tree.ALWAYS)
    await writes.create_topic(store, topic_of("t"))
    await writes.request_deletion(store, "t")
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

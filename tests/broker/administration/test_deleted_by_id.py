"""A request to delete a topic never deletes a topic that has its name since."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.coordination import tree, writes
from millstream_broker.coordination.stores import Unavailable
from millstream_harness.in_process import connected, create, delete, running
from millstream_harness.members import topic_of, until
from millstream_harness.shared_tree import SharedTree
from millstream_kafka.client.connection import Connection
from millstream_kafka.protocol import delete_topics
from millstream_kafka.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream_kafka.protocol.errors import ErrorCode


async def delete_by_id(client: Connection, topic_id: uuid.UUID) -> tuple[str | None, int]:
    request = DeleteTopicsRequest([DeleteTopicState(None, topic_id)], timeout_ms=10_000)
    (found,) = (await client.call(delete_topics.API, 6, request)).responses
    return found.name, found.error_code


async def test_broker_that_does_not_know_the_new_topic_yet_does_not_delete_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        known = broker.replicas.metadata.topics["t"]
        await delete(client, "t")
        await create(client, "t")
        metadata = broker.replicas.metadata
        metadata.topics_by_id[known.topic_id] = known  # as before it followed
        assert await delete_by_id(client, known.topic_id) == ("t", ErrorCode.UNKNOWN_TOPIC_ID)
        assert await delete_by_id(client, metadata.topics["t"].topic_id) == ("t", 0)
        assert "t" not in broker.replicas.metadata.topics


async def test_deletion_whose_response_is_lost_is_not_repeated_for_the_new_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, successor, path = SharedTree(), topic_of("t"), tree.delete_topic_path("t")
    async with running(tmp_path, None, shared.store) as broker, connected(broker) as client:
        await create(client, "t")
        store = shared.store()
        store.start()
        await store.connected()
        create_node = broker.coordination._nodes.create

        async def lose(node: str, data: bytes = b"", **options: Any) -> Any:
            created = await create_node(node, data, **options)
            if node == path:
                await until(lambda: path not in shared.nodes)
                await writes.create_topic(store, successor)
                raise Unavailable("the connection is lost")
            return created

        monkeypatch.setattr(broker.coordination._nodes, "create", lose)
        request = DeleteTopicsRequest([DeleteTopicState("t")], timeout_ms=10_000)
        (found,) = (await client.call(delete_topics.API, 6, request)).responses
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert path not in shared.nodes
        assert (
            tree.topic_id_from("t", shared.nodes.stored[tree.topic_path("t")].node.data) == successor.topic_id
        )
        await store.close(1)

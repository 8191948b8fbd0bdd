"""Administrators' changes of topics: written into the tree, and awaited until the controller has carried them out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from functools import partial

from . import ClusterState, Conflict, PartitionRecord, TopicRecord, writes
from .own_tree import OwnTree
from .state_waits import StateWaits

TOPICS_AT_ONCE = 200
"""Topics created or deleted at a time: the deadlines of a thousand others begin at their turn."""


class TopicChanges:
    def __init__(self, nodes: OwnTree, waits: StateWaits, known: Callable[[], ClusterState]) -> None:
        """`known` is the cluster as this broker knows it."""
        self._nodes = nodes
        self._waits = waits
        self._known = known
        self._at_once = asyncio.Semaphore(TOPICS_AT_ONCE)

    async def create(self, topic: TopicRecord) -> None:
        """Return when its partitions have leaders, as in Kafka. Raises Conflict if the topic exists."""
        count = len(topic.partitions)

        def is_there(state: ClusterState) -> bool:
            found = state.topics.get(topic.name)
            return found is not None and len(found.partitions) >= count

        async with self._at_once:
            await self._nodes.persist(lambda: writes.create_topic(self._nodes, topic))
            await self._waits.until(is_there, f"topic {topic.name}")
            await self._waits.until_led(topic.name, range(count))

    async def add_partitions(self, name: str, partitions: tuple[PartitionRecord, ...]) -> None:
        known = self._known().topics.get(name)
        if known is None:
            raise Conflict(f"there is no topic {name}")
        count = len(known.partitions) + len(partitions)
        await self._nodes.persist(lambda: writes.add_partitions(self._nodes, known, partitions))
        await self._waits.until(
            lambda state: name in state.topics and len(state.topics[name].partitions) >= count,
            f"partitions of {name}",
        )
        await self._waits.until_led(name, range(len(known.partitions), count))

    async def delete(self, name: str, topic_id: uuid.UUID | None = None) -> None:
        """Delete the topic of that name, which must have this id; by default, the one that has the name first.

        A later attempt after a lost response deletes no topic that was created meanwhile.
        """
        async with self._at_once:
            if topic_id is None:
                topic_id = await self._nodes.persist(lambda: writes.id_of_topic(self._nodes, name))
            await self._nodes.persist(partial(writes.request_deletion, self._nodes, name, topic_id))
            await self._waits.until(
                lambda state: name not in state.topics or state.topics[name].topic_id != topic_id,
                f"the deletion of {name}",
            )

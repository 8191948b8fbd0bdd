"""Reads, decodes and encodes topics' nodes; those of many partitions in a thread: 10,000 take 20 ms."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from ..runtime.slices import cooperatively
from . import TopicRecord, tree
from .stores import Store

MANY = 500
"""Number of partitions that count as many."""
MANY_BYTES = 12 * MANY
"""The data of a partition takes a dozen bytes at least."""

log = logging.getLogger(__name__)


async def stored(nodes: Store, names: Collection[str]) -> Mapping[str, TopicRecord | None]:
    """Topics as they are stored, None where there is none; without those that cannot be read. Raises Unavailable."""
    requested = list(names)
    found: dict[str, TopicRecord | None] = {}
    of_topics = await nodes.get_all(map(tree.topic_path, requested))
    async for name, node in cooperatively(zip(requested, of_topics, strict=True)):
        try:
            found[name] = None if node is None else await decoded(name, node.data)
        except tree.TreeError as error:
            log.error("%s", error)
    return found


async def decoded(name: str, data: bytes) -> TopicRecord:
    """See `tree.topic_from`. Raises TreeError."""
    if len(data) > MANY_BYTES:
        return await asyncio.to_thread(tree.topic_from, name, data)
    return tree.topic_from(name, data)


async def encoded(topic: TopicRecord) -> bytes:
    """See `tree.topic_json`."""
    if len(topic.partitions) > MANY:
        return await asyncio.to_thread(tree.topic_json, topic)
    return tree.topic_json(topic)

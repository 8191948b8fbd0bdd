"""Decodes and encodes topics' nodes; those of many partitions in a thread: 10,000 take 20 ms."""

from __future__ import annotations

import asyncio

from . import TopicRecord, tree

MANY = 500
"""Number of partitions that count as many."""
MANY_BYTES = 12 * MANY
"""The data of a partition takes a dozen bytes at least."""


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

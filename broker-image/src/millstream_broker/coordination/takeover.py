"""Fills a new tree in a file from earlier data: a `coordination.json`, or logs.

    {"version": 1, "cluster_id": "5Zx…", "next_producer_id": 3000,
     "topics": {"flights": {"id": "…", "config": {"retention.ms": "1000"},
                            "partitions": [{"replicas": [1], "leader": 1, "leader_epoch": 2, "isr": [1],
                                            "version": 3}]}},
     "broker_configs": {"": {}, "1": {"log.retention.ms": "1000"}},
     "generations": {"DIRECTORY-ID": 7}}         absent in older files

is the format of a single broker until version 0.2. The takeover can be repeated after a crash.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import CoordinationError, PartitionRecord, TopicRecord, tree
from .stores import Create, Operation, Store

OLD_FILE_NAME = "coordination.json"
AT_ONCE = 100
"""Topics in one transaction."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Old:
    """The contents of a `coordination.json`."""

    path: Path
    cluster_id: str
    topics: Collection[TopicRecord]
    broker_configs: Mapping[int | None, Mapping[str, str]]
    generations: Mapping[str, int]


def find_old(folder: Path) -> Old | None:
    """Raises CoordinationError for a file that cannot be read."""
    path = folder / OLD_FILE_NAME
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["version"] != 1:
            raise CoordinationError(f"{path}: version {data['version']} is not known: expected 1")
        return Old(
            path,
            data["cluster_id"],
            [_topic(name, topic) for name, topic in data["topics"].items()],
            {int(key) if key else None: config for key, config in data["broker_configs"].items()},
            data.get("generations", {}),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CoordinationError(f"{path}: cannot be read: {error!r}") from None


def _topic(name: str, topic: Mapping[str, Any]) -> TopicRecord:
    partitions = tuple(
        PartitionRecord(
            tuple(partition["replicas"]),
            partition["leader"],
            partition["leader_epoch"],
            tuple(partition["isr"]),
            partition["version"],
        )
        for partition in topic["partitions"]
    )
    return TopicRecord(name, uuid.UUID(topic["id"]), partitions, topic["config"])


async def take_over(nodes: Store, old: Old, broker_id: int) -> None:
    """Import it into the tree and rename the file. Raises CoordinationError."""
    await nodes.ensure(*tree.ALWAYS)
    await add_topics(nodes, old.topics)
    await nodes.ensure("/cluster")
    more: dict[str, bytes] = {
        tree.CLUSTER_ID: tree.cluster_id_json(old.cluster_id),
    }
    more |= {
        tree.config_path(tree.broker_entity(broker)): tree.config_json(config)
        for broker, config in old.broker_configs.items()
    }
    more[tree.generations_path(broker_id)] = tree.generations_json(old.generations)
    for path, data in more.items():
        if await nodes.get(path) is None:
            await nodes.create(path, data)
    try:
        old.path.rename(f"{old.path}.taken-over")
    except OSError as error:
        raise CoordinationError(f"{old.path}: cannot be renamed: {error.strerror}") from None
    log.info("%s: taken over into %s, with %d topics", old.path, nodes, len(old.topics))


async def add_topics(nodes: Store, topics: Iterable[TopicRecord]) -> None:
    """Add topics with their states; existing ones stay unchanged. Raises CoordinationError."""
    known = set(await nodes.children(tree.TOPICS) or ())
    new = [topic for topic in topics if topic.name not in known]
    for at in range(0, len(new), AT_ONCE):
        await nodes.multi([operation for topic in new[at : at + AT_ONCE] for operation in _create(topic)])


def _create(topic: TopicRecord) -> Iterable[Operation]:
    yield Create(tree.config_path(tree.topic_entity(topic.name)), tree.config_json(topic.config))
    yield Create(tree.topic_path(topic.name), tree.topic_json(topic))
    yield Create(tree.partitions_path(topic.name))
    for index, record in enumerate(topic.partitions):
        yield Create(tree.partition_path(topic.name, index))
        yield Create(tree.state_path(topic.name, index), tree.state_json(replace(record, version=0)))

"""Positions of consumer groups on both sides of a mirror."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from millstream_kafka.batch import read_header, read_records

from .mirror import Peer, new_admin, read_batches
from .scenario import eventually


def commit(broker: Peer, group: str, topic: str, *offsets: int) -> None:
    """Set a group's positions as an administrator."""
    at = [TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)]

    def errors() -> list[object]:
        request, client = [ConsumerGroupTopicPartitions(group, at)], new_admin(broker)
        done = client.alter_consumer_group_offsets(request)[group].result(20)
        return [one.error for one in done.topic_partitions if one.error]

    eventually(errors, lambda found: not found, "a commit")  # Kafka creates its coordinator on first use


def committed(broker: Peer, group: str, topic: str) -> list[int]:
    request, client = [ConsumerGroupTopicPartitions(group)], new_admin(broker)
    found = client.list_consumer_group_offsets(request)[group].result(20)
    return [one.offset for one in sorted(found.topic_partitions) if one.topic == topic]


def follows(broker: Peer, group: str, topic: str, *offsets: int, seconds: float = 60) -> None:
    eventually(
        lambda: committed(broker, group, topic), lambda now: now == list(offsets), "positions", seconds
    )


async def values(broker: Peer, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
    """Offset and value of every record, without control records."""
    return [
        (record.offset, record.value or b"")
        for batch in await read_batches(broker.bootstrap, topic, partition)
        for record in read_records(batch)
        if not read_header(batch).is_control
    ]


def in_step(source: list[tuple[int, bytes]], target: list[tuple[int, bytes]], here: int, there: int) -> bool:
    """Whether ``here`` in the source and ``there`` in the target are positions after the same records."""
    read = {value for offset, value in source if offset < here}
    own = {value for _, value in source}
    return {value for offset, value in target if offset < there and value in own} == read

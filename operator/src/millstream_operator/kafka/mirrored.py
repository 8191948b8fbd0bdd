"""Reads the state of mirrors' replicas from brokers: which replicas exist, and where their mirrored records end.

After a promotion, a partition's log has the mirrored records first and then the topic's own ones. Own records have the
leader epochs of the target, at least 2^20 above the epochs of mirrored batches (decision 14). So the end of the
mirrored part is the end of the last epoch well below the leader's own: OffsetForLeaderEpoch returns it exactly,
whatever producers have written since. A topic that rejoined has a small leader epoch until something is mirrored into
it: until then the end is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from millstream_kafka.admin.records import ResourceType
from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.mirror_source import requests_of

from .admin import KafkaAdmin
from .mirror_records import KEY, PROMOTED, Notes, TargetTopic, read_note
from .records import AdminError, Partition

WELL_BELOW = 1 << 19
"""The epochs of own records are less than this below the leader's, those of mirrored ones are more."""


def target_topics(admin: KafkaAdmin, names: Collection[str] | None) -> dict[str, TargetTopic]:
    """Those of these topics that exist, or all but internal ones. Raises AdminError."""
    described = {name: topic for name, topic in admin.described(names).items() if not name.startswith("__")}
    if not described:
        return {}
    settings = admin.call(lambda client: client.configs(ResourceType.TOPIC, described, [KEY, PROMOTED]))
    values = {name: {one.name: one.value or "" for one in settings.get(name, ())} for name in described}
    return {
        name: TargetTopic(
            name,
            uuid_text(topic.topic_id),
            len(topic.partitions),
            values[name].get(KEY, ""),
            requests_of(values[name][PROMOTED]) if PROMOTED in values[name] else None,
        )
        for name, topic in described.items()
    }


def notes_of(admin: KafkaAdmin, groups: Collection[str]) -> dict[str, Notes]:
    """The notes of workers, by their group. Raises AdminError."""
    found: dict[str, Notes] = {group: {} for group in groups}
    for group, offsets in admin.committed_entries(groups).items():
        for partition, entry in offsets.items():
            if (note := read_note(entry.metadata)) is not None:
                found[group][partition] = note
    return found


@dataclass(frozen=True, slots=True)
class MirroredEnds:
    """Where the mirrored records of promoted topics end. A leader epoch that is too small to tell gives no end.

    ``pending``: partitions whose leader has not heard of the promotion yet. ``leaderless``: partitions for which no
    broker answers as the leader, perhaps only until one is elected.
    """

    ends: dict[Partition, int] = field(default_factory=dict)
    pending: list[Partition] = field(default_factory=list)
    leaderless: list[Partition] = field(default_factory=list)


def mirrored_ends(admin: KafkaAdmin, topics: Collection[str]) -> MirroredEnds:
    """Raises AdminError."""
    found = MirroredEnds()
    by_node: dict[int, dict[Partition, int]] = {}
    for name, topic in admin.described(topics).items():
        for partition in topic.partitions:
            where = Partition(name, partition.partition_index)
            if partition.leader_id >= 0:
                by_node.setdefault(partition.leader_id, {})[where] = partition.leader_epoch
            else:
                found.leaderless.append(where)
    for node, epochs in by_node.items():
        try:
            replicas = _replicas_at(admin, node, {where.topic for where in epochs})
            found.pending.extend(where for where in epochs if where.topic in replicas)
            led = {where: epoch for where, epoch in epochs.items() if where.topic not in replicas}
            ends, refused = _ends_at(admin, node, led)
        except AdminError:  # this broker does not answer: its partitions will have another leader
            found.pending.extend(where for where in epochs if where not in found.pending)
        else:
            found.ends.update(ends)
            found.leaderless.extend(refused)
    return found


def _replicas_at(admin: KafkaAdmin, node: int, topics: Collection[str]) -> set[str]:
    """Those of these topics that are still replicas for this broker."""
    found = admin.call(lambda client: client.configs(ResourceType.TOPIC, sorted(topics), [KEY], broker=node))
    return {name for name, entries in found.items() for entry in entries if entry.value}


def _ends_at(
    admin: KafkaAdmin, node: int, epochs: Mapping[Partition, int]
) -> tuple[dict[Partition, int], list[Partition]]:
    """Ends, and partitions for which the broker does not answer as the leader. The log's end first: where the second
    answer says that there are no own records, it is the end of mirrored ones."""
    logs = _ends_of_epochs(admin, node, epochs)
    lower = {where: epoch - WELL_BELOW for where, epoch in epochs.items() if epoch >= WELL_BELOW}
    mirrored = _ends_of_epochs(admin, node, lower)
    refused = [where for where in epochs if where not in logs or (where in lower and where not in mirrored)]
    ends = {
        where: mirrored[where] if mirrored.get(where, -1) >= 0 else end
        for where, end in logs.items()
        if where not in refused and (end == 0 or (end > 0 and where in mirrored))
    }
    return ends, refused


def _ends_of_epochs(admin: KafkaAdmin, node: int, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
    """Where epochs end, of partitions that the broker leads; -1: the log has neither this epoch nor a later one."""
    found = admin.call(lambda client: client.ends_of_epochs(node, epochs))
    return {Partition(*partition): end for partition, end in found.items()}

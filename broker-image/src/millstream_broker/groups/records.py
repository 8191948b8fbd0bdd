"""Kafka's records of the internal topic __consumer_offsets.

A key and a value each begin with an int16, the version of the rest, which is encoded like the
protocol's structs (value versions from 4 on in KIP-482's forms). A null value is a tombstone: the offset, or the
group, is deleted. The key's version tells the kind of record:

    0, 1   a committed offset: OffsetCommitKey, OffsetCommitValue
    2      a group: GroupMetadataKey, GroupMetadataValue
    else   records of newer kinds of group; skipped

Values are read in versions 0 to 4. They are written as Kafka 4.3 does: version 4 for an offset, 1 for one with its own
expiry, 3 for a group. Source: group-coordinator/src/main/resources/common/message of Apache Kafka.

A position belongs to a topic id, not to a name: version 4 has the id as a tagged field. Kafka fills it in for commits
that name the topic by id, Millstream for all. Version 1 has no field for it (see `offsets` for positions without).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millstream_kafka.batch import NO_PRODUCER, BatchHeader, Buffer
from millstream_kafka.control_batch import read_marker
from millstream_kafka.protocol.codec import Codec
from millstream_kafka.protocol.schema import (
    Bytes,
    Struct,
    array,
    bytes_,
    int32,
    int64,
    string,
    uuid_,
)

from ..coordinator.effects import KeyValue
from ..coordinator.partitioner import partition_for
from ..coordinator.replay import Skipped, replay
from .group import CommittedOffset, Group, GroupState, Member

_VERSION = struct.Struct(">h")


class OffsetCommitKey(Struct):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Struct):
    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=-1)
    topic_id: uuid.UUID = uuid_(since=4, tag=0)


class GroupMetadataKey(Struct):
    group: str = string()


class MemberMetadata(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3, default=None)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(since=1, default=-1)
    session_timeout: int = int32()
    subscription: Bytes = bytes_()
    assignment: Bytes = bytes_()


class GroupMetadataValue(Struct):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable=0, default=None)
    leader: str | None = string(nullable=0, default=None)
    current_state_timestamp: int = int64(since=2, default=-1)
    members: list[MemberMetadata] = array(MemberMetadata)


_OFFSET_KEY, _GROUP_KEY = Codec(OffsetCommitKey), Codec(GroupMetadataKey)
_OFFSET_VALUE, _GROUP_VALUE = Codec(OffsetCommitValue, flexible=4), Codec(GroupMetadataValue, flexible=4)
_OFFSET_KEY_VERSION = 1
_OFFSET_KEY_VERSIONS = (0, _OFFSET_KEY_VERSION)
_GROUP_KEY_VERSION = 2
_OFFSET_VALUE_VERSION = 4
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
_GROUP_VALUE_VERSION = 3
_VALUE_VERSIONS = range(5)
BEFORE_ANY_WRITE = -(2**62)
"""`CommittedOffset.written` of what is loaded begins here, and rises with the place in the log."""


def java_length(text: str) -> int:
    """Java's String.length: UTF-16 code units."""
    return len(text.encode("utf-16-be", "surrogatepass")) // 2


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset | None) -> KeyValue:
    """The record of a committed offset, or, for None, its tombstone."""
    key = _VERSION.pack(_OFFSET_KEY_VERSION) + _OFFSET_KEY.encode(
        _OFFSET_KEY_VERSION, OffsetCommitKey(group_id, topic, partition)
    )
    if committed is None:
        return key, None
    version = _OFFSET_VALUE_VERSION_WITH_EXPIRY if committed.has_expiry else _OFFSET_VALUE_VERSION
    value = OffsetCommitValue(
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
        committed.commit_timestamp,
        committed.expire_timestamp,
        committed.topic_id,
    )
    return key, _VERSION.pack(version) + _OFFSET_VALUE.encode(version, value)


def group_tombstone(group_id: str) -> KeyValue:
    key = _GROUP_KEY.encode(_GROUP_KEY_VERSION, GroupMetadataKey(group_id))
    return _VERSION.pack(_GROUP_KEY_VERSION) + key, None


def group_record(group: Group, assignments: Mapping[str, bytes] | None = None) -> KeyValue:
    """The record of the present group, or with the assignments that it will have once this record is stored."""
    members = [
        MemberMetadata(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata(group.protocol),
            member.assignment if assignments is None else assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        group.protocol_type or "",
        group.generation,
        group.protocol,
        group.leader,
        group.state_timestamp,
        members,
    )
    key, _ = group_tombstone(group.group_id)
    return key, _VERSION.pack(_GROUP_VALUE_VERSION) + _GROUP_VALUE.encode(_GROUP_VALUE_VERSION, value)


@dataclass(slots=True)
class LoadedGroups:
    """The groups of a partition, and the unreadable parts of its log."""

    groups: list[Group] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)

    def __len__(self) -> int:
        return len(self.groups)


def read_groups(
    batches: Iterable[Buffer], partition: int | None = None, partitions: int | None = None
) -> LoadedGroups:
    """The groups in a partition's batches, in the order of the log: later records replace earlier ones.

    If ``partition`` and ``partitions`` are given, groups that belong to another partition are skipped: they would
    replace the true ones.
    """
    loaded = LoadedGroups()
    groups: dict[str, Group] = {}
    offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
    transactional: dict[int, dict[str, dict[tuple[str, int], CommittedOffset]]] = {}
    strangers: dict[str, bool] = {}
    producer_id, place = NO_PRODUCER, BEFORE_ANY_WRITE
    """Of the open transaction that the present batch belongs to; the place of its record in the log."""

    def begin(header: BatchHeader, batch: Buffer) -> None:
        nonlocal producer_id
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        if header.is_control and (marker := read_marker(batch)) is not None:
            for group_id, ended in transactional.pop(producer_id, {}).items():
                committed = offsets.setdefault(group_id, {})
                for topic_partition, offset in ended.items() if marker.committed else ():
                    if (
                        topic_partition not in committed
                        or committed[topic_partition].written < offset.written
                    ):
                        committed[topic_partition] = offset

    def check_is_here(group_id: str) -> None:
        if partitions is None:
            return
        if group_id not in strangers:
            strangers[group_id] = partition_for(group_id, partitions) != partition
        if strangers[group_id]:
            raise ValueError(f"group {group_id!r} belongs in partition {partition_for(group_id, partitions)}")

    def apply(key: bytes, value: bytes | None) -> None:
        nonlocal place
        (version,) = _VERSION.unpack_from(key)
        if version in _OFFSET_KEY_VERSIONS:
            offset_key = _OFFSET_KEY.decode(version, key, 2)
            check_is_here(offset_key.group)
            if offset_key.partition < 0:
                raise ValueError(f"partition {offset_key.partition}")
            topic_partition = offset_key.topic, offset_key.partition
            place += 1
            if value is not None and producer_id != NO_PRODUCER:
                of_producer = transactional.setdefault(producer_id, {}).setdefault(offset_key.group, {})
                of_producer[topic_partition] = _read_offset(value, place)
            elif value is not None:
                offsets.setdefault(offset_key.group, {})[topic_partition] = _read_offset(value, place)
            elif producer_id == NO_PRODUCER:  # a transactional tombstone deletes nothing
                offsets.get(offset_key.group, {}).pop(topic_partition, None)
                for by_group in transactional.values():
                    by_group.get(offset_key.group, {}).pop(topic_partition, None)
        elif version == _GROUP_KEY_VERSION:
            group_id = _GROUP_KEY.decode(version, key, 2).group
            check_is_here(group_id)
            if value is None:
                groups.pop(group_id, None)
            else:
                groups[group_id] = _read_group(group_id, value)
        else:
            raise ValueError(f"key version {version} is not known")

    replay(batches, apply, loaded.skipped, begin)
    for producer_id, by_group in transactional.items():
        for group_id, opened in by_group.items():
            if opened:
                group = groups.setdefault(group_id, Group(group_id))
                group.transactional_offsets[producer_id] = opened
    for group_id, committed in offsets.items():
        if committed:
            groups.setdefault(group_id, Group(group_id)).offsets = committed
    loaded.groups = list(groups.values())
    return loaded


def _value_version(value: bytes) -> int:
    version: int = _VERSION.unpack_from(value)[0]
    if version not in _VALUE_VERSIONS:
        raise ValueError(f"value version {version} is not known")
    return version


def _read_offset(value: bytes, place: int) -> CommittedOffset:
    read = _OFFSET_VALUE.decode(_value_version(value), value, 2)
    return CommittedOffset(
        read.offset,
        read.leader_epoch,
        read.metadata,
        read.commit_timestamp,
        read.expire_timestamp,
        read.topic_id,
        place,
    )


def _read_group(group_id: str, value: bytes) -> Group:
    read = _GROUP_VALUE.decode(_value_version(value), value, 2)
    if read.generation < 0:
        raise ValueError(f"group {group_id!r} has generation {read.generation}")
    group = Group(group_id, generation=read.generation, protocol=read.protocol)
    for each in read.members:
        if each.member_id in group.members or each.group_instance_id in group.static:
            raise ValueError(f"group {group_id!r} has member {each.member_id!r} twice")
        member = Member(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            each.session_timeout,
            # Version 0 had one timeout for both.
            each.rebalance_timeout if each.rebalance_timeout >= 0 else each.session_timeout,
            protocols=((read.protocol or "", bytes(each.subscription)),),
            assignment=bytes(each.assignment),
        )
        group.add(member, read.protocol_type)
    group.protocol_type = read.protocol_type or None
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    group.state_timestamp = read.current_state_timestamp
    group.note_subscriptions()
    if read.leader in group.members:
        group.leader = read.leader
    return group

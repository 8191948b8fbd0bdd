"""Kafka's records of the internal topic __consumer_offsets.

A key and a value each begin with an int16, the version of what follows; the rest is written as the protocol
writes structs (value versions from 4 on in KIP-482's forms). A null value is a tombstone: the offset, or the
group, is gone. What a key's version says it is:

    0, 1   a committed offset: OffsetCommitKey, OffsetCommitValue
    2      a group: GroupMetadataKey, GroupMetadataValue
    else   records of newer kinds of group; not ours, skipped

Values are read in versions 0 to 4. Written is what Kafka 4.1 writes: 4 of an offset, 1 of one with an expiry of its
own, 3 of a group. Source: group-coordinator/src/main/resources/common/message of Apache Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from ..log.batch import Buffer, read_header, read_records
from ..protocol.codec import Codec
from ..protocol.schema import Bytes, MalformedRequest, Struct, array, bytes_, int32, int64, string
from .group import CommittedOffset, Group, GroupState, Member

KeyValue = tuple[bytes, bytes | None]
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
_OFFSET_KEY_VERSIONS = (0, 1)
_GROUP_KEY_VERSION = 2
_OFFSET_VALUE_VERSION = 4
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
_GROUP_VALUE_VERSION = 3
_VALUE_VERSIONS = range(5)


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, in 32 signed bits."""
    result = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - (1 << 32) if result & 0x80000000 else result


def java_length(text: str) -> int:
    """Java's String.length: UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2


def partition_for(group_id: str, partitions: int) -> int:
    """The partition of __consumer_offsets that holds the group (Kafka's Utils.abs: the least integer becomes 0)."""
    value = java_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset | None) -> KeyValue:
    """The record of a committed offset; of None, its tombstone."""
    key = _VERSION.pack(1) + _OFFSET_KEY.encode(1, OffsetCommitKey(group_id, topic, partition))
    if committed is None:
        return key, None
    version = _OFFSET_VALUE_VERSION if committed.expire_timestamp < 0 else _OFFSET_VALUE_VERSION_WITH_EXPIRY
    value = OffsetCommitValue(
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
        committed.commit_timestamp,
        committed.expire_timestamp,
    )
    return key, _VERSION.pack(version) + _OFFSET_VALUE.encode(version, value)


def group_tombstone(group_id: str) -> KeyValue:
    return _VERSION.pack(_GROUP_KEY_VERSION) + _GROUP_KEY.encode(2, GroupMetadataKey(group_id)), None


def group_record(group: Group, assignments: Mapping[str, bytes] | None = None) -> KeyValue:
    """The group as it is, or with the assignments that it will have once this record is stored."""
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


def read_groups(batches: Iterable[Buffer]) -> list[Group]:
    """The groups that a partition's batches tell of, in the order of the log: later records replace earlier ones.

    ValueError, naming the record's offset, where a record cannot be read.
    """
    groups: dict[str, Group] = {}
    offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
    for batch in batches:
        if read_header(batch).is_control:
            continue
        for record in read_records(batch):
            try:
                _apply(record.key or b"", record.value, groups, offsets)
            except (MalformedRequest, struct.error, ValueError) as error:
                raise ValueError(f"record at offset {record.offset} of __consumer_offsets: {error}") from None
    for group_id, committed in offsets.items():
        if committed:
            groups.setdefault(group_id, Group(group_id)).offsets = committed
    return list(groups.values())


def _apply(
    key: bytes,
    value: bytes | None,
    groups: dict[str, Group],
    offsets: dict[str, dict[tuple[str, int], CommittedOffset]],
) -> None:
    (version,) = _VERSION.unpack_from(key)
    if version in _OFFSET_KEY_VERSIONS:
        of = _OFFSET_KEY.decode(version, key, 2)
        committed = offsets.setdefault(of.group, {})
        if value is None:
            committed.pop((of.topic, of.partition), None)
        else:
            committed[of.topic, of.partition] = _read_offset(value)
    elif version == _GROUP_KEY_VERSION:
        group_id = _GROUP_KEY.decode(version, key, 2).group
        if value is None:
            groups.pop(group_id, None)
        else:
            groups[group_id] = _read_group(group_id, value)


def _value_version(value: bytes) -> int:
    version: int = _VERSION.unpack_from(value)[0]
    if version not in _VALUE_VERSIONS:
        raise ValueError(f"value version {version} is not known")
    return version


def _read_offset(value: bytes) -> CommittedOffset:
    read = _OFFSET_VALUE.decode(_value_version(value), value, 2)
    return CommittedOffset(
        read.offset, read.leader_epoch, read.metadata, read.commit_timestamp, read.expire_timestamp
    )


def _read_group(group_id: str, value: bytes) -> Group:
    read = _GROUP_VALUE.decode(_value_version(value), value, 2)
    group = Group(group_id, generation=read.generation, protocol=read.protocol)
    for each in read.members:
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

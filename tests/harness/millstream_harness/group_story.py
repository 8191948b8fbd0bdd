"""One group on one broker, of either kind, and its story: each member's requests and responses, in order.

A script directs the members of a ``Story``; played on two brokers it gives two stories that must be equal, and two
lists of records in `__consumer_offsets` that must be equal, too. Values that must differ are renamed: a member id is
called after its member (``a#1`` is the first id of member ``a``), a time of day is ``now``.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from millstream_broker.coordinator.partitioner import partition_for
from millstream_broker.groups import records as formats
from millstream_kafka.batch import read_header, read_records
from millstream_kafka.protocol import (
    delete_groups,
    delete_topics,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from millstream_kafka.protocol.codec import Codec
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID

from .scenario import eventually
from .wire import Wire, fetch_request

OFFSETS_TOPIC = "__consumer_offsets"
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NOT_READY = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}
Position = tuple[str, int, int, str]
"""Topic, partition, offset, metadata."""


def error(code: int) -> str:
    return ErrorCode.of(code).name


class Story:
    """The group, seen over a separate connection, and its members by name."""

    def __init__(self, bootstrap: str, group_id: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.group_id = group_id
        self.partition = partition_for(group_id, partitions)
        self._lines: list[tuple[Any, ...]] = []
        self.names: dict[str, str] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}
        """Ids of topics that were created here."""
        self.named_topics: dict[str, uuid.UUID] = {}
        """The topic ids in positions of `__consumer_offsets`."""
        self.members: list[Member] = []
        self.wire = Wire(bootstrap, "outsider")
        eventually(self._coordinator_error, lambda code: code not in _NOT_READY, "the coordinator")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.wire.socket.close()
        self.wire.socket.close()

    def reconnect(self, bootstrap: str) -> None:
        """The broker was restarted: all reconnect to its new address."""
        self.bootstrap = bootstrap
        for member in self.members:
            member.wire.socket.close()
            member.wire = Wire(bootstrap, member.wire.client_id)
        self.wire.socket.close()
        self.wire = Wire(bootstrap, "outsider")
        eventually(self._coordinator_error, lambda code: code not in _NOT_READY, "the coordinator")

    def _coordinator_error(self) -> ErrorCode:
        asked = find_coordinator.FindCoordinatorRequest(self.group_id, 0, [self.group_id])
        found = self.wire.call(find_coordinator.API, 3, asked)
        if found.error_code:
            return ErrorCode.of(found.error_code)
        return ErrorCode.of(self._describe().error_code)

    def create(self, *topics: str) -> None:
        """Create topics by Metadata requests, repeated until they exist."""
        asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=name) for name in topics])
        found = eventually(
            lambda: self.wire.call(metadata.API, 12, asked).topics,
            lambda found: all(each.error_code == 0 for each in found),
            f"topics on {self.bootstrap}",
        )
        self.topic_ids |= {each.name: each.topic_id for each in found if each.name is not None}

    def tell(self, *line: Any) -> None:
        self._lines.append(line)

    @property
    def lines(self) -> list[tuple[Any, ...]]:
        """The whole story, with names of members instead of ids."""
        return [self._named(line) for line in self._lines]

    def _named(self, told: Any) -> Any:
        if isinstance(told, str):
            return self.names.get(told, told)
        if isinstance(told, dict):
            return dict(sorted((self._named(key), self._named(value)) for key, value in told.items()))
        return type(told)(map(self._named, told)) if isinstance(told, tuple | list) else told

    def member(self, name: str, instance: str | None = None) -> Member:
        member = Member(self, name, Wire(self.bootstrap, f"client-{name}"), instance)
        self.members.append(member)
        return member

    # ---- the group from outside

    def _describe(self) -> describe_groups.DescribedGroup:
        asked = describe_groups.DescribeGroupsRequest([self.group_id])
        return self.wire.call(describe_groups.API, 5, asked).groups[0]

    def describe(self) -> None:
        found = self._describe()
        members = {
            each.member_id: (
                each.group_instance_id,
                each.client_id,
                each.client_host,
                bytes(each.member_metadata),
                bytes(each.member_assignment),
            )
            for each in found.members
        }
        self.tell("described", found.group_state, found.protocol_type, found.protocol_data, members)

    def until(self, state: str, members: int) -> None:
        """Wait until the group is in this state with this many members."""
        eventually(
            lambda: (found := self._describe()).group_state + f" {len(found.members)}",
            lambda found: found == f"{state} {members}",
            f"the group of {self.bootstrap}",
        )

    def listed(self) -> None:
        found = self.wire.call(list_groups.API, 4, list_groups.ListGroupsRequest())
        self.tell(
            "listed", *((e.protocol_type, e.group_state) for e in found.groups if e.group_id == self.group_id)
        )

    def commit(
        self,
        *positions: Position,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        retention_ms: int = -1,
        version: int = 8,
        epoch: int = 0,
    ) -> None:
        topics: dict[str, list[offset_commit.OffsetCommitRequestPartition]] = {}
        for topic, partition, offset, note in positions:
            one = offset_commit.OffsetCommitRequestPartition(
                partition, offset, epoch if version >= 6 else -1, note
            )
            topics.setdefault(topic, []).append(one)
        request = offset_commit.OffsetCommitRequest(
            self.group_id,
            generation,
            member_id,
            instance,
            retention_ms if version < 5 else -1,
            [offset_commit.OffsetCommitRequestTopic(name, partitions=some) for name, some in topics.items()],
        )
        answer = self.wire.call(offset_commit.API, version, request)
        errors = [
            (t.name, p.partition_index, error(p.error_code)) for t in answer.topics for p in t.partitions
        ]
        self.tell("committed by", member_id, sorted(errors))

    def positions(self, asked: Mapping[str, list[int]] | None) -> list[tuple[Any, ...]]:
        topics = None
        if asked is not None:
            topics = [
                offset_fetch.OffsetFetchRequestTopics(name, partition_indexes=indexes)
                for name, indexes in asked.items()
            ]
        request = offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(self.group_id, topics=topics)]
        )
        (found,) = self.wire.call(offset_fetch.API, 8, request).groups
        assert found.error_code == 0
        return sorted(
            (each.name, one.partition_index, one.committed_offset, one.committed_leader_epoch, one.metadata)
            for each in found.topics
            for one in each.partitions
        )

    def committed(self, asked: Mapping[str, list[int]] | None = None) -> None:
        self.tell("positions", self.positions(asked))

    def until_committed(self, *topics: str) -> None:
        """Wait until there are positions of these topics and no others."""
        eventually(
            lambda: {each[0] for each in self.positions(None)},
            lambda found: found == set(topics),
            "positions",
        )

    def until_gone(self) -> None:
        eventually(lambda: self._describe().group_state, lambda state: state == "Dead", "the group")

    def forget(self, *topics: str) -> None:
        partitions = [offset_delete.OffsetDeleteRequestPartition(index) for index in (0, 1)]
        asked = [offset_delete.OffsetDeleteRequestTopic(topic, partitions) for topic in topics]
        answer = self.wire.call(offset_delete.API, 0, offset_delete.OffsetDeleteRequest(self.group_id, asked))
        errors = [
            (t.name, p.partition_index, error(p.error_code)) for t in answer.topics for p in t.partitions
        ]
        self.tell("forgotten", error(answer.error_code), sorted(errors))

    def delete(self) -> None:
        answer = self.wire.call(delete_groups.API, 2, delete_groups.DeleteGroupsRequest([self.group_id]))
        self.tell("deleted", [error(each.error_code) for each in answer.results])

    def delete_topic(self, topic: str) -> None:
        state = delete_topics.DeleteTopicState(name=topic)
        answer = self.wire.call(
            delete_topics.API, 6, delete_topics.DeleteTopicsRequest([state], timeout_ms=10_000)
        )
        assert answer.responses[0].error_code == 0

    def leave(self, *leaving: tuple[str, str | None]) -> None:
        """Remove members, as an administrator does: by their ids, or by group.instance.id alone."""
        asked = [leave_group.MemberIdentity(member_id, instance) for member_id, instance in leaving]
        answer = self.wire.call(leave_group.API, 5, leave_group.LeaveGroupRequest(self.group_id, "", asked))
        members = [(e.member_id, e.group_instance_id, error(e.error_code)) for e in answer.members]
        self.tell("left", error(answer.error_code), members)

    # ---- its records

    def records(self) -> list[tuple[Any, ...]]:
        """The group's records in `__consumer_offsets`, in the log's order except for consecutive tombstones.

        AssertionError if our formats would encode a record differently, if only by a byte.
        """
        found = [self._read(key, value) for key, value in self._raw_records()]
        of_group = [record for record in found if record is not None]
        ordered: list[tuple[Any, ...]] = []
        tombstones: list[tuple[Any, ...]] = []
        for record in [*of_group, ()]:
            if record and record[-1] is None:
                tombstones.append(record)
                continue
            ordered += sorted(tombstones)
            tombstones = []
            if record:
                ordered.append(record)
        return ordered

    def _raw_records(self) -> Iterator[tuple[bytes, bytes | None]]:
        offset, end = 0, self.wire.end_offset(OFFSETS_TOPIC, self.partition)
        while offset < end:
            answer = self.wire.call(fetch.API, 12, fetch_request(OFFSETS_TOPIC, offset, self.partition))
            fetched: Any = answer.responses[0].partitions[0].records
            data = bytes(fetched or b"")
            position = 0
            while position < len(data):
                batch = data[position : position + read_header(data[position:]).size]
                position += len(batch)
                for record in read_records(batch):
                    offset = record.offset + 1
                    yield record.key or b"", record.value

    def _read(self, key: bytes, value: bytes | None) -> tuple[Any, ...] | None:
        kind = int.from_bytes(key[:2], "big")
        of_offset = kind in formats._OFFSET_KEY_VERSIONS
        key_codec: Codec[Any] = formats._OFFSET_KEY if of_offset else formats._GROUP_KEY
        value_codec: Codec[Any] = formats._OFFSET_VALUE if of_offset else formats._GROUP_VALUE
        named = key_codec.decode(kind, key, 2)
        assert key == key[:2] + key_codec.encode(kind, named)
        if named.group != self.group_id:
            return None
        about = ("position", named.topic, named.partition) if of_offset else ("group",)
        if value is None:
            return *about, None
        version = int.from_bytes(value[:2], "big")
        read = value_codec.decode(version, value, 2)
        assert value == value[:2] + value_codec.encode(version, read), f"{self.bootstrap} {about}: {value!r}"
        if of_offset and read.topic_id != ZERO_UUID:
            # Kafka stores the topic's id only if the client named it, Millstream always: no story mentions it.
            self.named_topics[named.topic] = read.topic_id
            assert read.topic_id == self.topic_ids.get(named.topic, read.topic_id)
            read.topic_id = ZERO_UUID
        return *about, f"v{version}", self._plain(read)

    def _plain(self, struct: Any) -> dict[str, Any]:
        return {name: self._normal(name, getattr(struct, name)) for name, _ in type(struct).FIELDS}

    def _normal(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return sorted((self._plain(each) for each in value), key=lambda each: str(each["member_id"]))
        if isinstance(value, memoryview | bytes):
            return bytes(value)
        if isinstance(value, str):
            return self.names.get(value, value)
        if name.endswith("timestamp") and abs(value - time.time() * 1000) < 60_000:
            return "now"
        return value


@dataclass(eq=False)
class Member:
    """A member with its own connection, because a broker handles a connection's requests one after the other."""

    story: Story
    label: str
    wire: Wire
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    protocol_type: str = "consumer"
    protocol: str | None = None
    offered: dict[str, bytes] = field(default_factory=lambda: {"range": b"r"})
    ids: int = 0

    def join(
        self,
        version: int = 9,
        *,
        session_ms: int = 60_000,
        rebalance_ms: int = 60_000,
        protocol_type: str = "consumer",
        **protocols: bytes,
    ) -> Self:
        """Send JoinGroup; ``joined`` waits for the response."""
        self.protocol_type = protocol_type
        self.offered = protocols or self.offered
        offered = [join_group.JoinGroupRequestProtocol(*each) for each in self.offered.items()]
        self.wire.send(
            join_group.API,
            version,
            join_group.JoinGroupRequest(
                self.story.group_id,
                session_ms,
                rebalance_ms if version >= 1 else -1,
                self.member_id,
                self.instance,
                protocol_type,
                offered,
            ),
        )
        return self

    def joined(self) -> Self:
        answer: join_group.JoinGroupResponse = self._receive("JoinGroup")
        if answer.member_id and answer.member_id not in self.story.names:
            prefix = self.instance or self.wire.client_id
            assert re.fullmatch(f"{prefix}-{_UUID}", answer.member_id), answer.member_id
            self.ids += 1
            self.story.names[answer.member_id] = f"{self.label}#{self.ids}"
        if answer.member_id:
            self.member_id = answer.member_id
        self.generation = answer.generation_id
        self.protocol = answer.protocol_name
        self.story.tell(
            f"{self.label} joined",
            error(answer.error_code),
            answer.member_id,
            answer.generation_id,
            answer.protocol_type,
            answer.protocol_name,
            "leader",
            answer.leader,
            answer.skip_assignment,
            {each.member_id: (each.group_instance_id, bytes(each.metadata)) for each in answer.members},
        )
        return self

    def enter(self, **options: Any) -> Self:
        """Join as a new member: a dynamic member gets its id first; then the join waits."""
        self.join(**options)
        if self.instance is None:
            self.joined()
            self.join(**options)
        return self

    def _receive(self, what: str) -> Any:
        try:
            return self.wire.receive()
        except TimeoutError:
            told = "\n".join(map(str, self.story.lines))
            raise AssertionError(
                f"{self.label} waits in vain for {what} of {self.story.bootstrap} after\n{told}"
            ) from None

    def sync(
        self,
        *,
        generation: int | None = None,
        kind: str | None = "",
        protocol: str | None = "",
        **assignments: bytes,
    ) -> Self:
        """Send SyncGroup; ``assignments`` by the labels of members. An empty type or name means the member's own."""
        ids = {member.label: member.member_id for member in self.story.members}
        handed_in = [
            sync_group.SyncGroupRequestAssignment(ids[who], what) for who, what in assignments.items()
        ]
        self.wire.send(
            sync_group.API,
            5,
            sync_group.SyncGroupRequest(
                self.story.group_id,
                self.generation if generation is None else generation,
                self.member_id,
                self.instance,
                self.protocol_type if kind == "" else kind,
                self.protocol if protocol == "" else protocol,
                handed_in,
            ),
        )
        return self

    def synced(self) -> Self:
        answer: sync_group.SyncGroupResponse = self._receive("SyncGroup")
        said = error(answer.error_code), answer.protocol_type, answer.protocol_name, bytes(answer.assignment)
        self.story.tell(f"{self.label} synced", *said)
        return self

    def _heartbeat(self, generation: int | None = None) -> str:
        number = self.generation if generation is None else generation
        request = heartbeat.HeartbeatRequest(self.story.group_id, number, self.member_id, self.instance)
        return error(self.wire.call(heartbeat.API, 4, request).error_code)

    def heartbeat(self, generation: int | None = None) -> Self:
        self.story.tell(f"{self.label} heartbeat", self._heartbeat(generation))
        return self

    def heartbeat_until(self, wanted: str, meanwhile: Callable[[], Any] = lambda: None) -> Self:
        """Send heartbeats until a response has this error."""
        eventually(lambda: (meanwhile(), self._heartbeat())[1], lambda said: said == wanted, f"{self.label}")
        self.story.tell(f"{self.label} heartbeat", wanted)
        return self

    def commit(self, *positions: Position, generation: int | None = None) -> Self:
        self.story.commit(
            *positions,
            member_id=self.member_id,
            generation=self.generation if generation is None else generation,
            instance=self.instance,
        )
        return self

    def leave(self) -> Self:
        self.story.leave((self.member_id, self.instance))
        return self


def assemble(*members: Member, **options: Any) -> None:
    """A stable group of new members, the first of which leads."""
    story = members[0].story
    for count, newcomer in enumerate(members, 1):
        newcomer.enter(**options)
        if count > 1:
            story.until("PreparingRebalance", count)
        for member in members[: count - 1]:
            member.join(**options)
        for member in members[:count]:
            member.joined()
    for member in members[1:]:
        member.sync()
    assignments: dict[str, Any] = {member.label: b"for " + member.label.encode() for member in members}
    members[0].sync(**assignments)
    for member in members:
        member.synced()

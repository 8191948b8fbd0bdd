"""Our own client, for what other clients hide: a topic's id, and positions without a group membership."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Self

from millstream_kafka.batch import Record, iter_batches, read_records
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.client.security import Security
from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.protocol import fetch, list_offsets, metadata, offset_commit, offset_fetch
from millstream_kafka.protocol.errors import ApiError, ErrorCode

EARLIEST = -2
LATEST = -1
READ_COMMITTED = 1
TIMEOUT_S = 5.0
FETCHED_BYTES = 65_536


class Known(NamedTuple):
    """The topic that a name currently refers to."""

    id: str
    partitions: int


class Probe:
    """Its methods raise ApiError for a response's error, BrokerError without a response."""

    def __init__(self, bootstrap: str, name: str, security: Security | None = None) -> None:
        connect_s = 1.0 if security is None else 3.0
        self.client = ClusterClient(
            bootstrap, name, timeout=TIMEOUT_S, connect_timeout=connect_s, security=security
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.client.close()

    async def described(self, name: str) -> metadata.MetadataResponseTopic:
        """A topic's metadata, perhaps with an error. Raises BrokerError, ApiError."""
        answer = await self.client.metadata([name])
        return next(one for one in answer.topics if one.name == name)

    async def topic(self, name: str) -> Known | None:
        """The topic of this name; None if there is none or no broker responds."""
        try:
            answer = await self.client.metadata([name])
        except (BrokerError, ApiError):
            return None
        known = [one for one in answer.topics if one.name == name and not one.error_code and one.partitions]
        return Known(uuid_text(known[0].topic_id), len(known[0].partitions)) if known else None

    async def offset(self, name: str, partition: int, at: int, isolation: int = 0) -> int:
        """The offset at which a partition starts (EARLIEST) or ends (LATEST), at an isolation level."""
        wanted = list_offsets.ListOffsetsPartition(partition, -1, at)
        request = list_offsets.ListOffsetsRequest(
            -1, isolation, [list_offsets.ListOffsetsTopic(name, [wanted])]
        )
        answer = await self.client.call_leader(name, partition, list_offsets.API, request)
        found = answer.topics[0].partitions[0]
        self._check(found.error_code, name)
        return found.offset

    async def fetch(self, name: str, partition: int, offset: int, most_bytes: int) -> list[Record]:
        """The records available now, from an offset on."""
        wanted = fetch.FetchPartition(partition, -1, offset, partition_max_bytes=most_bytes)
        topics = [fetch.FetchTopic(name, partitions=[wanted])]
        request = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=most_bytes, topics=topics)
        answer = await self.client.call_leader(name, partition, fetch.BY_NAME, request)
        self._check(answer.error_code, name)
        found = answer.responses[0].partitions[0]
        self._check(found.error_code, name)
        data = memoryview(bytes(found.records) if isinstance(found.records, bytes | memoryview) else b"")
        batches = [data[at : at + header.size] for at, header in iter_batches(data)]
        return [record for batch in batches for record in read_records(batch) if record.offset >= offset]

    async def committed(self, group: str, name: str, partition: int) -> int:
        """A group's position; -1 means none."""
        wanted = [offset_fetch.OffsetFetchRequestTopics(name, partition_indexes=[partition])]
        request = offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(group, topics=wanted)]
        )
        answer = await self.client.call_coordinator(group, offset_fetch.BY_NAME, request)
        self._check_group(answer.groups[0].error_code, group)
        found = answer.groups[0].topics[0].partitions[0]
        self._check_group(found.error_code, group)
        return found.committed_offset

    async def commit(self, group: str, name: str, partition: int, offset: int) -> None:
        """Store a position of a group without members."""
        wanted = offset_commit.OffsetCommitRequestPartition(partition, offset, -1, None)
        topics = [offset_commit.OffsetCommitRequestTopic(name, partitions=[wanted])]
        request = offset_commit.OffsetCommitRequest(group, topics=topics)
        answer = await self.client.call_coordinator(group, offset_commit.BY_NAME, request)
        self._check_group(answer.topics[0].partitions[0].error_code, group)

    def _check(self, code: int, name: str) -> None:
        if code:
            self.client.forget_leaders(name)
            raise ApiError(ErrorCode.of(code), name)

    def _check_group(self, code: int, group: str) -> None:
        if code:
            self.client.forget_coordinator(group)
            raise ApiError(ErrorCode.of(code), group)

"""Fetch requests to one broker of the source, in a fetch session (KIP-227) if the broker grants one. No I/O.

In a session, a request names only partitions that changed since the last one, and a response only those with news:
thousands of idle partitions cost neither side much. A broker that has no room for a session, or is older, responds with
session 0; then each request names every partition.

If both sides know the ids of topics, requests contain these instead of names (KIP-516). Then no response has records of
a topic that was created under the name of a deleted one.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Mapping

from millstream_kafka.protocol import fetch
from millstream_kafka.protocol.api import Api
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    next_session_epoch,
)
from millstream_kafka.protocol.schema import ZERO_UUID
from millstream_kafka.topic_partition import TopicPartition, by_topic

FETCH_WAIT_MS = 250
PARTITION_BYTES = 1024 * 1024
NO_SESSION = -1
FetchPosition = tuple[int, int]
"""Offset to fetch from, and leader epoch."""


class FetchSession:
    def __init__(self, *, is_wanted: bool = True, is_committed: bool = True) -> None:
        """``is_wanted`` is False if the order of the partitions in a request matters.

        ``is_committed``: up to the end of finished transactions, and responses list which were aborted.
        """
        self._isolation_level = 1 if is_committed else 0
        self._begin = 0 if is_wanted else NO_SESSION
        self._held: dict[TopicPartition, tuple[int, int, int]] = {}
        self._id = 0
        self._epoch = self._begin
        self._ids: Mapping[str, uuid.UUID] = {}
        self._names: Mapping[uuid.UUID, str] = {}

    @property
    def is_partial(self) -> bool:
        """Whether a response leaves out partitions without news."""
        return self._id != 0

    def request(
        self,
        requested: Mapping[TopicPartition, FetchPosition],
        max_bytes: int,
        rack: str,
        ids: Mapping[str, uuid.UUID] | None = None,
        least: Mapping[TopicPartition, int] | None = None,
        *,
        wait_ms: int = FETCH_WAIT_MS,
    ) -> FetchRequest:
        """The next request, for exactly these partitions.

        ``ids``: those of all their topics, or None to use names. ``least``: the bytes of partitions that get fewer.
        ``wait_ms``: how long the broker may wait for the first record.
        """
        before = self._ids
        if before != (ids := ids or {}):
            if bool(before) != bool(ids) or any(
                before.get(name, topic_id) != topic_id for name, topic_id in ids.items()
            ):
                self._id, self._epoch = 0, self._begin
            self._ids, self._names = ids, {topic_id: name for name, topic_id in ids.items()}
        of_partition = min(PARTITION_BYTES, max_bytes)
        few = least or {}
        wanted = {
            where: (*position, min(of_partition, few.get(where, of_partition)))
            for where, position in requested.items()
        }
        held, self._held = self._held, wanted
        named: Mapping[TopicPartition, tuple[int, int, int]] = wanted
        forgotten: Iterable[TopicPartition] = ()
        if self.is_partial:
            named = {where: position for where, position in wanted.items() if held.get(where) != position}
            forgotten = held.keys() - wanted.keys()
        topics: dict[str, list[FetchPartition]] = {}
        for (topic, partition), (offset, epoch, size) in named.items():
            topics.setdefault(topic, []).append(
                FetchPartition(
                    partition, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=size
                )
            )
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=self._isolation_level,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=[
                FetchTopic(topic, self._ids.get(topic, ZERO_UUID), parts) for topic, parts in topics.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic, before.get(topic, ZERO_UUID), indexes)
                for topic, indexes in by_topic(forgotten).items()
            ],
            rack_id=rack,
        )

    def answered(self, response: FetchResponse) -> ErrorCode:
        """Process the response to the last request. With an error it has no partitions, and the next request names all.

        Fills in the topics' names if the response has ids.
        """
        if self._ids:
            for topic in response.responses:
                topic.topic = self._names.get(topic.topic_id, "")
        error = ErrorCode.of(response.error_code)
        if error or not response.session_id or self._begin == NO_SESSION:
            self._id, self._epoch = 0, self._begin
        else:
            self._id, self._epoch = response.session_id, next_session_epoch(self._epoch)
        return error


def by_id_or_name(
    version: int, topics: Mapping[str, str]
) -> tuple[Api[FetchRequest, FetchResponse], Mapping[str, uuid.UUID]]:
    """The API for the next request and the ids that it contains: none unless the broker accepts ids and all are known.

    ``version``: the highest that both sides speak. ``topics``: ids by name, "" if unknown.
    """
    if version < fetch.IDS_SINCE:
        return fetch.BY_NAME, {}
    ids = {}
    for name, topic_id in topics.items():
        if (found := _as_uuid(topic_id)) is None:
            return fetch.BY_NAME, {}
        ids[name] = found
    return fetch.API, ids


@functools.lru_cache(maxsize=100_000)
def _as_uuid(topic_id: str) -> uuid.UUID | None:
    """None for "", an unknown id."""
    return uuid.UUID(topic_id) if topic_id else None


def partitions_in(response: FetchResponse) -> set[TopicPartition]:
    return {(topic.topic, data.partition_index) for topic in response.responses for data in topic.partitions}

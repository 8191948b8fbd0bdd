"""Fetch sessions (KIP-227), through which consumers and followers read: lasting ones, and those for one request.

A session knows the partitions that a client fetches. Each request names those whose offset changed and those to forget;
each response contains those with news: records, an error, or a high watermark or log start that the client does
not know. Partitions notify their sessions of changes, so the cost of a request depends on the changes, not on the
number of partitions. A request without a session gets a session that ends with the response.

- Partitions are read in turn until `max_bytes` (or `fetch.max.bytes`) is reached. A batch is never cut: the first one
  in the response is sent even if it alone exceeds the limits (KIP-74), so that a client always makes progress, and an
  offset inside a batch returns the batch. Partitions that found no room come first the next time.
- With less than `min_bytes` the response waits, on the partitions and not on a timer: each partition is
  watched from the step that reads it until it changes, so a session misses no change.
- In each turn of the loop, a session reads some of many partitions (`slices`). Changes meanwhile count as if the
  response waited already.
- An error in any partition is sent at once. No wait outlasts `connections.max.idle.ms`: only the response may show
  whether the client is still there.

Since v13, requests have the ids of topics (KIP-516), so no client continues in a topic that was created under the name
of a deleted topic. Older requests have names.

A consumer reads only topics that it may read at that moment, by the rules of an authorizer (`authorize`). A change of
rules is noticed by the next request at the latest, and by a waiting response within moments (`rights_changed`).

A consumer reads up to the high watermark of the leader, or of a follower: the leader sends it to one in its
rack (KIP-392). With read_committed it reads up to the last stable offset, and gets the aborted transactions of the
range, whose records it skips; records of an open transaction do not end its wait. A follower reads up to the end of the
leader's log. Its fetch offset is its progress (`Partition.fetched`), unless the logs diverge, which the response then
reports (`divergence`).
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from typing import NamedTuple
from uuid import UUID

from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from millstream_kafka.topic_partition import TopicPartition

from ..log.files import NotCachedError
from ..runtime.steps import Steps, to_the_end
from .alter_partition import AlterPartitionManager
from .delayed_fetch import DelayedFetch
from .divergence import diverging_epoch
from .fetch_responses import current_leader, joined
from .fetch_rights import FetchRights
from .fetched_partition import FetchedPartition, Key
from .partition import Partition
from .replica import FetchWaiter, Replica
from .replicas import Replicas
from .selector import select

Answer = FetchResponse | Future[FetchResponse]
FULL, SESSIONLESS = 0, -1
"""Session epochs of requests that name all their partitions."""
CONSUMER = -1
"""A consumer's replica id; other negative ones are Kafka's debugging tools, which read like consumers."""
READ_COMMITTED = 1
UNKNOWN = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
"""Errors after which Kafka does not look for the partition."""
LOAD_S = 1.0
"""Minimum time that a response waits for existing records that must be looked up on disk."""
LOADS_AT_ONCE = 20
"""Partitions that threads look up at a time for one session: they have other work, too."""
AT_ONCE = 20
"""Partitions read in one step: each takes some ten microseconds."""


class FetchSettings(NamedTuple):
    """This broker's settings for fetches."""

    max_bytes: int
    """Limit of one response (`fetch.max.bytes`)."""
    max_wait_s: float
    """No response waits longer than a connection may be silent."""
    max_sessions: int
    """Limit of consumers' sessions (`max.incremental.fetch.session.cache.slots`)."""
    selects_by_rack: bool
    """Whether consumers are sent to replicas near them (KIP-392)."""


class Session:
    """The partitions that one client fetches. Each is watched, or due to be read, or both."""

    __slots__ = (
        "_aborted",
        "_alter_partition",
        "_delayed",
        "_due",
        "_fetched",
        "_is_closed",
        "_loading",
        "_meanwhile",
        "_rack",
        "_reads_followers",
        "_replicas",
        "_rights",
        "_settings",
        "by_id",
        "counted",
        "created",
        "epoch",
        "is_follower",
        "principal",
        "replica_id",
        "session_id",
        "used",
        "watches",
    )

    epoch: int
    """Epoch of the next request."""
    created: float
    used: float

    def __init__(
        self,
        replicas: Replicas,
        alter_partition: AlterPartitionManager,
        settings: FetchSettings,
        replica_id: int = CONSUMER,
        *,
        reads_followers: bool = False,
        by_id: bool = False,
        principal: str = "",
    ) -> None:
        """For one request; see `identify`. ``by_id``: requests contain ids of topics, not names.

        ``principal`` is the consumer's.
        """
        self.principal = principal
        self.session_id = 0
        self.replica_id = replica_id
        self.is_follower = replica_id >= 0
        self.by_id = by_id
        self._replicas = replicas
        self._alter_partition = alter_partition
        self._settings = settings
        self._rights: FetchRights | None = None
        """None: everything may be read."""
        self._aborted: list[AbortedTransaction] | None = None
        """The aborted transactions of a response without records: none; None if all records are read."""
        self._rack = ""
        """The consumer's rack, if it may be sent to a replica there."""
        self._reads_followers = reads_followers
        self.watches = False
        """Whether it watches partitions; a session for one request that does not wait does not."""
        self._fetched: dict[Key, FetchedPartition] = {}
        self._due: dict[FetchedPartition, None] = {}
        """Partitions to read for the next response, in the order of their changes."""
        self._delayed: DelayedFetch | None = None
        """The waiting request: one at most."""
        self._meanwhile: list[int] | None = None
        """The sizes passed to `advanced` while a request is handled; None at other times."""
        self._loading = 0
        """Partitions that threads load."""
        self._is_closed = False
        self.counted = 0
        """Number of partitions, by which the owner limits those of all sessions."""

    @property
    def size(self) -> int:
        return len(self._fetched)

    @property
    def is_over(self) -> bool:
        """Whether a consumer has forgotten all its partitions."""
        return not self._fetched and not self.is_follower and self.epoch > 1

    @property
    def is_busy(self) -> bool:
        """Whether a request is handled."""
        return self._meanwhile is not None

    def identify(self, session_id: int, now: float) -> None:
        """Keep the session beyond the request, with this id."""
        self.session_id, self.watches, self.epoch = session_id, True, 1
        self.created = self.used = now

    def close(self) -> None:
        to_the_end(self.closed())

    def closed(self) -> Steps[None]:
        """End the session from the first step on; then it leaves its partitions, even if this is cancelled."""
        self._is_closed = True
        try:
            for number, fetched in enumerate(list(self._fetched.values()), 1):
                fetched.leave()
                if not number % AT_ONCE:
                    yield
        finally:
            for fetched in self._fetched.values():
                fetched.leave()
            self._fetched.clear()
        self._due.clear()
        if self._delayed is not None:
            self._delayed.over()

    def waiters_of(self, replica: Replica) -> set[FetchWaiter]:
        return replica.followers if self.is_follower and isinstance(replica, Partition) else replica.waiters

    # Changes

    def advanced(self, fetched: FetchedPartition, size: int) -> None:
        self._due[fetched] = None
        if size and fetched.stable >= 0 and (self._meanwhile is not None or self._delayed is not None):
            if fetched.is_kept_back():
                return
            if fetched.is_held_back:  # more bytes than these can be read now
                size = 0
        if self._meanwhile is not None:
            self._meanwhile.append(size)
        elif self._delayed is not None:
            self._delayed.advanced(size)
        else:  # it will be read, so until then nothing more matters
            fetched.leave()

    def has_news(self, fetched: FetchedPartition) -> None:
        self._due[fetched] = None
        if self.is_follower and self._settings.selects_by_rack:
            # Consumers may wait for the follower's high watermark.
            if self._meanwhile is not None:
                self._meanwhile.append(0)
            elif self._delayed is not None:
                self._delayed.over()

    # Rights

    def authorize(self, rights: FetchRights) -> None:
        """From now on, read what the client may. All partitions are due unless these are the rights as before."""
        if rights != self._rights:
            self._rights = rights
            self._due.update(dict.fromkeys(self._fetched.values()))

    def rights_changed(self) -> Steps[None]:
        """A waiting response reports partitions that the client may not read any more."""
        for number, fetched in enumerate(list(self._fetched.values()), 1):
            if not number % AT_ONCE:
                yield
            found, rights, waiting = fetched.topic_partition, self._rights, self._delayed
            if waiting is not None and found is not None and rights and not rights.may_read(found[0]):
                self._due[fetched] = None
                waiting.over()

    # Requests

    def answer(self, request: FetchRequest) -> Steps[Answer]:
        """The response, which waits for records if there are none. An earlier waiting request gets its response.

        One request at a time. Raises ApiError FETCH_SESSION_ID_NOT_FOUND if the session ends meanwhile.
        """
        if self._delayed is not None:
            self._delayed.over()
        limit = min(request.max_bytes, self._settings.max_bytes)
        meanwhile = self._meanwhile = list[int]()
        try:
            yield from self._take(request)
            if len(self._due) >= AT_ONCE:  # others get their turn before it is clear whether it waits
                self.watches = True
            response, size, urgent = yield from self._read(limit)
        finally:
            self._meanwhile = None
        wait_s = min(request.max_wait_ms / 1000, self._settings.max_wait_s)
        if self._loading and not size:
            wait_s = max(wait_s, LOAD_S)
        elif size >= request.min_bytes:
            urgent = True
        if urgent or wait_s <= 0 or not (self._fetched or self.is_follower):
            return response
        if not self.watches:
            for fetched in self._fetched.values():
                fetched.watch(self)

        def read() -> Steps[FetchResponse]:
            more, _, _ = yield from self._read(limit)
            return joined(response, more)

        self._delayed = delayed = DelayedFetch(request.min_bytes - size, wait_s, read)
        delayed.response.add_done_callback(lambda _: self._waited(delayed))
        for happened in meanwhile:
            delayed.advanced(happened)
        return delayed.response

    def take_back(self, name: str | UUID, data: PartitionData) -> None:
        """A partition's part of a response is not sent: it is due again."""
        fetched = self._fetched.get((name, data.partition_index))
        if fetched is not None:
            fetched.sent = None
            self._due[fetched] = None

    def _take(self, request: FetchRequest) -> Steps[None]:
        """Apply a request's changes of partitions."""
        self._aborted = [] if request.isolation_level == READ_COMMITTED or self.is_follower else None
        self._rack = request.rack_id if self._settings.selects_by_rack and self._reads_followers else ""
        known, due, number = self._fetched, self._due, 0
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if self.by_id else forgotten.topic
            for index in forgotten.partitions:
                if not (number := number + 1) % AT_ONCE:
                    yield from self._turn()
                if (gone := known.pop((name, index), None)) is not None:
                    gone.leave()
                    due.pop(gone, None)
        for topic in request.topics:
            name = topic.topic_id if self.by_id else topic.topic
            for requested in topic.partitions:
                if not (number := number + 1) % AT_ONCE:
                    yield from self._turn()
                key = name, requested.partition
                if key in known:
                    fetched = known[key]
                    fetched.requested, fetched.is_new = requested, True
                else:
                    fetched = known[key] = FetchedPartition(key, requested)
                due[fetched] = None

    def _turn(self) -> Steps[None]:
        """Give others their turn. Raises ApiError if the session ends meanwhile."""
        yield
        if self._is_closed:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def _waited(self, delayed: DelayedFetch) -> None:
        if self._delayed is delayed:
            self._delayed = None

    def _read(self, limit: int) -> Steps[tuple[FetchResponse, int, bool]]:
        """The response; its bytes of records; whether it must be sent at once."""
        topics: dict[str | UUID, FetchableTopicResponse] = {}
        size, urgent = 0, False
        again = []
        due, self._due = self._due, {}
        for number, fetched in enumerate(due, 1):
            if not number % AT_ONCE:
                yield from self._turn()
            if number >= AT_ONCE and self._fetched.get(fetched.key) is not fetched:
                continue  # a later request has dropped it
            try:
                data = self._read_partition(fetched, limit - size, first=not size)
            except ApiError as error:
                data, urgent = self._failed(fetched, error), True
            except NotCachedError:
                self._load(fetched, limit - size)
                data = None
            if data is None:
                continue
            if data.records:
                size += len(data.records)
                again.append(fetched)
            if data.diverging_epoch is not None or data.preferred_read_replica >= 0:
                urgent = True
            name = fetched.key[0]
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchableTopicResponse(partitions=[])
                if isinstance(name, str):
                    topic.topic = name
                else:
                    topic.topic_id = name
            topic.partitions.append(data)
        for fetched in again:  # until the client advances; after those that found no room
            self._due.pop(fetched, None)
            self._due[fetched] = None
        return FetchResponse(0, 0, self.session_id, list(topics.values())), size, urgent

    def _read_partition(self, fetched: FetchedPartition, room: int, *, first: bool) -> PartitionData | None:
        """Read one partition; None without news. Raises ApiError."""
        requested = fetched.requested
        if (topic_partition := fetched.topic_partition) is None:
            topic_partition = fetched.topic_partition = self._find(fetched.key)
        if self._rights is not None and not self._rights.may_read(topic_partition[0]):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        replica = self._replicas.partitions.get(topic_partition) or self._followed(topic_partition)
        if replica is not fetched.replica:
            if self.by_id and replica.topic_id != fetched.key[0]:
                raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID)
            if fetched.replica is not None:
                fetched.leave()
                fetched.sent, fetched.is_new = None, True
            fetched.replica = replica
        log, offset = replica.log, requested.fetch_offset
        if requested.current_leader_epoch >= 0 or self.is_follower:
            replica.check_epoch(requested.current_leader_epoch)
        if self.is_follower:
            upper = log.log_end_offset
            if fetched.is_new and (parted := self._place(fetched)) is not None:
                return parted
        else:
            if offset > log.log_end_offset and not isinstance(replica, Partition):
                raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)  # not here: the leader may have it
            if self._aborted is None:
                upper, fetched.stable = replica.high_watermark, -1
            else:
                fetched.stable = upper = replica.last_stable_offset
                fetched.is_held_back = upper < replica.high_watermark
            if self._rack and (preferred := self._preferred(fetched)) is not None:
                return preferred
        if self.watches:
            fetched.watch(self)
        if room > requested.partition_max_bytes:
            room = requested.partition_max_bytes
        found = log.read(
            offset, room if room > 0 else 0, upper=upper, min_one=first, may_wait=fetched.is_loaded
        )
        aborted = self._aborted
        if found is not None and aborted is not None and not self.is_follower and log.segments.aborted:
            aborted = [
                AbortedTransaction(each.producer_id, each.first_offset)
                for each in log.aborted_before_read_end(offset, may_wait=fetched.is_loaded)
            ]
        fetched.is_loaded = False
        known = replica.high_watermark, log.log_start_offset
        if found is None and offset < upper:  # there was no room
            self._due[fetched] = None
        if found is None and known == fetched.sent:
            return None
        fetched.sent = known
        if found is not None:
            if self.is_follower:
                replica.replicated_bytes += len(found)
            else:
                replica.sent_bytes += len(found)
        return PartitionData(
            requested.partition,
            0,
            known[0],
            replica.last_stable_offset,
            known[1],
            None,
            None,
            None,
            aborted,
            -1,
            b"" if found is None else found,
        )

    def _load(self, fetched: FetchedPartition, room: int) -> None:
        """Load a partition's index entries for its records in a thread; the partition is due again afterwards."""
        self._due[fetched] = None
        if fetched.is_loading or fetched.replica is None or self._loading >= LOADS_AT_ONCE:
            return
        log, room = fetched.replica.log, max(0, min(room, fetched.requested.partition_max_bytes))
        load = log.loading(fetched.requested.fetch_offset, room, upper=log.log_end_offset)
        fetched.is_loading = True
        self._loading += 1
        loading = get_running_loop().run_in_executor(None, load)
        loading.add_done_callback(lambda loading: self._loaded(fetched, loading))

    def _loaded(self, fetched: FetchedPartition, loading: Future[None]) -> None:
        if not loading.cancelled():
            loading.exception()  # the read meets the error again, and can report it
        fetched.is_loading, fetched.is_loaded = False, True
        self._loading -= 1
        if not self._is_closed and self._fetched.get(fetched.key) is fetched:
            self.advanced(fetched, 0)

    def _find(self, key: Key) -> TopicPartition:
        """Raises ApiError UNKNOWN_TOPIC_ID."""
        topic, index = key
        if isinstance(topic, str):
            return topic, index
        if (record := self._replicas.metadata.topics_by_id.get(topic)) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        return record.name, index

    def _followed(self, key: TopicPartition) -> Replica:
        """The follower of a partition that is not led here. Raises ApiError."""
        follower = self._replicas.followers.get(key) if self._reads_followers else None
        if follower is None:
            raise self._replicas.why_not_led(*key)
        return follower

    def _preferred(self, fetched: FetchedPartition) -> PartitionData | None:
        """A replica nearer to the consumer, returned instead of records; None if there is none."""
        partition = fetched.replica
        if not isinstance(partition, Partition) or partition.isr is None:
            return None
        brokers = self._replicas.metadata.brokers
        chosen = select(partition.isr, brokers, self._rack, fetched.requested.fetch_offset)
        if chosen is None:
            return None
        self._due[fetched] = None
        return PartitionData(
            partition.index,
            0,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log.log_start_offset,
            aborted_transactions=self._aborted,
            preferred_read_replica=chosen,
            records=b"",
        )

    def _place(self, fetched: FetchedPartition) -> PartitionData | None:
        """Note a follower's progress; if its log diverges from ours, that is the response. Raises ApiError."""
        partition = fetched.replica
        assert isinstance(partition, Partition)
        requested, log, isr = fetched.requested, partition.log, partition.isr
        partition.check_online()
        if isr is None or self.replica_id not in isr.followers:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER
                if requested.current_leader_epoch < 0
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        offset = requested.fetch_offset
        if offset < log.log_start_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        parted = diverging_epoch(
            log.epochs,
            log.log_end_offset,
            offset,
            requested.last_fetched_epoch,
            is_mirrored=bool(partition.source),
        )
        if parted is not None:
            fetched.sent = None
            self._due[fetched] = None
            return PartitionData(
                requested.partition,
                0,
                partition.high_watermark,
                -1,
                log.log_start_offset,
                diverging_epoch=EpochEndOffset(*parted),
                records=b"",
            )
        if offset > log.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        fetched.is_new = False
        self._alter_partition.fetched(partition, self.replica_id, offset, requested.log_start_offset)
        return None

    def _failed(self, fetched: FetchedPartition, error: ApiError) -> PartitionData:
        """Report an error with each response until the client forgets the partition, or the error is gone."""
        fetched.leave()
        fetched.sent = None
        self._due[fetched] = None
        is_unknown = error.code in UNKNOWN
        leader = None
        if (
            error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
            and fetched.topic_partition
        ):
            leader = current_leader(self._replicas.metadata, *fetched.topic_partition)
        return PartitionData(
            fetched.key[1],
            error.code,
            -1,
            current_leader=leader,
            aborted_transactions=[] if is_unknown else self._aborted,
            records=b"",
        )

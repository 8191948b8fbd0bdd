"""Transactions as a story: requests of producers, one line for each response, and at the end what the logs contain.

A step names a producer by its place in the story (`Bearer`), so the same steps can be played on two brokers. Lines name
producer ids in the order of their appearance, and leave out timestamps. After a step, the story waits until no
transaction is ending: what two requests do at once is chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from millstream_broker.transactions.records import TransactionLogKey, TransactionLogValue
from millstream_kafka.batch import Record, build_batch, iter_batches, read_records
from millstream_kafka.control_batch import read_marker
from millstream_kafka.protocol import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    create_topics,
    describe_producers,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    init_producer_id,
    list_transactions,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
    txn_offset_commit,
    write_txn_markers,
)
from millstream_kafka.protocol.codec import Codec
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.schema import Bytes

from .scenario import eventually
from .story_members import Join, Leave, StoryMembers
from .story_steps import (
    AGAIN,
    FIRST,
    GAP,
    NEXT,
    TIMEOUT_MS,
    Add,
    AddOffsets,
    Bearer,
    CommitOffsets,
    End,
    Init,
    Look,
    Mark,
    PlainCommit,
    Positions,
    Produce,
    Raise,
    Step,
    TimeOuts,
)
from .wire import Wire, fetch_request

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
STRANGER = 1_000_000_000_000
"""A producer id that no broker has given away."""
NO_PRODUCER = (-1, -1)
GROUP, TRANSACTION = 0, 1
TRANSACTIONS, OFFSETS = "__transaction_state", "__consumer_offsets"
"""Internal topics, which must have one partition each."""
LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_KEY, _VALUE = Codec(TransactionLogKey), Codec(TransactionLogValue, flexible=1)

Producer = tuple[int, int]


class TransactionStory:
    """One broker's part. Numbers from 0 name transactional ids and groups; partitions are those of one topic."""

    def __init__(self, wire: Wire, name: str, *, ids: int = 2, groups: int = 2, partitions: int = 2) -> None:
        self.wire = wire
        self.topic = name
        self.ids = [f"{name}-{each}" for each in range(ids)]
        self.groups = [f"{name}-group-{each}" for each in range(groups)]
        self._members = StoryMembers(wire, self.groups)
        self.partitions = range(partitions)
        self.lines: list[str] = []
        self._known: list[list[Producer]] = [[] for _ in self.ids]
        self._names: dict[int, str] = {-1: "none", STRANGER: "stranger"}
        self._sent: dict[tuple[int, int, int], tuple[int, int]] = {}
        """By producer and partition: the first sequence and the number of records of the last appended batch."""
        self._number = 0
        self._create()
        self._starts = {topic: wire.end_offset(topic) for topic in (TRANSACTIONS, OFFSETS)}

    def pass_over_transactions(self) -> None:
        """The end leaves out what __transaction_state has so far."""
        self._starts[TRANSACTIONS] = self.wire.end_offset(TRANSACTIONS)

    def _create(self) -> None:
        topic = create_topics.CreatableTopic(self.topic, len(self.partitions), 1)
        (created,) = self.wire.call(
            create_topics.API, 7, create_topics.CreateTopicsRequest([topic], timeout_ms=10_000)
        ).topics
        assert created.error_code == 0, created
        self._find(TRANSACTION, self.ids)
        self._find(GROUP, self.groups)
        asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(name=self.topic)])
        (found,) = eventually(
            lambda: self.wire.call(metadata.API, 12, asked).topics,
            lambda found: len(found[0].partitions) == len(self.partitions),
            "the topic",
        )
        self.topic_id = found.topic_id
        for topic_name, index in (
            *((self.topic, each) for each in self.partitions),
            (TRANSACTIONS, 0),
            (OFFSETS, 0),
        ):
            self.wire.await_leader(topic_name, index)
        eventually(
            self._described,
            lambda found: not any(each.error_code in LOADING for each in found),
            "the coordinator",
        )
        eventually(
            lambda: self._fetch_offsets(0, stable=False, topics=None),
            lambda found: found.error_code not in LOADING,
            "the group's coordinator",
        )

    def _find(self, kind: int, keys: list[str]) -> None:
        request = find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)
        eventually(
            lambda: self.wire.call(find_coordinator.API, 4, request).coordinators,
            lambda found: not any(each.error_code for each in found),
            "coordinators",
        )

    # ---- what lines say

    def _producer(self, bearer: Bearer) -> Producer:
        known = self._known[bearer.of]
        if bearer.back >= len(known):
            return STRANGER, max(0, bearer.shift)
        producer_id, epoch = known[-1 - bearer.back]
        return producer_id, max(0, epoch + bearer.shift)

    def _know(self, of: int, producer_id: int, epoch: int) -> None:
        if producer_id >= 0 and (producer_id, epoch) not in self._known[of][-1:]:
            self._known[of].append((producer_id, epoch))

    def _name(self, producer_id: int) -> str:
        if producer_id not in self._names:
            self._names[producer_id] = f"producer {len(self._names) - 1}"
        return self._names[producer_id]

    def _say(self, step: object, *said: object) -> None:
        self.lines.append(f"{self._number} {step}: " + " ".join(str(each) for each in said))

    # ---- steps

    def play(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._number += 1
            action: Callable[[Any], None] = getattr(self, f"_{type(step).__name__.lower()}")
            action(step)
            if isinstance(step, (Init, End)):
                self.settle()

    def settle(self) -> None:
        """Wait until no transaction is ending."""
        eventually(
            self._described,
            lambda found: not any(each.transaction_state.startswith("Prepare") for each in found),
            "the end of the transactions",
        )

    def _timeouts(self, step: TimeOuts) -> None:
        eventually(
            self._described,
            lambda found: {each.transaction_state for each in found} == {"CompleteAbort"},
            "the end of the transactions",
        )
        self._look(Look())

    def _described(self) -> list[describe_transactions.DescribedTransactionState]:
        request = describe_transactions.DescribeTransactionsRequest(self.ids)
        return self.wire.call(describe_transactions.API, 0, request).transaction_states

    def _init(self, step: Init) -> None:
        request = init_producer_id.InitProducerIdRequest(self.ids[step.of], step.timeout_ms)
        if step.bearer is not None and step.version >= 3:
            request.producer_id, request.producer_epoch = self._producer(step.bearer)
        answer = eventually(
            lambda: self.wire.call(init_producer_id.API, step.version, request),
            lambda found: (
                found.error_code not in LOADING
            ),  # Kafka says so also when it waits for a block of ids
            "a producer id",
        )
        self._know(step.of, answer.producer_id, answer.producer_epoch)
        self._say(step, error(answer.error_code), self._name(answer.producer_id), answer.producer_epoch)

    def _raise(self, step: Raise) -> None:
        request = init_producer_id.InitProducerIdRequest(self.ids[step.of], TIMEOUT_MS)
        epoch = -1
        while epoch < step.epoch:
            answer = self.wire.call(init_producer_id.API, 5, request)
            if answer.error_code not in (*LOADING, ErrorCode.CONCURRENT_TRANSACTIONS):
                assert answer.error_code == 0, answer
                epoch = answer.producer_epoch
        self._know(step.of, answer.producer_id, epoch)
        self._say(step, self._name(answer.producer_id), epoch)

    def _add(self, step: Add) -> None:
        topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(self.topic, list(step.partitions))]
        producer = self._producer(step.bearer)
        if step.version < add_partitions_to_txn.BATCHED_SINCE:
            request = add_partitions_to_txn.AddPartitionsToTxnRequest(
                transactional_id=self.ids[step.of],
                producer_id=producer[0],
                producer_epoch=producer[1],
                topics=topics,
            )
        else:
            transaction = add_partitions_to_txn.AddPartitionsToTxnTransaction(
                self.ids[step.of], *producer, step.verify_only, topics
            )
            request = add_partitions_to_txn.AddPartitionsToTxnRequest([transaction])
        answer = self.wire.call(add_partitions_to_txn.API, step.version, request)
        found = answer.results_by_topic
        if step.version >= add_partitions_to_txn.BATCHED_SINCE:
            self._say(step, error(answer.error_code))
            (result,) = answer.results_by_transaction
            found = result.topic_results
        self._say(
            step,
            *sorted(
                f"{each.partition_index} {error(each.partition_error_code)}"
                for topic in found
                for each in topic.results_by_partition
            ),
        )

    def _addoffsets(self, step: AddOffsets) -> None:
        producer = self._producer(step.bearer)
        request = add_offsets_to_txn.AddOffsetsToTxnRequest(
            self.ids[step.of], *producer, self.groups[step.group]
        )
        self._say(step, error(self.wire.call(add_offsets_to_txn.API, step.version, request).error_code))

    def _commitoffsets(self, step: CommitOffsets) -> None:
        offset = txn_offset_commit.TxnOffsetCommitRequestPartition(
            step.partition, self._number, committed_metadata=""
        )
        request = txn_offset_commit.TxnOffsetCommitRequest(
            self.ids[step.of],
            self.groups[step.group],
            *self._producer(step.bearer),
            generation_id=step.generation if step.version >= 3 else -1,
            member_id=self._members.named(step.group, step.member) if step.version >= 3 else "",
            group_instance_id=step.instance if step.version >= 3 else None,
            topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(self.topic, [offset])],
        )
        (topic,) = self.wire.call(txn_offset_commit.API, step.version, request).topics
        self._say(step, *(error(each.error_code) for each in topic.partitions))

    def _join(self, step: Join) -> None:
        first, generation, *synced = self._members.join(step)
        self._say(step, error(first), generation, *map(error, synced))

    def _leave(self, step: Leave) -> None:
        self._say(step, *map(error, self._members.leave(step)))

    def _produce(self, step: Produce) -> None:
        producer_id, epoch = self._producer(step.bearer)
        place = producer_id, epoch, step.partition
        first, count = self._sent.get(place, (0, 0))
        sequence = {NEXT: first + count, AGAIN: first, GAP: first + count + 3, FIRST: 0}[step.sequence]
        count = count if step.sequence == AGAIN and count else step.records
        batch = build_batch(
            [
                Record(None, f"{self._number}-{each}".encode(), int(time.time() * 1000))
                for each in range(count)
            ],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = produce.PartitionProduceData(step.partition, batch)
        topic = produce.TopicProduceData(self.topic, self.topic_id, [data])
        request = produce.ProduceRequest(self.ids[step.of], -1, 10_000, [topic])
        answer = self.wire.call(produce.API, step.version, request).responses[0].partition_responses[0]
        if not answer.error_code:
            self._sent[place] = sequence, count
        self._say(step, error(answer.error_code), answer.base_offset, when(answer.log_append_time_ms))

    def _end(self, step: End) -> None:
        request = end_txn.EndTxnRequest(self.ids[step.of], *self._producer(step.bearer), step.commits)
        answer = self.wire.call(end_txn.API, step.version, request)
        self._know(step.of, answer.producer_id, answer.producer_epoch)
        self._say(step, error(answer.error_code), self._name(answer.producer_id), answer.producer_epoch)

    def _mark(self, step: Mark) -> None:
        topic = write_txn_markers.WritableTxnMarkerTopic(self.topic, [step.partition])
        marker = write_txn_markers.WritableTxnMarker(
            *self._producer(step.bearer), step.commits, [topic], 0, 2 if step.version >= 2 else 0
        )
        request = write_txn_markers.WriteTxnMarkersRequest([marker])
        (result,) = self.wire.call(write_txn_markers.API, step.version, request).markers
        self._say(step, *(error(each.error_code) for each in result.topics[0].partitions))

    def _plaincommit(self, step: PlainCommit) -> None:
        offset = offset_commit.OffsetCommitRequestPartition(
            step.partition, self._number, committed_metadata=""
        )
        topic = offset_commit.OffsetCommitRequestTopic(self.topic, partitions=[offset])
        request = offset_commit.OffsetCommitRequest(self.groups[step.group], topics=[topic])
        (found,) = self.wire.call(offset_commit.BY_NAME, 8, request).topics
        self._say(step, *(error(each.error_code) for each in found.partitions))

    def _fetch_offsets(
        self, group: int, *, stable: bool, topics: list[offset_fetch.OffsetFetchRequestTopics] | None
    ) -> offset_fetch.OffsetFetchResponseGroup:
        asked = offset_fetch.OffsetFetchRequestGroup(self.groups[group], topics=topics)
        request = offset_fetch.OffsetFetchRequest(groups=[asked], require_stable=stable)
        return self.wire.call(offset_fetch.BY_NAME, 8, request).groups[0]

    def _positions(self, step: Positions) -> None:
        asked = offset_fetch.OffsetFetchRequestTopics(self.topic, partition_indexes=list(self.partitions))
        for topics in ([asked], None):
            found = self._fetch_offsets(step.group, stable=step.stable, topics=topics)
            self._say(
                step,
                "all" if topics is None else "each",
                error(found.error_code),
                *sorted(
                    f"{each.partition_index}={each.committed_offset} {error(each.error_code)}"
                    for topic in found.topics
                    for each in topic.partitions
                ),
            )

    def _look(self, step: Look) -> None:
        for each in self._described():
            if each.error_code:
                self._say(step, each.transactional_id, error(each.error_code))
                continue
            topics = sorted((topic.topic, sorted(topic.partitions)) for topic in each.topics)
            self._say(
                step,
                each.transactional_id,
                each.transaction_state,
                each.transaction_timeout_ms,
                when(each.transaction_start_time_ms),
                self._name(each.producer_id),
                each.producer_epoch,
                topics,
            )
        request = list_transactions.ListTransactionsRequest(transactional_id_pattern=f"{self.topic}-.*")
        listed = self.wire.call(list_transactions.API, 2, request)
        self._say(
            "List",
            error(listed.error_code),
            *sorted(
                f"{each.transactional_id} {self._name(each.producer_id)} {each.transaction_state}"
                for each in listed.transaction_states
            ),
        )
        asked = describe_producers.TopicRequest(self.topic, list(self.partitions))
        (topic,) = self.wire.call(
            describe_producers.API, 0, describe_producers.DescribeProducersRequest([asked])
        ).topics
        for partition in sorted(topic.partitions, key=lambda each: each.partition_index):
            for producer in sorted(partition.active_producers, key=lambda each: self._name(each.producer_id)):
                self._say(
                    "Producer",
                    partition.partition_index,
                    self._name(producer.producer_id),
                    producer.producer_epoch,
                    producer.last_sequence,
                    when(producer.last_timestamp),
                    producer.coordinator_epoch,
                    producer.current_txn_start_offset,
                )

    # ---- the end

    def finish(self) -> None:
        """Abort what is open, and tell what the logs contain."""
        for _ in range(2):
            self.play(Init(of, 5) for of in range(len(self.ids)))
        self.play([Look()])
        self.play(Positions(of, stable=True) for of in range(len(self.groups)))
        for index in self.partitions:
            for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
                self._contents(self.topic, index, 0, isolation)
        self._contents(OFFSETS, 0, self._starts[OFFSETS], READ_COMMITTED)
        self._states()

    def _fetched(
        self, topic: str, index: int, offset: int, isolation: int
    ) -> tuple[fetch.PartitionData, bytes]:
        request = fetch_request(topic, offset, index)
        request.isolation_level = isolation
        found = self.wire.call(fetch.API, 12, request).responses[0].partitions[0]
        return found, bytes(cast(Bytes, found.records or b""))

    def _contents(self, topic: str, index: int, start: int, isolation: int) -> None:
        """Those of the coordinators' topic by producer: several transactions may have timed out at once."""
        found, data = self._fetched(topic, index, start, isolation)
        what = f"{topic}-{index} isolation {isolation}"
        self._say(
            what, error(found.error_code), found.high_watermark - start, found.last_stable_offset - start
        )
        ours = topic == self.topic
        said: list[tuple[str, Sequence[object]]] = []
        for aborted in found.aborted_transactions or ():
            first = aborted.first_offset if ours else ""
            said.append((self._name(aborted.producer_id), ("aborted", first)))
        for position, header in iter_batches(data):
            batch = data[position : position + header.size]
            content = (
                header.base_offset if ours else "",
                header.record_count,
                header.producer_epoch,
                header.base_sequence if header.producer_id >= 0 else "",
                "transactional" if header.is_transactional else "",
                read_marker(batch) if header.is_control else "records",
                [record.value for record in read_records(batch)] if ours else "",
            )
            said.append((self._name(header.producer_id), content))
        if not ours:
            said.sort(key=lambda each: each[0])
        for name, told in said:
            self._say(what, name, *told)

    def _states(self) -> None:
        """The records of __transaction_state, those of each transactional id in order."""
        records: dict[str, list[Record]] = {transactional_id: [] for transactional_id in self.ids}
        start, end = self._starts[TRANSACTIONS], self.wire.end_offset(TRANSACTIONS)
        while start < end:
            _, data = self._fetched(TRANSACTIONS, 0, start, READ_UNCOMMITTED)
            for position, header in iter_batches(data):
                start = header.base_offset + header.last_offset_delta + 1
                for record in read_records(data[position : position + header.size]):
                    assert record.key is not None
                    transactional_id = _KEY.decode(0, record.key, 2).transactional_id
                    if transactional_id in records:
                        records[transactional_id].append(record)
        for transactional_id, some in records.items():
            for record in some:
                self._state(transactional_id, record)

    def _state(self, transactional_id: str, record: Record) -> None:
        assert record.value is not None
        version = int.from_bytes(record.value[:2], "big")
        value = _VALUE.decode(version, record.value, 2)
        partitions = value.transaction_partitions
        self._say(
            "State",
            transactional_id,
            version,
            self._name(value.producer_id),
            self._name(value.previous_producer_id),
            self._name(value.next_producer_id),
            value.next_producer_epoch,
            value.producer_epoch,
            value.transaction_timeout_ms,
            value.transaction_status,
            partitions
            if partitions is None
            else sorted((each.topic, sorted(each.partition_ids)) for each in partitions),
            when(value.transaction_last_update_timestamp_ms),
            when(value.transaction_start_timestamp_ms),
            value.client_transaction_version,
        )


def error(code: int) -> str:
    return ErrorCode.of(code).name


def when(timestamp: int) -> str:
    """A time of today is left out."""
    return "now" if timestamp > 1_600_000_000_000 else str(timestamp)

"""Appends records to a topic, and reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream.configs import TOPIC, Resource, describe_configs, own_configs
from millstream.connection import Cluster, kafka_errors, no_leader
from millstream.errors import (
    BadInput,
    Failed,
    Interrupted,
    NoLeader,
    RecordTooLarge,
    UnknownTopic,
    Unreachable,
)
from millstream.interrupts import Interrupts
from millstream.mirrors import REPLICA
from millstream.topics import watermarks
from millstream.words import count

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
DELIVERY_TIMEOUT_MS: Final = 30_000
DEFAULT_LIMIT: Final = 1_048_588
"""Bytes: Kafka's default of max.message.bytes."""
FLUSH_TIMEOUT_S: Final = DELIVERY_TIMEOUT_MS / 1000 + 5
POLL_S: Final = 0.2
SILENCE_S: Final = 10.0
"""Time without a record before a reader checks that the topic exists, and, unless it follows, has leaders."""
GONE: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
BATCH: Final = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read; ``timestamp`` is in milliseconds since 1970, -1 without one."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def produce(
    cluster: Cluster,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    codec: Codec = "none",
    partition: int | None = None,
    interrupts: Interrupts | None = None,
    waiting: Callable[[int], None] = lambda in_flight: None,
) -> dict[int, int]:
    """Append keys and values to a topic, in order and once each; returns the number of records per partition.

    Records with a key go to the partition that Kafka's Java clients choose for it, unless ``partition`` names one.
    Returns when all are acknowledged. Errors count records as lines, from 1, and say how many are in the topic:
    RecordTooLarge, NoLeader, Failed if a record is not acknowledged within 30 s, Interrupted. An interrupt
    (KeyboardInterrupt) ends the input; ``waiting`` is called with the number of records in flight unless they are
    delivered at once; a second interrupt ends the wait for them.
    """
    numbers = sorted(cluster.partitions(topic))
    if partition is not None and partition not in numbers:
        raise BadInput(f"partition: {partition} is not allowed", f"{topic} has 0 to {numbers[-1]}")
    cluster.led_partitions(topic, None if partition is None else [partition])
    to = {} if partition is None else {"partition": partition}
    delivery = _Delivery(cluster, topic, numbers, codec, to, interrupts or Interrupts())
    try:
        delivery.take_all(records)
        delivery.flush()
    except KeyboardInterrupt:
        raise delivery.interrupted(waiting) from None
    delivery.check()
    return delivery.produced


class _Delivery:
    """A producer, and the state of its records."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        numbers: list[int],
        codec: Codec,
        to: dict[str, Any],
        interrupts: Interrupts,
    ) -> None:
        self._cluster, self._topic, self._to, self._interrupts = cluster, topic, to, interrupts
        self._limit = _limit_of(cluster, topic)
        self._producer = Producer(
            cluster.client_config(
                compression_type=codec,
                enable_idempotence=True,
                partitioner="murmur2_random",
                linger_ms=20,
                message_timeout_ms=DELIVERY_TIMEOUT_MS,
                message_max_bytes=min(max(self._limit, 1000), 1_000_000_000),
            )
        )
        self.produced: dict[int, int] = dict.fromkeys(numbers, 0)
        self.refused: tuple[int, KafkaError, int] | None = None
        """Number, reason and size in bytes of the first record that may not be in the topic."""
        self._taken = self._rejected = 0

    def outcome(self) -> str:
        """Number of records in the topic: ``1 record is in flights; 2 records may be (not acknowledged)``."""
        number = sum(self.produced.values())
        known = f"{count(number, 'record')} {'is' if number == 1 else 'are'} in {self._topic}"
        unknown = self._taken - self._rejected - number
        return f"{known}; {count(unknown, 'record')} may be (not acknowledged)" if unknown else known

    def take_all(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Take records up to the first refusal; those before an unreadable record are delivered."""
        try:
            for number, (key, value) in enumerate(records, start=1):
                with self._interrupts.held:
                    self._take(number, key, value)
                self._interrupts.check()
                if self.refused is not None:
                    break
        except Exception:
            self.flush()
            raise

    def _take(self, number: int, key: bytes | None, value: bytes | None) -> None:
        size = len(key or b"") + len(value or b"")

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.produced[_some(message.partition())] += 1
                return
            self._rejected += _rejects(error)
            if self.refused is None or number < self.refused[0]:
                self.refused = (number, error, size)

        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=delivered, **self._to)
            except BufferError:  # librdkafka's buffer is full
                self._producer.poll(POLL_S)
                self._interrupts.check()
            except KafkaException as error:
                self.refused = (number, error.args[0], size)
                return
            else:
                self._taken += 1
                self._producer.poll(0)
                return

    def flush(self) -> None:
        """Wait until every record is acknowledged or refused, or until an interrupt."""
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        with self._interrupts.held:
            while self._producer.flush(POLL_S) and time.monotonic() < deadline:
                self._interrupts.check()
        self._interrupts.check()

    def interrupted(self, waiting: Callable[[int], None]) -> Interrupted:
        """Deliver the records taken before an interrupt, or as many as possible before a second one."""
        try:
            self._interrupts.clear()
            with self._interrupts.held:
                in_flight = self._producer.flush(POLL_S)
            if in_flight:
                waiting(in_flight)
                self.flush()
        except KeyboardInterrupt:
            with self._interrupts.held:
                self._producer.poll(0)
                outcome = self.outcome()
                self._producer.purge()  # so that nothing waits for them when the producer is closed
        else:
            outcome = self.outcome()
        return Interrupted(f"interrupted: {outcome}")

    def check(self) -> None:
        """Raise the reason why a record was not taken, if any."""
        if self.refused is None:
            return
        number, error, size = self.refused
        outcome = self.outcome()
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise RecordTooLarge(
                f"line {number:,} has {size:,} bytes; {self._topic} takes {self._limit:,} with a record's overhead; "
                f"{outcome}",
                "split the line, or raise the topic's max.message.bytes (millstream config set)",
            )
        deed = "refused" if _rejects(error) else "not acknowledged"
        if error.code() in (KafkaError._MSG_TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE):
            for partition, found in self._cluster.partitions(self._topic).items():
                if found.leader < 0 and self._to.get("partition", partition) == partition:
                    reason = no_leader(self._topic, partition, found)
                    raise NoLeader(
                        f"line {number:,} was {deed}: {reason.problem}; {outcome}", reason.next_step
                    )
        if error.code() == KafkaError.POLICY_VIOLATION:
            source = own_configs(self._cluster, Resource(TOPIC, self._topic)).get(REPLICA)
            if source:  # the client library drops the broker's words
                raise Failed(
                    f"line {number:,} was {deed}: {self._topic} is a read-only mirror of {source}; {outcome}",
                    "produce to its source, or promote it: name it in spec.promote of its MirrorMaker",
                )
        raise Failed(f"line {number:,} was {deed}; {outcome}", error.str())


def _rejects(error: KafkaError) -> bool:
    """Whether a record with this error is certainly not in the topic: a broker refused it before writing."""
    after_a_write = (KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    return error.code() > 0 and error.code() not in after_a_write


def _limit_of(cluster: Cluster, topic: str) -> int:
    """The topic's max.message.bytes; Kafka's default if this user may write to the topic only."""
    try:
        settings = describe_configs(cluster, Resource(TOPIC, topic))
    except Failed as error:
        if error.retriable:
            raise
        return DEFAULT_LIMIT  # without the right DescribeConfigs; a record that is too large is refused by the broker
    return int(
        next(setting.value for setting in settings if setting.key == "max.message.bytes" and setting.value)
    )


def consume(
    cluster: Cluster,
    topic: str,
    *,
    group: str | None = None,
    start: int | Literal["earliest", "latest"] = "earliest",
    maximum: int | None = None,
    follow: bool = False,
) -> Generator[Record]:
    """The records of a topic, by partition in order of offset; ends at the topic's end unless ``follow``.

    Without a group all partitions are read, from ``start``: an offset applies to every partition, or the offset
    nearest to it; BadInput if it is beyond the end of all of them, unless ``follow``, which waits there. With a
    group, its assigned partitions are read from the committed offsets, or from ``start`` without
    any; a record is committed once the next one is requested. Close the iterator to leave the group.
    """
    if group is not None and isinstance(start, int):
        raise BadInput(
            f"start: {start} is not allowed with a group",
            "write earliest or latest: a group continues from its committed offsets",
        )
    numbers = list(cluster.led_partitions(topic))
    config = cluster.client_config(
        group_id=group
        or "millstream-consume",  # librdkafka requires a name; without subscribing it is never used
        enable_auto_commit=group is not None,
        auto_commit_interval_ms=1000,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        auto_offset_reset="latest" if start == "latest" else "earliest",
        fetch_wait_max_ms=100,
    )
    consumer = Consumer(config)
    try:
        ends = _Ends()
        if group is None:
            at = _start(cluster, topic, numbers, start, follow)
            consumer.assign([TopicPartition(topic, number, offset) for number, offset in at.items()])
            ends.assigned(at)
        else:
            consumer.subscribe([topic], on_assign=ends.on_assign, on_revoke=ends.on_revoke)
        left = maximum
        heard = time.monotonic()
        while left is None or left > 0:
            for message in _poll(
                consumer, topic, ends, BATCH if left is None else min(left, BATCH), follow, group is not None
            ):
                heard = time.monotonic()
                yield _record(message)
                if group is not None:
                    consumer.store_offsets(message)
                left = None if left is None else left - 1
            if ends.all_reached and not follow:
                return
            if time.monotonic() - heard > SILENCE_S:
                _check(cluster, topic, follow)
                heard = time.monotonic()
    finally:
        consumer.close()


class _Ends:
    """Our partitions that are not read to their end; other members' partitions do not count."""

    def __init__(self) -> None:
        self._open: set[int] | None = None  # None: nothing is assigned yet

    @property
    def all_reached(self) -> bool:
        return self._open is not None and not self._open

    def assigned(self, numbers: Iterable[int]) -> None:
        self._open = set(numbers)

    def on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned(at.partition for at in partitions)

    def on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._open = None

    def reached(self, number: int) -> None:
        if self._open is not None:
            self._open.discard(number)


def _check(cluster: Cluster, topic: str, follow: bool) -> None:
    """UnknownTopic if the topic was deleted: librdkafka may not say so, and with group.protocol=consumer never does.

    NoLeader rather than an endless wait; a reader that follows waits for leaders and brokers.
    """
    try:
        if follow:
            cluster.partitions(topic)
        else:
            cluster.led_partitions(topic)
    except UnknownTopic:
        raise _gone(topic) from None
    except (Failed, Unreachable):
        if not follow:
            raise


def _gone(topic: str) -> UnknownTopic:
    return UnknownTopic(
        f'there is no topic "{topic}" any more',
        "it was deleted while it was read; create it, and run this again",
    )


def _poll(
    consumer: Consumer, topic: str, ends: _Ends, most: int, follow: bool, in_group: bool
) -> Iterator[Message]:
    with kafka_errors():
        messages = consumer.consume(most, POLL_S)
    for message in messages:
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            ends.reached(_some(message.partition()))
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and not follow:
            raise Unreachable(
                "all brokers went away while the topic was read", "start them and run this again"
            )
        elif error.code() in GONE:
            raise _gone(topic)
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not in_group:
            continue  # librdkafka asks for the coordinator of a group that is never used
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise Failed(error.str())  # these two heal; a reader that follows waits for that


def _start(
    cluster: Cluster, topic: str, numbers: list[int], start: int | Literal["earliest", "latest"], follow: bool
) -> dict[int, int]:
    ends = watermarks(cluster, [(topic, number) for number in numbers])
    first = min(earliest for earliest, _ in ends.values())
    end = max(latest for _, latest in ends.values())
    if isinstance(start, int) and start > end and not follow:
        held = f"has offsets {first} to {end - 1}" if first < end else f"has no records, and its end is {end}"
        raise BadInput(
            f"start: {start} is beyond the end of {topic}, which {held}",
            f"millstream topic describe {topic} shows the offsets of its partitions; `follow` waits for more records",
        )
    found = {}
    for number in numbers:
        earliest, latest = ends[topic, number]
        if start == "earliest":
            found[number] = earliest
        elif start == "latest":
            found[number] = latest
        else:
            found[number] = min(max(start, earliest), latest)
    return found


def _record(message: Message) -> Record:
    _, timestamp = message.timestamp()
    return Record(
        _some(message.topic()),
        _some(message.partition()),
        _some(message.offset()),
        timestamp,
        message.key(),
        message.value(),
        tuple(cast(list[tuple[str, bytes | None]], message.headers() or ())),
    )


def _some(value: T | None) -> T:
    """The value of an optional attribute that a message without error always has."""
    assert value is not None
    return value

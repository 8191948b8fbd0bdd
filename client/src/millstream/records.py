"""Records into a topic and out of it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millstream.connection import Cluster, kafka_errors
from millstream.errors import BadInput, Failed, Unreachable
from millstream.topics import partition_numbers, watermarks

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
DELIVERY_TIMEOUT_MS: Final = 30_000
POLL_S: Final = 0.2
BATCH: Final = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read; ``timestamp`` in milliseconds since 1970, -1 when it has none."""

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
) -> dict[int, int]:
    """Append keys and values to a topic, in order and once each; how many went into which partition.

    Records with a key go to the partition that Kafka's Java clients choose for it, unless ``partition`` names one.
    Returns when all are acknowledged; Failed when one is not within 30 s.
    """
    numbers = partition_numbers(cluster, topic)
    if partition is not None and partition not in numbers:
        raise BadInput(f"partition: {partition} is not allowed", f"{topic} has 0 to {numbers[-1]}")
    producer = Producer(
        cluster.client_config(
            compression_type=codec,
            enable_idempotence=True,
            partitioner="murmur2_random",
            linger_ms=20,
            message_timeout_ms=DELIVERY_TIMEOUT_MS,
        )
    )
    produced: dict[int, int] = dict.fromkeys(numbers, 0)
    refused: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error.str())
        else:
            produced[_some(message.partition())] += 1

    to: dict[str, Any] = {} if partition is None else {"partition": partition}
    try:
        for key, value in records:
            _produce(producer, topic, key, value, delivered, to)
            if refused:
                break
    finally:  # what was taken is delivered, also when a later record cannot be read
        producer.flush(DELIVERY_TIMEOUT_MS / 1000 + 5)
    if refused:
        raise Failed(
            f"{topic}: a record was not taken after {sum(produced.values()):,} that were", refused[0].lower()
        )
    return produced


def _produce(
    producer: Producer, topic: str, key: bytes | None, value: bytes | None, delivered: Any, to: dict[str, Any]
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=delivered, **to)
        except BufferError:  # as much as librdkafka holds is on its way
            producer.poll(POLL_S)
        except KafkaException as error:
            raise Failed(f"{topic}: {error.args[0].str()}") from None
        else:
            producer.poll(0)
            return


def consume(
    cluster: Cluster,
    topic: str,
    *,
    group: str | None = None,
    start: int | Literal["earliest", "latest"] = "earliest",
    maximum: int | None = None,
    follow: bool = False,
) -> Generator[Record]:
    """The records of a topic, by partition in order of offset; ends where the topic ends unless ``follow``.

    Without a group all partitions are read, from ``start``: an offset is taken in every partition, or the one that
    is nearest to it. With a group the partitions that it gives us are read from its committed offsets, ``start``
    being where it has none; a record is committed when the next one has been asked for. Close the iterator to leave.
    """
    numbers = partition_numbers(cluster, topic)
    if group is not None and isinstance(start, int):
        raise BadInput(
            f"from: {start} is not allowed with a group",
            "earliest or latest; it goes on from its committed offsets",
        )
    config = cluster.client_config(
        group_id=group
        or "millstream-consume",  # librdkafka wants a name; without subscribing it is never used
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
            at = _start(cluster, topic, numbers, start)
            consumer.assign([TopicPartition(topic, number, offset) for number, offset in at.items()])
            ends.assigned(at)
        else:
            consumer.subscribe([topic], on_assign=ends.on_assign, on_revoke=ends.on_revoke)
        left = maximum
        while left is None or left > 0:
            for message in _poll(consumer, ends, BATCH if left is None else min(left, BATCH), follow):
                yield _record(message)
                if group is not None:
                    consumer.store_offsets(message)
                left = None if left is None else left - 1
            if ends.all_reached and not follow:
                return
    finally:
        consumer.close()


class _Ends:
    """Which of the partitions that are ours are not read to their end; those of other members are not our concern."""

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


def _poll(consumer: Consumer, ends: _Ends, most: int, follow: bool) -> Iterator[Message]:
    with kafka_errors():
        messages = consumer.consume(most, POLL_S)
    for message in messages:
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            ends.reached(_some(message.partition()))
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and not follow:
            raise Unreachable("all brokers went away meanwhile")
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise Failed(error.str())  # those two heal; who follows waits for it


def _start(
    cluster: Cluster, topic: str, numbers: list[int], start: int | Literal["earliest", "latest"]
) -> dict[int, int]:
    ends = watermarks(cluster, [(topic, number) for number in numbers])
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
    """What librdkafka's types leave open, a message without error has."""
    assert value is not None
    return value

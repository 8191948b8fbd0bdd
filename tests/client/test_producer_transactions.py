"""Transactions of the library: what readers of committed records get, and what each failure leaves behind."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import millstream
from millstream.administering.transactions import list_transactions
from millstream.connection import Cluster
from millstream.consuming.clock import now
from millstream.consuming.group import GroupMembership
from millstream.errors import BadInput, Closed, Failed, NotDelivered, NotOwned, ProducerFenced, Unreachable
from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.scenario import unique

CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
Start = Callable[..., millstream.Producer]
Join = Callable[[str, str], millstream.MessageStream]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path_factory.mktemp("broker"), CONFIG).start() as broker:
        yield broker


@pytest.fixture
def topic(broker: InProcessBroker) -> str:
    name = unique("transactions")
    millstream.Admin(broker.bootstrap).create_topic(name, partitions=2, config={"max.message.bytes": "2000"})
    return name


@pytest.fixture
def start(broker: InProcessBroker) -> Iterator[Start]:
    with ExitStack() as opened, warnings.catch_warnings():
        warnings.simplefilter("error")

        def producer(transactional_id: str | None = None, **options: Any) -> millstream.Producer:
            name = unique("id") if transactional_id is None else transactional_id
            found = millstream.Producer(broker.bootstrap, transactional_id=name, **options)
            opened.callback(found.close)
            return found

        yield producer


@pytest.fixture
def join(broker: InProcessBroker) -> Iterator[Join]:
    """A stream of a topic, of a new member of a group."""
    with ExitStack() as opened:

        def stream(source: str, group: str) -> millstream.MessageStream:
            connected = millstream.connect(broker.bootstrap, group=group, commit="manual")
            return opened.enter_context(connected).create_message_streams({source: 1})[source][0]

        yield stream


def read(broker: InProcessBroker, topic: str, *, committed: bool = True) -> list[str]:
    """The values of all records, or of committed ones, sorted."""
    config = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": unique("reader"),
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }
    consumer, found, ended = Consumer(config), [], 0
    consumer.subscribe([topic])
    while ended < 2:
        message = consumer.poll(60)
        assert message is not None
        if message.error() is None:
            found.append(message.value().decode())
        else:
            ended += 1
    consumer.close()
    return sorted(found)


def fill(broker: InProcessBroker, records: int) -> str:
    """A topic of two partitions with the records 0, 1, …"""
    name = unique("source")
    millstream.Admin(broker.bootstrap).create_topic(name, partitions=2)
    with millstream.Producer(broker.bootstrap) as producer:
        for number in range(records):
            producer.send(name, str(number), partition=number % 2)
    return name


def test_a_block_is_visible_as_a_whole_or_not_at_all(
    broker: InProcessBroker, topic: str, start: Start
) -> None:
    producer = start()

    def fail() -> None:
        with producer.transaction():
            producer.send(topic, "never")
            producer.flush()
            raise LookupError("of the block")

    with producer.transaction():
        producer.send(topic, "a", partition=0)
        producer.send(topic, "b", partition=1)
        producer.flush()
        assert read(broker, topic) == []
    with pytest.raises(LookupError, match="of the block"):
        fail()
    with producer.transaction():
        pass
    with producer.transaction():
        delivered = producer.submit(topic, "c")
    assert delivered.result(60).topic == topic
    assert read(broker, topic) == ["a", "b", "c"]
    assert read(broker, topic, committed=False) == ["a", "b", "c", "never"]


def test_a_record_that_is_not_delivered_aborts(broker: InProcessBroker, topic: str, start: Start) -> None:
    producer = start()

    def send() -> None:
        with producer.transaction():
            producer.send(topic, "never", partition=0)
            producer.flush()
            producer.send(topic, "x" * 5000, partition=1)

    with pytest.raises(NotDelivered):
        send()
    producer.flush()  # nothing is reported twice
    assert read(broker, topic) == []
    assert read(broker, topic, committed=False) == ["never"]


def test_positions_and_results_go_together(broker: InProcessBroker, topic: str, start: Start) -> None:
    source, group = fill(broker, 20), unique("group")
    admin, producer, failed, done = millstream.Admin(broker.bootstrap), start(), [], 0
    with millstream.connect(broker.bootstrap, group=group, commit="manual") as connector:
        (stream,) = connector.create_message_streams({source: 1})[source]
        for batch in stream.batches(3):
            positions = admin.committed(group)
            try:
                with producer.transaction(stream):
                    for message in batch:
                        producer.send(topic, message.value)
                    producer.flush()
                    if len(failed) < 3 and done:
                        failed.append(sorted(message.value for message in batch))
                        raise LookupError
            except LookupError:
                assert admin.committed(group) == positions
                continue
            done += len(batch)
            until(lambda done=done: sum(admin.committed(group).values()) == done, "positions", 60)  # type: ignore[misc]
            if done == 20:
                break
    assert len(failed) == 3
    assert read(broker, topic) == sorted(map(str, range(20)))
    tried = sorted(map(str, range(20))) + [value.decode() for values in failed for value in values]
    assert read(broker, topic, committed=False) == sorted(tried)
    with millstream.connect(broker.bootstrap, group=group, commit="manual") as connector:
        (stream,) = connector.create_message_streams({source: 1})[source]
        with millstream.Producer(broker.bootstrap) as more:
            more.send(source, "20")
        assert next(iter(stream)).value == b"20"


def test_positions_pass_what_ends_a_log_and_is_no_message(
    broker: InProcessBroker, topic: str, start: Start
) -> None:
    """Else a group's lag never ends behind markers and aborted records."""
    admin, producer, group, taken = millstream.Admin(broker.bootstrap), start(), unique("group"), []

    def position(offset: int) -> Callable[[], bool]:
        return lambda: admin.committed(group).get((topic, 0)) == offset

    def fail() -> None:
        with producer.transaction():
            producer.send(topic, "never", partition=0)
            producer.flush()
            raise LookupError

    with producer.transaction():
        producer.send(topic, "a", partition=0)
    with millstream.connect(broker.bootstrap, group=group, commit_interval_s=0.1) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        iterating = threading.Thread(target=lambda: taken.extend(stream), daemon=True)
        iterating.start()
        until(position(2), "a position behind the marker", 60)
        with pytest.raises(LookupError):
            fail()
        until(position(4), "a position behind what was aborted", 60)
        with producer.transaction():
            producer.send(topic, "b", partition=0)
        until(position(6), "a position behind the next marker", 60)
        stream.seek(0, 0)
        until(lambda: len(taken) == 4, "both messages again", 60)
        until(position(6), "the last position again", 60)
    iterating.join()
    assert [message.value for message in taken] == [b"a", b"b", b"a", b"b"]


def test_a_stream_that_loses_partitions_commits_nothing(
    broker: InProcessBroker, topic: str, start: Start, join: Join
) -> None:
    source, group, producer = fill(broker, 4), unique("group"), start()
    stream = join(source, group)
    batches = iter(stream.batches())
    next(batches)

    def lose() -> None:
        with producer.transaction(stream):
            producer.send(topic, "never")
            join(source, group)
            while len(stream.partitions) == 2:
                stream.seek("earliest")
                next(batches)

    with pytest.raises(NotOwned, match="the stream has lost partitions since it began"):
        lose()
    assert millstream.Admin(broker.bootstrap).committed(group) == {}
    with producer.transaction(stream):
        for message in next(batches):  # those of its partition, from the start again
            producer.send(topic, message.value)
    assert read(broker, topic) in (["0", "2"], ["1", "3"])


def test_positions_of_an_earlier_generation_are_refused(
    broker: InProcessBroker, topic: str, start: Start, join: Join
) -> None:
    """A process that slept through a rebalance does not know of its losses; the brokers do."""
    source, group, producer = fill(broker, 4), unique("group"), start()
    stream = join(source, group)
    batches = iter(stream.batches())
    next(batches)
    positions, member = stream.to_commit()
    assert positions
    join(source, group)
    while len(stream.partitions) == 2:
        stream.seek("earliest")
        next(batches)

    def wake_up() -> None:
        with pytest.MonkeyPatch.context() as asleep:
            asleep.setattr(stream, "to_commit", lambda: (positions, member))
            with producer.transaction(stream):
                producer.send(topic, "never")

    with pytest.raises(NotOwned, match="the group has rebalanced"):
        wake_up()
    assert millstream.Admin(broker.bootstrap).committed(group) == {}
    with producer.transaction(stream):
        for message in next(batches):  # from the start again
            producer.send(topic, message.value)
    assert read(broker, topic) in (["0", "2"], ["1", "3"])


def test_a_lease_is_renewed_without_a_position_from_before_the_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that allow long metadata would store it, and a plain commit outweighs that of an open transaction."""
    config = {**CONFIG, "offset.metadata.max.bytes": "30000"}
    with InProcessBroker(tmp_path, config).start() as broker:
        source, group = fill(broker, 4), unique("group")
        with (
            millstream.Producer(broker.bootstrap, transactional_id=unique("id")) as producer,
            millstream.connect(broker.bootstrap, group=group, commit="manual") as connector,
        ):
            (stream,) = connector.create_message_streams({source: 1})[source]
            batches = iter(stream.batches())
            while len(positions := stream.to_commit()[0]) < 2:
                next(batches)
            transactions, membership = producer._transactions, stream._membership
            assert transactions is not None
            assert isinstance(membership, GroupMembership)
            proofs, commit = membership.proofs, transactions.commit

            def commit_later() -> None:  # a renewal may be on its way for long
                proofs._next = 0.0
                proofs.ask(stream, now())
                until(
                    lambda: stream.kafka.poll(0.1) is None and proofs._number not in proofs._asked,
                    "an answer",
                )
                commit()

            monkeypatch.setattr(transactions, "commit", commit_later)
            with producer.transaction(stream):
                producer.send(source, "more", partition=0)
        wanted = {(at.topic, at.partition): at.offset for at in positions}
        admin = millstream.Admin(broker.bootstrap)
        until(lambda: admin.committed(group) == wanted, "the positions of the transaction", 30)


def test_a_producer_that_is_fenced_says_what_to_do(
    broker: InProcessBroker, topic: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    older = start("same")
    newer: list[millstream.Producer] = []

    def fenced() -> None:
        with older.transaction():
            older.send(topic, "never")
            older.flush()
            newer.append(start("same"))

    with pytest.raises(
        ProducerFenced, match=r"transactional_id='same'.*; close this producer, and create another one;"
    ):
        fenced()
    with pytest.raises(ProducerFenced, match="transactional_id='same'"):
        older.transaction().__enter__()
    older.close()
    assert not [each for each in caplog.records if each.name == "millstream.producer"]
    with newer[0].transaction():
        newer[0].send(topic, "newer")
    assert read(broker, topic) == ["newer"]


def test_a_transaction_that_took_too_long_is_aborted(
    broker: InProcessBroker, topic: str, start: Start
) -> None:
    producer = start("slow", transaction_timeout_s=1)

    def take_long() -> None:
        with producer.transaction():
            producer.send(topic, "never")
            producer.flush()
            until(
                lambda: list_transactions(producer.cluster, pattern="slow")[0].state == "CompleteAbort",
                "its end",
                60,
            )

    with pytest.raises(ProducerFenced, match="or this one's transaction timed out"):
        take_long()
    assert read(broker, topic) == []


def test_closing_within_a_block_aborts(broker: InProcessBroker, topic: str, start: Start) -> None:
    producer = start("closed")

    def close() -> None:
        with producer.transaction():
            producer.send(topic, "never")
            producer.flush()
            producer.close()

    with pytest.raises(Closed):
        close()
    (found,) = list_transactions(Cluster(broker.bootstrap), pattern="closed")
    assert found.state in ("PrepareAbort", "CompleteAbort")
    assert read(broker, topic) == []


def test_a_stream_whose_outcome_is_unknown_takes_part_in_no_other(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path, CONFIG).start() as broker:
        source = fill(broker, 2)
        producer = millstream.Producer(broker.bootstrap, transactional_id="id", transaction_timeout_s=1)
        connector = millstream.connect(broker.bootstrap, group="g", commit="manual")
        (stream,) = connector.create_message_streams({source: 1})[source]
        next(iter(stream))
        stream.commit()

        def stop() -> None:
            with producer.transaction(stream):
                producer.send(source, "v", partition=0)
                producer.flush()
                broker.stop()

        with pytest.raises(
            Unreachable, match=r"^it is not known whether the transaction was committed: no answer"
        ):
            stop()
        with pytest.raises(
            Failed, match=r"^it is not known whether this stream's last transaction was committed"
        ):
            producer.transaction(stream)
        with pytest.raises(Unreachable):
            producer.transaction().__enter__()
        producer.close()
        connector.close()


def test_uses_that_are_wrong(broker: InProcessBroker, topic: str, start: Start) -> None:
    producer = start()
    with pytest.raises(BadInput, match=r"^send: no transaction is open: send within `with producer\.trans"):
        producer.send(topic, "v")
    with producer.transaction(), pytest.raises(BadInput, match=r"^transaction: one is open already: end it"):
        producer.transaction().__enter__()
    plain = millstream.Producer(broker.bootstrap)
    with pytest.raises(BadInput, match="this producer has no transactional id: create it with the option"):
        plain.transaction()
    plain.close()
    with millstream.connect(broker.bootstrap, group="g") as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        with pytest.raises(
            BadInput, match=r"^stream: commit='processed' with coordination='group' is not al"
        ):
            producer.transaction(stream)
    with pytest.raises(
        BadInput, match=r"^transaction_timeout_s: 1000 is longer than the brokers allow: writ"
    ):
        start(transaction_timeout_s=1000)


async def test_blocks_of_an_async_producer(broker: InProcessBroker, topic: str) -> None:
    async with millstream.AsyncProducer(broker.bootstrap, transactional_id=unique("id")) as producer:

        async def fail() -> None:
            async with producer.transaction():
                await producer.send(topic, "never")
                await producer.flush()
                raise LookupError

        async with producer.transaction():
            await producer.send(topic, "a")
        with pytest.raises(LookupError):
            await fail()
    assert read(broker, topic) == ["a"]

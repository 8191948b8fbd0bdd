"""Mode Identity copies transactions as they are: readers of committed records see the same on both sides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, arrived, create, produce, stored
from millstream_harness.mirror_groups import commit, follows
from millstream_harness.rejoining import SUFFIX, back, check_set_aside, out, promote, records_of
from millstream_harness.scenario import eventually, unique
from millstream_harness.transactional_writer import TransactionalWriter

pytestmark = pytest.mark.process

StartMirror = Callable[..., MirrorProcess]


def committed(broker: InProcessBroker, topic: str) -> list[tuple[int, bytes]]:
    """Offset and value of each record that a reader of committed records sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes]] = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None
            if message.error():
                return found
            found.append((message.offset() or 0, message.value() or b""))
    finally:
        consumer.close()


def test_transactions_are_copied_and_a_promotion_ends_open_ones(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("transactions"), unique("app")
    create(west, topic)
    first = TransactionalWriter(west.bootstrap, topic)
    other = TransactionalWriter(west.bootstrap, topic, "-other")
    first.begin(b"a1", b"a2")
    other.begin(b"x1")
    first.commit()
    mirror = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        name=topic,
        mode="Identity",
        topics={"include": [topic]},
        groups={"include": [group]},
    )
    arrived(east, topic, [4])
    eventually(lambda: mirror.status()["lag"]["records"], lambda lag: lag == 0, "an open one is no lag")
    mirror.kill()
    other.abort()
    first.begin(b"b1", b"b2")
    produce(west, topic, range(1))
    mirror.start()
    arrived(east, topic, [8])
    assert stored(east, topic) == stored(west, topic)
    assert committed(east, topic) == committed(west, topic) == [(0, b"a1"), (1, b"a2")]
    commit(west, group, topic, 5)
    follows(east, group, topic, 5)
    promote(east, topic)
    own = TransactionalWriter(east.bootstrap, topic)
    own.begin(b"c1")
    own.commit()
    first.commit()
    seen = eventually(lambda: committed(east, topic), lambda now: len(now) == 4, "the end of what was open")
    assert [value for _, value in seen] == [b"a1", b"a2", b"value-0", b"c1"]
    assert [value for _, value in committed(west, topic)] == [b"a1", b"a2", b"b1", b"b2", b"value-0"]


def test_markers_are_not_set_aside(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """The old source has committed what the new one aborted when it was promoted."""
    topic = unique("back")
    create(west, topic)
    writer = TransactionalWriter(west.bootstrap, topic)
    writer.begin(b"a1")
    worker = out(start_mirror, west, east, topic)
    arrived(east, topic, [1])
    worker.stop()
    writer.commit()
    produce(west, topic, range(1))
    promote(east, topic)
    produce(east, topic, range(1, 2))
    arrived(east, topic, [3])
    lost = [record for record in records_of(west, topic, 0) if record.value == b"value-0"]
    back(start_mirror, west, east, topic)
    eventually(
        lambda: committed(west, topic), lambda now: now == [(2, b"value-1")], "the records of the new one"
    )
    assert stored(west, topic) == stored(east, topic)
    check_set_aside(west, topic, 0, lost)
    assert len(records_of(west, topic + SUFFIX, 0)) == 1

"""Mode Aggregate when the target loses a topic or records, or does not return some yet: it gets each record once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from millstream_harness.cluster import ClusterProcesses
from millstream_harness.in_process_broker import CopiedInProcessBroker, InProcessBroker
from millstream_harness.mirror import (
    MirrorProcess,
    Peer,
    admin,
    arrived,
    create,
    delete,
    numbers,
    produce,
    stored,
)
from millstream_harness.scenario import eventually, unique

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
TENS = {"batch_num_messages": 10, "linger_ms": 200}


def create_again(broker: Peer, topic: str) -> None:
    """Unless the mirror was faster."""
    try:
        create(broker, topic, 2)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
@pytest.mark.parametrize("worker", ["runs", "starts later"])
def test_idle_mirror_copies_deleted_topic_again(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, worker: str, again: bool
) -> None:
    """Nothing arrives in the source afterwards."""
    topic = unique("lost")
    create(west, topic, 2)
    produce(west, topic, range(100), 2)
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]})
    arrived(east, topic, [50, 50])
    if worker == "starts later":
        mirror.stop()
    delete(east, topic)
    if again:
        create_again(east, topic)
    if worker == "starts later":
        mirror.start()
    arrived(east, topic, [50, 50])
    assert numbers(east, topic) == [*range(0, 100, 2)]
    produce(west, topic, range(100, 200), 2)
    arrived(east, topic, [100, 100])
    assert numbers(east, topic, 1) == [*range(1, 200, 2)]


def test_restored_target_gets_records_again(
    west: InProcessBroker, copied: CopiedInProcessBroker, start_mirror: StartMirror
) -> None:
    """The running worker knows that they were acknowledged, and sends them again."""
    topic = unique("restored")
    create(west, topic)
    mirror = start_mirror({"west": west.bootstrap}, copied.bootstrap, name=topic, topics={"include": [topic]})
    produce(west, topic, range(100), **TENS)
    arrived(copied, topic, [100])
    copied.copy()
    produce(west, topic, range(100, 160), **TENS)
    arrived(copied, topic, [160])
    mirror.pause()
    copied.restore()
    copied.start()
    mirror.resume()
    produce(west, topic, range(160, 200), **TENS)
    arrived(copied, topic, [200])
    assert numbers(copied, topic) == [*range(200)]
    produce(west, topic, range(200, 300), **TENS)
    arrived(copied, topic, [300])
    assert numbers(copied, topic) == [*range(300)]


@pytest.mark.parametrize("mode", ["Aggregate", "Identity"])
def test_idle_target_gets_lost_records_again(
    west: InProcessBroker, copied: CopiedInProcessBroker, start_mirror: StartMirror, mode: str
) -> None:
    topic = unique("idle")
    create(west, topic, 2)
    mirror = start_mirror(
        {"west": west.bootstrap}, copied.bootstrap, name=topic, topics={"include": [topic]}, mode=mode
    )
    produce(west, topic, range(100), 2, **TENS)
    arrived(copied, topic, [50, 50])
    copied.copy()
    produce(west, topic, range(100, 160), 2, **TENS)
    arrived(copied, topic, [80, 80])
    mirror.pause()
    copied.restore()
    copied.start()
    mirror.resume()
    arrived(copied, topic, [80, 80])
    assert numbers(copied, topic) == [*range(0, 160, 2)]
    produce(west, topic, range(160, 200), 2, **TENS)
    arrived(copied, topic, [100, 100])
    assert numbers(copied, topic, 1) == [*range(1, 200, 2)]


def test_target_with_other_writers_gets_lost_records_again(
    west: InProcessBroker, copied: CopiedInProcessBroker, start_mirror: StartMirror
) -> None:
    """Its log is longer than before then; its leader knows the number of the task's last record."""
    topic = unique("shared")
    create(west, topic)
    mirror = start_mirror({"west": west.bootstrap}, copied.bootstrap, name=topic, topics={"include": [topic]})
    produce(west, topic, range(100), **TENS)
    arrived(copied, topic, [100])
    copied.copy()
    produce(west, topic, range(100, 160), **TENS)
    arrived(copied, topic, [160])
    mirror.pause()
    copied.restore()
    copied.start()
    produce(copied, topic, range(1_000_000, 1_000_100), **TENS)
    mirror.resume()
    produce(west, topic, range(160, 200), **TENS)
    arrived(copied, topic, [300])
    found = numbers(copied, topic)
    assert [one for one in found if one < 1_000_000] == [*range(200)]


def test_idle_mirror_notices_loss_behind_equal_end(
    west: InProcessBroker, copied: CopiedInProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("shared")
    create(west, topic)
    mirror = start_mirror({"west": west.bootstrap}, copied.bootstrap, name=topic, topics={"include": [topic]})
    produce(west, topic, range(100), **TENS)
    arrived(copied, topic, [100])
    copied.copy()
    produce(west, topic, range(100, 160), **TENS)
    arrived(copied, topic, [160])
    mirror.pause()
    copied.restore()
    copied.start()
    produce(copied, topic, range(1_000_000, 1_000_060), **TENS)
    mirror.resume()
    arrived(copied, topic, [220])
    assert [one for one in numbers(copied, topic) if one < 1_000_000] == [*range(160)]
    assert "its log has records of others in their place" in mirror.said()


def test_unreplicated_target_records_are_not_repeated(
    west: InProcessBroker, tmp_path: Path, start_mirror: StartMirror
) -> None:
    """Its leader has them and its only follower does not respond: a worker that starts now waits for them."""
    topic = unique("unseen")
    create(west, topic)
    with ClusterProcesses(tmp_path / "target") as target:
        config = {"min.insync.replicas": "2"}
        admin(target).create_topics([NewTopic(topic, 1, replica_assignment=[[1, 2]], config=config)])[
            topic
        ].result(30)
        target.await_in_sync(topic, 2)
        leader = target.leader(topic)
        (follower,) = (one for number, one in target.brokers.items() if number < 3 and one is not leader)
        mirror = start_mirror(
            {"west": west.bootstrap}, target.bootstrap, name=topic, topics={"include": [topic]}
        )
        produce(west, topic, range(100), **TENS)
        arrived(target, topic, [100])
        before = len(stored(leader, topic))
        follower.pause()
        try:
            produce(west, topic, range(100, 200), **TENS)
            eventually(
                lambda: len(stored(leader, topic)), lambda now: now >= 2 * before, "bytes of the leader"
            )
            mirror.kill()
            mirror.start()
            eventually(
                lambda: str(mirror.status()["sources"][0]["lastError"]),
                lambda error: "is not replicated in the target yet" in error,
                "the worker's error",
                60,
            )
        finally:
            follower.resume()
        arrived(target, topic, [200], 60)
        produce(west, topic, range(200, 300), **TENS)
        arrived(target, topic, [300], 60)
        assert numbers(target, topic) == [*range(300)]

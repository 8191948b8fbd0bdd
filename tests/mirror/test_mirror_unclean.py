"""A mirror when three real brokers of the source elect an unclean leader: the two histories never mix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from millstream_harness.cluster import until
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.mirror import MirrorProcess, admin, arrived, numbers, produce, stored
from millstream_harness.mirror_conditions import conditions_of, is_degraded
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import iter_batches

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
TENS = {"batch_num_messages": 10, "linger_ms": 200}
"""Batches of ten records, so those of two histories lie at the same offsets."""
SETTINGS = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path / "source") as cluster:
        yield cluster


@pytest.mark.parametrize("mode", ["Identity", "Aggregate"])
def test_unclean_leader_is_noticed_and_not_appended(
    source: InProcessCluster, east: InProcessBroker, start_mirror: StartMirror, mode: str
) -> None:
    topic = unique("unclean")
    admin(source).create_topics([NewTopic(topic, 1, 3, config=SETTINGS)])[topic].result(30)
    source.await_in_sync(topic)
    mirror = start_mirror(
        {"source": source.bootstrap},
        east.bootstrap,
        name=topic,
        mode=mode,
        topics={"include": [topic]},
    )
    produce(source, topic, range(100), **TENS)
    arrived(east, topic, [100])
    first = source.leader(topic)
    second, third = (broker for broker in source.brokers.values() if broker is not first)
    for follower in (second, third):
        follower.kill()
    until(
        lambda: [len(one.isr_nodes) for one in source.partitions(topic, first)] == [1],
        "the leader is alone in sync",
    )
    produce(first, topic, range(100, 150), **TENS)
    arrived(east, topic, [150])
    before = stored(east, topic)
    assert numbers(east, topic) == [*range(150)], "the target has what only the first leader has"
    assert mode == "Aggregate" or before == stored(first, topic)

    first.kill()
    for follower in (second, third):
        follower.start()
    until(lambda: source.leader(topic) in (second, third), "an unclean leader")
    produce(second, topic, range(1000, 1100), **TENS)
    message = is_degraded(mirror, "Diverged")
    if mode == "Identity":
        assert message.startswith(
            f"{topic}-0: diverged: the target's log ends at offset 150 with leader epoch "
        )
        assert "ends epoch" in message or "has no epoch" in message
        assert f"promote topic {topic} to keep it, or delete it in the target" in message
    else:
        assert message.startswith(f"{topic}-0: diverged: the source ")
        assert f"delete topic {topic} in the target" in message
    assert stored(east, topic) == before

    first.start()  # it truncates its log to the second history
    source.await_in_sync(topic)
    produce(first, topic, range(1100, 1200), **TENS)
    assert is_degraded(mirror, "Diverged")
    assert stored(east, topic) == before

    admin(east).delete_topics([topic])[topic].result(20)
    arrived(east, topic, [300])
    assert numbers(east, topic) == [*range(100), *range(1000, 1200)]
    if mode == "Identity":
        copy = stored(east, topic)
        until(
            lambda: all(stored(broker, topic) == copy for broker in source.brokers.values()),
            "each replica of the source is what the target has",
        )
        epochs = [header.partition_leader_epoch for _, header in iter_batches(copy)]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) > 1
    eventually(
        lambda: conditions_of(mirror).get("Ready", ("",) * 3), lambda now: now[0] == "True", "ready again"
    )

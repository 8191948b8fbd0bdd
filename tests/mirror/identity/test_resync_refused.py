"""Topics that must not rejoin: promoted ones, whatever is forgotten; emptied ones; two that would follow each other."""

from __future__ import annotations

import asyncio
from functools import partial
from operator import eq
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import (
    MirrorProcess,
    Peer,
    admin,
    arrived,
    create,
    new_admin,
    numbers,
    produce,
    read_batches,
)
from millstream_harness.rejoining import (
    LEFT,
    StartMirror,
    back,
    config_of,
    error_of,
    fail_over,
    is_rejoined,
    mirror,
    out,
    promote,
)
from millstream_harness.scenario import eventually, unique
from millstream_kafka.mirror_source import KEY, REJOINED

pytestmark = pytest.mark.soak


def forget(broker: Peer, worker: MirrorProcess) -> None:
    """Delete the progress of a mirror whose worker has ended, as its expiry does after a week."""
    group, client = f"millstream-mirror.{worker.config['name']}.other", new_admin(broker)

    def gone() -> str:
        try:
            client.delete_consumer_groups([group])[group].result(20)
        except Exception as error:
            return str(error)
        return ""

    eventually(gone, lambda problem: not problem, "the group is deleted")


def test_promoted_topic_without_progress_is_left_alone(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("promoted")
    create(west, topic, 2)
    fail_over(start_mirror, west, east, topic)
    worker = back(start_mirror, west, east, topic)
    arrived(west, topic, [150, 150])
    promote(west, topic)
    produce(west, topic, range(4000, 4010), 2)
    worker.stop()
    forget(west, worker)
    worker.start()
    error_of(worker, f"topic {topic}: {LEFT}")
    produce(west, topic, range(4010, 4020), 2)
    assert numbers(west, topic)[150:] == [*range(4000, 4020, 2)]
    worker.stop()
    worker = back(start_mirror, west, east, topic, "2")
    error_of(worker, f"topic {topic}: ")  # east has no record there, and an epoch that is not higher
    assert len(numbers(west, topic)) == 160


@pytest.mark.parametrize("given", ["r2", "r1"], ids=["the last one", "an older one"])
def test_replica_promoted_after_request_stays_promoted(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, given: str
) -> None:
    """It never rejoined: it was a replica when the requests came."""
    topic = unique("kept")
    create(west, topic, 2)
    produce(west, topic, range(100), 2)
    worker = out(start_mirror, west, east, topic)
    arrived(east, topic, [50, 50])
    for request, noted in (("r1", "r1"), ("r2", "r2,r1")):
        worker.stop()
        worker.config["rejoin"] = {"requestId": request}
        worker.start()
        eventually(lambda: config_of(east, topic)[REJOINED], partial(eq, noted), "the request is noted")
    promote(east, topic)
    worker.kill()
    forget(east, worker)
    worker.config["rejoin"] = {"requestId": given}
    worker.start()
    error_of(worker, f"topic {topic}: {LEFT}")
    assert not config_of(east, topic)[KEY]
    produce(east, topic, range(10), 2)


@pytest.mark.parametrize("has_lost", [True, False])
def test_emptied_topic_resyncs_only_with_known_history(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, has_lost: bool
) -> None:
    """Otherwise the source's records below its end would never be mirrored."""
    topic = unique("emptied")
    create(west, topic)
    produce(west, topic, range(100))
    worker = out(start_mirror, west, east, topic)
    arrived(east, topic, [100])
    worker.stop()
    if has_lost:
        produce(west, topic, range(1000, 1050))
    promote(east, topic)
    produce(east, topic, range(2000, 2100))
    end = 150 if has_lost else 100
    at = TopicPartition(topic, 0, end)
    admin(west).delete_records([at])[at].result(20)
    worker = back(start_mirror, west, east, topic)
    if has_lost:
        error_of(
            worker,
            f"topic {topic}: partition 0 is empty and ends at offset 150, and it may never have had the source's",
            "delete it in the target",
        )
        assert asyncio.run(read_batches(west.bootstrap, topic, 0)) == []
    else:
        arrived(west, topic, [200])
        assert numbers(west, topic) == [*range(2000, 2100)]


def test_mutual_resync_is_refused(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """Each data centre has a mirror to itself, and both get a request at the same time."""
    for _ in range(3):
        topic = unique("mutual")
        create(west, topic, 2)
        fail_over(start_mirror, west, east, topic)
        workers = [
            mirror(start_mirror, east, west, topic, name=f"{topic}-1", rejoin={"requestId": "1"}),
            mirror(start_mirror, west, east, topic, name=f"{topic}-2", rejoin={"requestId": "1"}),
        ]

        def settled(of: list[MirrorProcess] = workers) -> bool:
            return any(one.status()["sources"][0]["lastError"] for one in of)

        eventually(settled, bool, "one of them is refused")

        def replicas(name: str = topic) -> int:
            return sum(bool(config_of(broker, name)[KEY]) for broker in (west, east))

        eventually(replicas, lambda found: found < 2, "one of them is writable")
        for worker in workers:
            worker.stop()
        assert replicas() < 2


def test_unreadable_progress_delays_no_replica(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """Its log tells where it continues; any client may commit in the group."""
    topic = unique("garbage")
    create(west, topic, 2)
    produce(west, topic, range(100), 2)
    worker = out(start_mirror, west, east, topic)
    arrived(east, topic, [50, 50])
    worker.stop()
    forget(east, worker)
    group = f"millstream-mirror.{worker.config['name']}.other"
    at = [TopicPartition(topic, number, 7, metadata="x") for number in range(2)]
    wanted, client = [ConsumerGroupTopicPartitions(group, at)], new_admin(east)
    client.alter_consumer_group_offsets(wanted)[group].result(20)
    worker.start()
    produce(west, topic, range(100, 200), 2)
    arrived(east, topic, [100, 100])


def test_resynced_topic_remembers_request(
    west: InProcessBroker, east: InProcessBroker, north: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("remembers")
    create(west, topic, 2)
    fail_over(start_mirror, west, east, topic)
    back(start_mirror, west, east, topic, "some-request")
    is_rejoined(west, topic)
    assert config_of(west, topic)[REJOINED] == "some-request"
    assert config_of(east, topic)[REJOINED] == "", "it is not copied"
    mirror(start_mirror, west, north, topic, name=f"{topic}-copy", mode="Aggregate")
    arrived(north, topic, [150, 150])
    there = config_of(north, topic)
    assert (there[KEY], there[REJOINED]) == ("", ""), "an ordinary topic of another mirror"


def test_request_is_stored_despite_refused_settings(
    west: InProcessBroker, tmp_path: Path, start_mirror: StartMirror
) -> None:
    topic = unique("contradiction")
    create(west, topic, 2)
    with InProcessBroker(tmp_path / "target", {"log.cleaner.max.compaction.lag.ms": "5000"}) as target:
        produce(west, topic, range(10), 2)
        first = out(start_mirror, west, target, topic)
        arrived(target, topic, [5, 5])
        first.stop()
        change = ConfigEntry("min.compaction.lag.ms", "10000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        admin(west).incremental_alter_configs([resource])[resource].result(20)
        worker = out(start_mirror, west, target, topic, rejoin={"requestId": "7"})
        error_of(worker, f"topic {topic}: the source's configuration is refused: ", "min.compaction.lag.ms")
        assert config_of(target, topic)[REJOINED] == "7"
        worker.stop()

"""Failing back between real brokers: the old source follows the new one from the last common offset."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, Peer, admin, arrived, create, produce, read_batches
from millstream_harness.mirror_brokers import requests
from millstream_harness.mirror_groups import commit, committed, follows
from millstream_harness.rejoining import (
    LEFT,
    SUFFIX,
    StartMirror,
    back,
    check_set_aside,
    config_of,
    error_of,
    fail_over,
    is_rejoined,
    marks,
    mirror,
    out,
    promote,
    records_of,
    without_marks,
)
from millstream_harness.scenario import eventually, unique
from millstream_kafka.batch import Record
from millstream_kafka.mirror_source import KEY

pytestmark = pytest.mark.soak

KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def are_equal(one: Peer, other: Peer, topic: str, partitions: int = 2) -> None:
    for partition in range(partitions):
        batches = [asyncio.run(read_batches(each.bootstrap, topic, partition)) for each in (one, other)]
        assert batches[0] == batches[1] != []


def test_old_source_follows_and_diverged_records_are_copied(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("back")
    create(west, topic, 2)
    lost = fail_over(start_mirror, west, east, topic, compression_type="lz4")
    commit(west, "ahead", topic, 60, 40)
    commit(east, "ahead", topic, 55, 45)
    worker = back(start_mirror, west, east, topic, groups={"include": ["ahead"]})
    arrived(west, topic, [150, 150])
    are_equal(west, east, topic)
    for partition in (0, 1):
        check_set_aside(west, topic, partition, lost[partition])
    aside = config_of(west, topic + SUFFIX)
    assert {key: aside[key] for key in KEPT} == KEPT
    first = marks(records_of(west, topic + SUFFIX, 1)[0])
    assert (first["common-offset"], first["leader-epoch"], first["request-id"]) == ("50", "0", "1")
    assert worker.status()["sources"][0]["setAside"] == [
        {
            "topic": topic,
            "partition": partition,
            "commonOffset": 50,
            "records": 15,
            "copiedTo": topic + SUFFIX,
        }
        for partition in (0, 1)
    ]
    assert f'millstream_mirror_diverged_records{{source="other",topic="{topic}"}} 30' in worker.get(
        "/metrics"
    )
    assert f"{topic}-0: the last common offset is 50: 15 records that only the target has" in worker.said()
    follows(west, "ahead", topic, 55, 45)
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        admin(west).delete_records([TopicPartition(topic, 0, 1)])[TopicPartition(topic, 0, 1)].result(20)
    produce(east, topic, range(3000, 3010), 2)
    arrived(west, topic, [155, 155])

    # A promoted topic stays promoted under the same request.
    promote(west, topic)
    error_of(worker, f"topic {topic}: {LEFT}")
    produce(west, topic, range(4000, 4010), 2)
    arrived(west, topic, [160, 160])
    worker.stop()
    worker.start()
    error_of(worker, LEFT)
    worker.stop()

    # In the opposite direction: this time east is the old source, and lacks nothing but these ten records.
    produce(east, topic, range(5000, 5004), 2)
    lost = [[one for one in records_of(east, topic, number) if one.offset >= 155] for number in (0, 1)]
    out(start_mirror, west, east, topic, rejoin={"requestId": "2"})
    arrived(east, topic, [160, 160])
    eventually(lambda: [len(one) for one in lost], lambda found: found == [2, 2], "what only east had")
    are_equal(west, east, topic)
    for partition in (0, 1):
        check_set_aside(east, topic, partition, lost[partition])


def test_uncopied_position_moves_back_to_common_offset(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, group = unique("positions"), unique("group")
    create(west, topic, 2)
    fail_over(start_mirror, west, east, topic)
    commit(west, group, topic, 65, 20)
    back(start_mirror, west, east, topic)
    arrived(west, topic, [150, 150])
    assert committed(west, group, topic) == [50, 20]


def waiting(
    start_mirror: StartMirror, west: Peer, east: Peer, topic: str
) -> tuple[MirrorProcess, Consumer, list[list[Record]]]:
    """A topic that rejoins, is truncated, and waits for a consumer in west to end; and west's own records."""
    create(west, topic, 2)
    lost = fail_over(start_mirror, west, east, topic)
    commit(west, topic, topic, 65, 20)
    member = Consumer({"bootstrap.servers": west.bootstrap, "group.id": topic})
    member.subscribe([topic])
    eventually(lambda: member.poll(0.2) or member.assignment(), bool, "a member")
    worker = back(start_mirror, west, east, topic)
    error_of(worker, f"topic {topic}: group {topic} has a position behind the end of partition 0")
    return worker, member, lost


def rejoining(worker: MirrorProcess) -> list[str]:
    problems = worker.status()["sources"][0]["problems"]
    return [one["message"] for one in problems if one["reason"] == "Rejoining"]


def test_topic_given_up_during_resync_stays_ordinary(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("given-up")
    worker, member, lost = waiting(start_mirror, west, east, topic)
    assert rejoining(worker) == [f"topic {topic}: rejoins the source, and is not its replica yet"]
    promote(west, topic)
    error_of(worker, f"topic {topic}: {LEFT}")
    eventually(lambda: rejoining(worker), lambda found: found == [], "it does not rejoin")
    produce(west, topic, range(6000, 6060), 2)
    worker.kill()
    worker.start()
    error_of(worker, LEFT)
    member.close()
    before = requests(west, "DescribeConfigs")
    eventually(lambda: requests(west, "DescribeConfigs"), lambda now: now > before + 2, "more comparisons")
    error_of(worker, LEFT)
    worker.stop()
    later = [[one for one in records_of(west, topic, number) if one.offset >= 50] for number in (0, 1)]
    assert [len(one) for one in later] == [30, 30]

    # Under another request it rejoins. The records of both times share offsets and leader epochs.
    worker = back(start_mirror, west, east, topic, "2")
    arrived(west, topic, [150, 150])
    are_equal(west, east, topic)
    eventually(lambda: rejoining(worker), lambda found: found == [], "it is a replica")
    for partition in (0, 1):
        found = [without_marks(one) for one in records_of(west, topic + SUFFIX, partition)]
        assert found == [one._replace(offset=-1) for one in (*lost[partition], *later[partition])]


def test_partitions_added_during_resync_are_mirrored(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """A task that began earlier would not see them."""
    topic = unique("grown")
    create(west, topic, 3)
    create(east, topic, 2)
    worker = back(start_mirror, west, east, topic)
    error_of(worker, "it has 3 partitions in the target and 2 in the source: delete it in the target")
    admin(east).create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    is_rejoined(west, topic)


def test_source_topic_recreated_during_resync_is_refused(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("anew")
    create(west, topic, 2)
    create(east, topic, 2, cleanup_policy="compact")
    worker = back(start_mirror, west, east, topic)
    error_of(worker, "it is compacted (cleanup.policy=compact in the source)")
    admin(east).delete_topics([topic])[topic].result(20)
    eventually(
        lambda: topic in admin(east).list_topics(timeout=10).topics, lambda there: not there, "it is gone"
    )
    create(east, topic, 2)
    is_rejoined(west, topic)
    (there,) = admin(east).describe_topics(TopicCollection([topic])).values()
    cluster_id = admin(east).list_topics(timeout=10).cluster_id
    topic_id = str(there.result(20).topic_id).replace("+", "-").replace("/", "_")
    assert config_of(west, topic)[KEY] == f"{cluster_id}/{topic_id}"


def test_topic_only_behind_has_no_diverged_records(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("behind")
    create(west, topic, 2)
    assert fail_over(start_mirror, west, east, topic, lost=0) == [[], []]
    admin(east).create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    worker = back(start_mirror, west, east, topic)
    arrived(west, topic, [150, 150, 0])
    are_equal(west, east, topic)
    assert worker.status()["sources"][0]["setAside"] == []
    assert topic + SUFFIX not in admin(west).list_topics(timeout=10).topics


def test_restored_old_source_is_only_behind(
    tmp_path: Path, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("restored")
    west = InProcessBroker(tmp_path / "west").keep_port().start()
    try:
        create(west, topic, 2)
        produce(west, topic, range(60), 2)
        west.stop()
        shutil.copytree(west.data, tmp_path / "copy")
        west.start()
        worker = out(start_mirror, west, east, topic)
        produce(west, topic, range(60, 100), 2)
        arrived(east, topic, [50, 50])
        worker.stop()
        promote(east, topic)
        produce(east, topic, range(100), 2)
        west.stop()
        shutil.rmtree(west.data)
        (tmp_path / "copy").rename(west.data)
        west.start()
        worker = back(start_mirror, west, east, topic)
        arrived(west, topic, [100, 100])
        are_equal(west, east, topic)
        assert worker.status()["sources"][0]["setAside"] == []
    finally:
        west.kill()


@pytest.mark.timeout(400)
def test_killed_workers_copy_each_diverged_record_once(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("killed")
    create(west, topic, 2)
    lost = fail_over(start_mirror, west, east, topic, lost=20_000, linger_ms=5, batch_num_messages=50)
    worker = back(start_mirror, west, east, topic)
    for _ in range(5):
        time.sleep(random.uniform(0.2, 1.2))
        worker.kill()
        worker.start()
    is_rejoined(west, topic)
    arrived(west, topic, [150, 150])
    are_equal(west, east, topic)
    for partition in (0, 1):
        check_set_aside(west, topic, partition, lost[partition])
    assert [one["records"] for one in worker.status()["sources"][0]["setAside"]] in ([], [10_000, 10_000])


def test_topic_without_rejoin_is_left_alone(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("alone")
    create(west, topic, 2)
    fail_over(start_mirror, west, east, topic)
    worker = mirror(start_mirror, east, west, topic, name=f"{topic}-back")
    error_of(worker, f"topic {topic}: exists in the target and is not a replica", "set spec.rejoin")
    produce(west, topic, range(2), 2)


def refused(
    start_mirror: StartMirror,
    west: Peer,
    east: Peer,
    topic: str,
    *parts: str,
    request_id: str = "1",
) -> None:
    before = [asyncio.run(read_batches(west.bootstrap, topic, number)) for number in (0, 1)]
    worker = back(start_mirror, west, east, topic, request_id)
    error_of(worker, f"topic {topic}: ", *parts)
    assert [asyncio.run(read_batches(west.bootstrap, topic, number)) for number in (0, 1)] == before
    assert not config_of(west, topic)[KEY], "it is not taken from those who write to it"
    worker.stop()


def test_topic_without_common_records_is_refused(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """For example because it was deleted and created again."""
    topic = unique("other")
    for broker, first in ((west, 0), (east, 500)):
        create(broker, topic, 2)
        produce(broker, topic, range(first, first + 100), 2)
    parts = (
        "has no record in common with the source, of offsets 0 to 49: exclude it, or delete it in the target"
    )
    refused(start_mirror, west, east, topic, parts)
    produce(west, topic, range(2), 2)


def test_source_without_common_offsets_is_refused(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("retained")
    create(west, topic, 2)
    fail_over(start_mirror, west, east, topic)
    at = TopicPartition(topic, 1, 120)
    admin(east).delete_records([at])[at].result(20)
    what = "partition 1 has no offset in common with the source: it ends at 65, and the source has deleted everything"
    refused(start_mirror, west, east, topic, what, "before 120: delete it in the target")


def test_incomparable_topics_are_refused(
    west: InProcessBroker, north: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    compacted, larger, replica = unique("compacted"), unique("larger"), unique("replica")
    create(west, compacted, 2, cleanup_policy="compact")
    create(east, compacted, 2)
    what = "it is compacted (cleanup.policy=compact in the target), so batches of equal logs may differ: delete it"
    refused(start_mirror, west, east, compacted, what)
    create(west, larger, 3)
    create(east, larger, 2)
    what = "it has 3 partitions in the target and 2 in the source: delete it in the target"
    refused(start_mirror, west, east, larger, what)
    for broker in (north, west):
        create(broker, replica, 2)
    worker = out(start_mirror, north, east, replica)
    arrived(east, replica, [0, 0])
    worker.stop()
    what = "in the source it is itself a read-only mirror, of "
    refused(start_mirror, west, east, replica, what, "promote it there first")


def test_ambiguous_leader_epochs_are_refused(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """The source was not promoted from a replica, but shares a beginning: batches of equal epochs would differ."""
    topic = unique("epochs")
    create(west, topic, 2)
    fail_over(start_mirror, west, east, topic)
    worker = back(start_mirror, west, east, topic)
    arrived(west, topic, [150, 150])
    worker.stop()
    produce(east, topic, range(20), 2)
    promote(west, topic)
    produce(west, topic, range(7000, 7010), 2)
    what = "parted from the source at offset 150, and the source's leader epoch there"
    refused(start_mirror, west, east, topic, what, "is not above", request_id="2")

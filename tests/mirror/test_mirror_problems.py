"""Problems of a mirror: the status names them with a remedy, the rest continues, and the mirror recovers by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, produce
from millstream_harness.scenario import eventually, unique
from millstream_mirror.partitions.stats import Counters, Rate

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]


def problems(mirror: MirrorProcess) -> list[dict[str, str]]:
    found: list[dict[str, str]] = mirror.status()["sources"][0]["problems"]
    return found


def test_too_large_batch_is_reported(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    large, small = unique("large"), unique("small")
    for topic in (large, small):
        create(west, topic)
    create(east, large, max_message_bytes="2000")
    produce(west, large, range(1000), linger_ms=100, batch_num_messages=1000)
    produce(west, small, range(10))
    mirror = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, topics={"include": [large, small]}, name=large
    )
    arrived(east, small, [10])
    (problem,) = eventually(lambda: problems(mirror), bool, "a problem")
    assert problem["reason"] == "RecordTooLarge"
    assert problem["message"].startswith(f"{large}-0: a batch of ")
    assert f"too large for topic {large} in the target: raise its max.message.bytes" in problem["message"]
    entry = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, large, incremental_configs=[entry])
    for done in admin(east).incremental_alter_configs([change]).values():
        done.result(20)
    arrived(east, large, [1000])
    eventually(lambda: problems(mirror), lambda found: not found, "the worker has its answer, too")


@pytest.mark.parametrize("mode", ["Aggregate", "Identity"])
def test_partition_without_leader_delays_no_other(
    cluster: InProcessCluster, east: InProcessBroker, start_mirror: StartMirror, mode: str
) -> None:
    """The broker that has the only copy of a topic is away while the worker starts."""
    kept, lost = unique("kept"), unique("lost")
    for topic, copies in ((kept, 3), (lost, 1)):
        admin(cluster).create_topics([NewTopic(topic, 1, copies)])[topic].result(20)
        cluster.await_in_sync(topic, replicas=copies)
        produce(cluster, topic, range(10))
    away = cluster.leader(lost)
    away.kill()
    eventually(
        lambda: {topic: cluster.partitions(topic)[0].leader_id for topic in (kept, lost)},
        lambda leaders: leaders[lost] < 0 <= leaders[kept],
        "one topic has a leader",
    )
    mirror = start_mirror(
        {"west": cluster.bootstrap}, east.bootstrap, topics={"include": [kept, lost]}, mode=mode
    )
    arrived(east, kept, [10])
    status = mirror.status()["sources"][0]
    assert status["lastError"] == f"{lost}-0: no leader in the source"
    away.start()
    arrived(east, lost, [10])
    eventually(lambda: mirror.status()["sources"][0]["lastError"], lambda error: not error, "no error")


def test_topic_mirrored_twice_is_reported(
    west: InProcessBroker, north: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, other = unique("twice"), unique("once")
    for name in (topic, other):
        create(west, name)
        produce(west, name, range(100))
    create(north, topic)
    produce(north, topic, range(50))
    names = [unique(name) for name in ("first", "second", "third")]
    first = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=names[0])
    arrived(east, topic, [100])
    first.kill()  # it may come back: a mirror that does not run counts, too
    second = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, topics={"include": [topic, other]}, name=names[1]
    )
    arrived(east, other, [100])
    (problem,) = eventually(lambda: problems(second), bool, "a problem")
    assert problem == {
        "reason": "MirroredTwice",
        "message": f"topic {topic}: group millstream-mirror.{names[0]}.west in the target has its progress from the"
        " same source: left out, because each record would be copied twice: exclude it here, or delete that group if"
        " its mirror is gone for good",
    }
    assert second.status()["sources"][0]["topicNames"] == [other]
    # From another source it is another topic's records.
    start_mirror({"north": north.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=names[2])
    arrived(east, topic, [150])

    def deleted() -> bool:  # a killed member keeps its group for a while
        done = admin(east).delete_consumer_groups([f"millstream-mirror.{names[0]}.west"])
        return all(one.exception(20) is None for one in done.values())

    eventually(deleted, bool, "the first mirror's group deleted")
    arrived(east, topic, [250])
    eventually(lambda: problems(second), lambda found: not found, "no problem")


def test_unmatched_pattern_is_reported_until_topic_exists(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("later")
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)

    def source() -> dict[str, Any]:
        found: dict[str, Any] = mirror.status()["sources"][0]
        return found

    eventually(source, lambda found: found["matched"] == 0, "no topic")
    create(west, topic)
    produce(west, topic, range(1000))
    arrived(east, topic, [1000])
    assert source()["matched"] == 1

    def source_of_more() -> dict[str, Any]:
        produce(west, topic, range(10))
        return source()

    eventually(
        source_of_more, lambda found: found["rate"]["records"] > 0 and found["rate"]["bytes"] > 0, "a rate"
    )


def test_rate_covers_last_ten_seconds() -> None:
    rate, counters = Rate(), Counters()
    assert rate.per_second() == (0, 0)
    for second in range(31):
        counters.records, counters.bytes = (10 * second, 1000 * second) if second <= 20 else (200, 20_000)
        rate.sample(100 + second, counters)
        if 0 < second <= 20:
            assert rate.per_second() == (10, 1000)
    assert rate.per_second() == (0, 0)

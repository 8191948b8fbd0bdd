"""Many partitions at once: the target creates them in requests of a bounded size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import NewPartitions, NewTopic

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, admin, arrived, produce
from millstream_harness.mirror_brokers import broker_fixture, requests
from millstream_harness.mirror_conditions import conditions_of
from millstream_harness.scenario import eventually, unique
from millstream_mirror.kafka.topics import PARTITIONS_AT_ONCE, in_parts

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
west, east = broker_fixture("west"), broker_fixture("east")
TOPICS = 7
OF_EACH = PARTITIONS_AT_ONCE // 5


@pytest.mark.parametrize("mode", ["Aggregate", "Identity"])
def test_many_new_partitions_are_created_in_parts(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror, mode: str
) -> None:
    prefix = unique("many")
    topics = [f"{prefix}-{number}" for number in range(TOPICS)]
    for created in admin(west).create_topics([NewTopic(topic, OF_EACH, 1) for topic in topics]).values():
        created.result(60)
    before = requests(east, "CreateTopics")
    mirror = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, name=prefix, mode=mode, topics={"include": [f"{prefix}.*"]}
    )
    for topic in (topics[0], topics[-1]):
        produce(west, topic, range(OF_EACH), OF_EACH)
        arrived(east, topic, [1] * OF_EACH)
    assert requests(east, "CreateTopics") - before == 2, "five topics, then two"

    larger = PARTITIONS_AT_ONCE + 1
    admin(west).create_partitions([NewPartitions(topics[0], larger)])[topics[0]].result(60)
    eventually(
        lambda: len(admin(west).list_topics(topics[0]).topics[topics[0]].partitions),
        lambda count: count == larger,
        "the source's partitions",
    )
    produce(west, topics[0], range(larger), larger)
    arrived(east, topics[0], [2] * OF_EACH + [1] * (larger - OF_EACH))
    eventually(
        lambda: conditions_of(mirror).get("Ready", ("",) * 3),
        lambda ready: ready[:2] == ("True", "Mirroring"),
        "all is mirrored",
    )


def test_parts_keep_order_and_isolate_large_items() -> None:
    def parts(*sizes: int) -> list[list[int]]:
        return list(in_parts(sizes, lambda size: size, 10))

    assert parts() == []
    assert parts(4, 6, 1, 9, 2) == [[4, 6], [1, 9], [2]]
    assert parts(3, 25, 3, 10) == [[3], [25], [3], [10]]
    assert parts(11) == [[11]]

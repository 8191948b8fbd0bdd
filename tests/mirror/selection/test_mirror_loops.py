"""No mirror copies a topic back to the origin of its records, even while a worker on the way does not run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import Looks, MirrorProcess, Peer, admin, arrived, create, produce
from millstream_harness.mirror_brokers import requests
from millstream_harness.mirror_groups import commit
from millstream_harness.scenario import eventually, unique
from millstream_kafka.client import ClusterClient
from millstream_kafka.mirror_source import KEY
from millstream_mirror.kafka.group_offsets import groups_in

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]


@pytest.fixture(scope="module")
def south(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path_factory.mktemp("south"), {"offsets.topic.num.partitions": "3"}) as broker:
        yield broker


def left_out(topic: str, mirror: MirrorProcess) -> str:
    """A worker's message for a topic that this other mirror fills in its source."""
    return (
        f"topic {topic}: left out: its records come from the target: group {group_of(mirror)} in the source has its"
        " progress: exclude it in one of the mirrors, or delete that group if its mirror is gone for good"
    )


def group_of(mirror: MirrorProcess) -> str:
    return f"millstream-mirror.{mirror.config['name']}.{mirror.config['sources'][0]['name']}"


def error_of(mirror: MirrorProcess) -> str:
    error: str = mirror.status()["sources"][0]["lastError"]
    return error


def says(mirror: MirrorProcess, wanted: str) -> None:
    eventually(lambda: error_of(mirror), lambda said: said == wanted, "what the worker says")


def end_of(broker: Peer, topic: str) -> int:
    at = TopicPartition(topic, 0)
    end: int = admin(broker).list_offsets({at: OffsetSpec.latest()})[at].result(20).offset
    return end


def is_empty(broker: Peer, mirror: MirrorProcess) -> None:
    """Wait until the session of a killed worker has ended."""
    group = group_of(mirror)

    async def state() -> str:
        async with ClusterClient(broker.bootstrap) as cluster:
            await cluster.metadata([])
            (found,) = [one for one in await groups_in(cluster) if one.group_id == group]
            return found.group_state

    eventually(lambda: asyncio.run(state()), lambda now: now == "Empty", f"group {group} without members")


def test_loop_of_two_is_left_out(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("circle")
    create(west, topic)
    produce(west, topic, range(100))
    there = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(east, topic, [100])
    back = start_mirror({"east": east.bootstrap}, west.bootstrap, topics={"include": [topic]}, name=topic)
    says(back, left_out(topic, there))
    produce(west, topic, range(100, 110))
    arrived(east, topic, [110])
    arrived(west, topic, [110])
    assert error_of(there) == ""


def test_loop_without_running_worker_is_left_out(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("away")
    create(west, topic)
    produce(west, topic, range(100))
    there = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(east, topic, [100])
    looks = Looks(east, west, topic)
    back = start_mirror(
        {"east": east.bootstrap}, west.bootstrap, topics={"include": [topic, looks.pattern]}, name=topic
    )
    says(back, left_out(topic, there))
    there.kill()
    is_empty(east, there)
    looks.twice()
    assert end_of(west, topic) == 100
    back.kill()  # the next worker of this mirror knows only the stored progress
    back.start()
    looks.twice()
    assert end_of(west, topic) == 100
    says(back, left_out(topic, there))
    there.start()
    produce(west, topic, range(100, 110))
    arrived(east, topic, [110])
    looks.twice()
    arrived(west, topic, [110])
    assert error_of(there) == ""


@pytest.mark.parametrize("at_once", [False, True])
def test_loop_of_three_is_left_open(
    west: InProcessBroker,
    east: InProcessBroker,
    south: InProcessBroker,
    start_mirror: StartMirror,
    at_once: bool,
) -> None:
    topic = unique("three")
    config: dict[str, Any] = {"topics": {"include": [topic]}, "name": topic}
    around = [west, south, east]

    def ends() -> list[int]:
        return [end_of(broker, topic) for broker in around]

    for broker in around if at_once else [west]:
        create(broker, topic)
    mirrors = []
    for number, broker in enumerate(around):
        following = around[(number + 1) % 3]
        mirrors.append(start_mirror({f"s{number}": broker.bootstrap}, following.bootstrap, **config))
        if not at_once and following is not west:
            produce(west, topic, range(50))
            arrived(following, topic, [50 * (number + 1)])
    messages = [left_out(topic, mirrors[number - 1]) for number in range(3)]

    def said() -> list[str]:
        return [error_of(each) for each in mirrors]

    if at_once:  # they detect one another, and at least one of them breaks the loop
        produce(west, topic, range(50))
        eventually(
            said,
            lambda now: any(one == wanted for one, wanted in zip(now, messages, strict=True)),
            "an open circle",
        )
        eventually(lambda: stays_equal(ends, around), bool, "an end")
    else:
        eventually(said, lambda now: now == ["", "", messages[2]], "an open circle")
        produce(west, topic, range(100, 150))
        for broker in around:
            arrived(broker, topic, [150])


def stays_equal(read: Callable[[], list[int]], sources: list[InProcessBroker]) -> bool:
    """Whether it does while the workers of all sources look at them again."""
    found = read()
    before = [requests(one, "Metadata") for one in sources]
    eventually(
        lambda: [requests(one, "Metadata") for one in sources],
        lambda now: all(later > earlier + 2 for later, earlier in zip(now, before, strict=True)),
        "another look",
    )
    return read() == found


@pytest.mark.parametrize("away", [[0], [1], [0, 1]], ids=["the first", "the second", "both"])
def test_loop_of_three_without_workers_stays_open(
    west: InProcessBroker,
    east: InProcessBroker,
    south: InProcessBroker,
    start_mirror: StartMirror,
    away: list[int],
) -> None:
    topic = unique("three")
    around = [west, south, east]
    looks = Looks(east, west, topic)
    create(west, topic)
    produce(west, topic, range(50))
    mirrors = [
        start_mirror(
            {f"s{number}": broker.bootstrap},
            around[(number + 1) % 3].bootstrap,
            topics={"include": [topic, looks.pattern] if number == 2 else [topic]},
            name=topic,
        )
        for number, broker in enumerate(around)
    ]
    for broker in around:
        arrived(broker, topic, [50])
    says(mirrors[2], left_out(topic, mirrors[1]))
    for number in away:
        mirrors[number].kill()
    for number in away:
        is_empty(around[number + 1], mirrors[number])
    looks.twice()
    looks.twice()  # once the previous mirror has stored its origins
    assert end_of(west, topic) == 50
    says(mirrors[2], left_out(topic, mirrors[1]))
    for number in away:
        mirrors[number].start()
    produce(west, topic, range(50, 60))
    for broker in around:
        arrived(broker, topic, [60])
    assert [error_of(each) for each in mirrors[:2]] == ["", ""]


def test_deleted_group_ends_loop(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("gone")
    create(west, topic)
    produce(west, topic, range(100))
    there = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(east, topic, [100])
    back = start_mirror({"east": east.bootstrap}, west.bootstrap, topics={"include": [topic]}, name=topic)
    says(back, left_out(topic, there))
    refused = delete_group(east, there)
    assert refused.returncode == 1
    assert f"group {group_of(there)} is Stable, with 1 member: stop its consumers first" in refused.stderr
    there.stop()
    assert delete_group(east, there).returncode == 0
    arrived(west, topic, [200])
    says(back, "")


def delete_group(broker: Peer, mirror: MirrorProcess) -> subprocess.CompletedProcess[str]:
    """As docs/mirroring.md describes."""
    command = [str(Path(sys.executable).parent / "millstream"), "--bootstrap", broker.bootstrap]
    return subprocess.run(
        [*command, "group", "delete", group_of(mirror), "--yes"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_deselected_topic_may_be_mirrored_back(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, other = unique("reversed"), unique("other")
    for each in (topic, other):
        create(west, each)
        produce(west, each, range(100))
    there = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, topics={"include": [topic, other]}, name=topic
    )
    for each in (topic, other):
        arrived(east, each, [100])
    back = start_mirror({"east": east.bootstrap}, west.bootstrap, topics={"include": [topic]}, name=topic)
    says(back, left_out(topic, there))
    there.stop()
    there.config["topics"] = {"include": [other]}
    there.start()
    arrived(west, topic, [200])
    says(back, "")
    there.stop()
    there.config["topics"] = {"include": [topic, other]}
    there.start()
    says(there, left_out(topic, back))
    produce(west, other, range(100, 110))
    arrived(east, other, [110])
    arrived(east, topic, [100])
    # It continues at its position once nothing is in its way.
    back.stop()
    assert delete_group(west, back).returncode == 0
    arrived(east, topic, [200])
    back.start()
    says(back, left_out(topic, there))


def test_promoted_replica_is_not_mirrored_back(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """It gets no more records of west, but its old ones would be in west twice."""
    topic = unique("promoted")
    create(west, topic)
    produce(west, topic, range(100))
    there = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic, mode="Identity"
    )
    arrived(east, topic, [100])
    there.stop()
    command = [str(Path(sys.executable).parent / "millstream"), "-b", east.bootstrap, "config", "reset"]
    subprocess.run([*command, f"topic/{topic}", KEY], check=True, timeout=60)
    produce(east, topic, range(100, 110))
    looks = Looks(east, west, topic)
    back = start_mirror(
        {"east": east.bootstrap}, west.bootstrap, topics={"include": [topic, looks.pattern]}, name=topic
    )
    looks.twice()
    says(
        back,
        f"topic {topic}: left out: its records come from the target: it was a replica in the source, by group"
        f" {group_of(there)}, until it was promoted: mirror it with mode Identity, exclude it, or delete that group to"
        " copy all its records into the target again",
    )
    assert end_of(west, topic) == 100
    back.stop()
    back.config |= {"mode": "Identity", "rejoin": {"requestId": "1"}, "topics": {"include": [topic]}}
    back.start()
    arrived(west, topic, [110])


def test_foreign_positions_are_no_loop(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic = unique("others")
    create(east, topic)
    produce(east, topic, range(10))
    commit(east, f"millstream-mirror.{topic}.somewhere", topic, 5)
    start_mirror({"east": east.bootstrap}, west.bootstrap, topics={"include": [topic]}, name=topic)
    arrived(west, topic, [10])

"""Mode Aggregate when the source loses records that were mirrored: the partition waits, and two histories never mix."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from millstream_harness.cluster import until
from millstream_harness.in_process_broker import CopiedInProcessBroker, InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.mirror import MirrorProcess, admin, arrived, create, numbers, produce
from millstream_harness.mirror_conditions import conditions_of, is_degraded
from millstream_harness.scenario import eventually, unique
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import FetchResponse
from millstream_mirror.kafka.log_reader import read
from millstream_mirror.kafka.progress import Progress, ProgressStore
from millstream_mirror.selection.other_mirrors import progress_of

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
TENS = {"batch_num_messages": 10, "linger_ms": 200}
"""Batches of ten records, so those of two histories lie at the same offsets."""


@pytest.fixture
def source(copied: CopiedInProcessBroker) -> CopiedInProcessBroker:
    return copied


def mirror_of_fifty(
    topic: str, source: InProcessBroker, target: InProcessBroker, start_mirror: StartMirror
) -> MirrorProcess:
    """A worker of a new topic with fifty records, in batches of ten; it has the topic's name."""
    create(source, topic)
    produce(source, topic, range(50), **TENS)
    return start_mirror(
        {"source": source.bootstrap}, target.bootstrap, name=topic, topics={"include": [topic]}
    )


def has_diverged(mirror: MirrorProcess, topic: str) -> str:
    message = is_degraded(mirror, "Diverged")
    assert message.startswith(f"{topic}-0: diverged: the source ")
    assert f"delete topic {topic} in the target to mirror the source from its start" in message
    assert conditions_of(mirror)["CaughtUp"][:2] == ("False", "Diverged")
    assert mirror.status()["sources"][0]["lastError"] == message
    return message


def is_ready(mirror: MirrorProcess) -> None:
    eventually(
        lambda: conditions_of(mirror).get("Ready", ("",) * 3), lambda now: now[0] == "True", "ready again", 90
    )


@pytest.mark.parametrize("worker", ["runs", "starts later"])
@pytest.mark.parametrize("added", [10, 300])
def test_restored_source_stops_partition(
    source: CopiedInProcessBroker, east: InProcessBroker, start_mirror: StartMirror, worker: str, added: int
) -> None:
    """It lacks 60 records, and has ``added`` others in their place."""
    topic = unique("restored")
    create(source, topic, 2)
    produce(source, topic, range(100), 2, **TENS)
    config: dict[str, Any] = {"name": topic, "topics": {"include": [topic]}}
    mirror = start_mirror({"source": source.bootstrap}, east.bootstrap, **config)
    arrived(east, topic, [50, 50])
    source.copy()
    produce(source, topic, range(100, 160), 1, **TENS)  # to the first partition
    arrived(east, topic, [110, 50])
    if worker == "runs":
        mirror.pause()
    else:
        mirror.stop()
    source.restore()
    source.start()
    produce(source, topic, range(1000, 1000 + added), 1, **TENS)
    produce(source, topic, range(2001, 2100, 2), 2, **TENS)  # to the second partition
    if worker == "runs":
        mirror.resume()
    else:
        mirror.start()
    arrived(east, topic, [110, 100])
    has_diverged(mirror, topic)
    assert numbers(east, topic) == [*range(0, 100, 2), *range(100, 160)]

    produce(source, topic, range(3000, 3400), 1, **TENS)  # also if its log is the longer one now
    mirror.kill()
    mirror.start()
    has_diverged(mirror, topic)
    assert numbers(east, topic) == [*range(0, 100, 2), *range(100, 160)]
    admin(east).delete_topics([topic])[topic].result(20)
    arrived(east, topic, [50 + added + 400, 100])
    assert numbers(east, topic) == numbers(source, topic)
    is_ready(mirror)


def test_source_with_records_back_continues(
    source: CopiedInProcessBroker, east: InProcessBroker, start_mirror: StartMirror, tmp_path: Path
) -> None:
    topic = unique("returned")
    mirror = mirror_of_fifty(topic, source, east, start_mirror)
    source.copy()
    produce(source, topic, range(50, 100))
    arrived(east, topic, [100])
    source.stop()
    shutil.copytree(source.data, tmp_path / "whole")
    source.restore()
    source.start()
    has_diverged(mirror, topic)
    source.kill()
    shutil.rmtree(source.data)
    (tmp_path / "whole").rename(source.data)
    source.start()
    is_ready(mirror)
    produce(source, topic, range(100, 150))
    arrived(east, topic, [150])
    assert numbers(east, topic) == [*range(150)]


@pytest.mark.parametrize(
    "batches", [TENS, {"batch_num_messages": 7, "linger_ms": 200}], ids=["same", "other"]
)
def test_lost_source_records_after_last_commit_are_noticed(
    source: CopiedInProcessBroker, east: InProcessBroker, start_mirror: StartMirror, batches: dict[str, int]
) -> None:
    """The worker dies before it commits, and the source has other records, also in other batches, when it returns."""
    topic = unique("uncommitted")
    mirror = mirror_of_fifty(topic, source, east, start_mirror)
    arrived(east, topic, [50])
    source.copy()
    group = f"millstream-mirror.{topic}.source"
    before = progress(east, group, topic)
    produce(source, topic, range(50, 90), **TENS)
    arrived(east, topic, [90])
    mirror.stop()
    commit(east, group, topic, before)  # as if it had died before this
    source.restore()
    source.start()
    produce(source, topic, range(1000, 1100), **batches)
    mirror.start()
    assert "lacks records from offset 50 on" in has_diverged(mirror, topic)
    assert numbers(east, topic) == [*range(90)]


def test_records_after_last_commit_are_sent_once(
    source: CopiedInProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """The same without a loss: the worker that takes over finds its records in the target."""
    topic = unique("taken")
    mirror = mirror_of_fifty(topic, source, east, start_mirror)
    arrived(east, topic, [50])
    group = f"millstream-mirror.{topic}.source"
    before = progress(east, group, topic)
    produce(source, topic, range(50, 250), **TENS)
    arrived(east, topic, [250])
    mirror.stop()
    commit(east, group, topic, before)
    produce(source, topic, range(250, 300), **TENS)
    mirror.start()
    arrived(east, topic, [300])
    assert numbers(east, topic) == [*range(300)]
    is_ready(mirror)


def test_clean_election_delays_nothing(
    tmp_path: Path, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """Leaders that change hands have the same history: the mirror continues, and never reports a divergence."""
    topic = unique("clean")
    with InProcessCluster(tmp_path / "source") as source:
        admin(source).create_topics([NewTopic(topic, 2, 3)])[topic].result(30)
        source.await_in_sync(topic)
        mirror = start_mirror(
            {"source": source.bootstrap}, east.bootstrap, name=topic, topics={"include": [topic]}
        )
        for number in range(3):
            produce(source, topic, range(number * 200, number * 200 + 200), 2, **TENS)
            leader = source.leader(topic)
            leader.kill()
            until(lambda gone=leader: source.leader(topic) is not gone, "another leader")
            produce(source, topic, range(1000 + number * 200, 1200 + number * 200), 2, **TENS)
            arrived(east, topic, [(number + 1) * 200] * 2)
            leader.start()
            source.await_in_sync(topic)
        assert numbers(east, topic) == numbers(source, topic)
        assert "diverged" not in mirror.said()
        is_ready(mirror)


def test_unreplicated_leader_is_no_divergence(
    tmp_path: Path, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """It does not return its last records until the other replica is back, and the partition waits so long."""
    topic = unique("alone")
    with InProcessCluster(tmp_path / "source") as source:
        settings = {"min.insync.replicas": "2"}
        admin(source).create_topics([NewTopic(topic, 4, 2, config=settings)])[topic].result(30)
        mirror = start_mirror(
            {"source": source.bootstrap}, east.bootstrap, name=topic, topics={"include": [topic]}
        )
        for number in range(3):
            produce(source, topic, range(number * 400, number * 400 + 400), 4, **TENS)
            arrived(east, topic, [(number + 1) * 100] * 4)
            leader = source.leader(topic)
            leader.kill()
            until(lambda gone=leader: source.leader(topic) is not gone, "another leader")
            leader.start()
            source.await_in_sync(topic, 2)
        produce(source, topic, range(1200, 1600), 4, **TENS)
        arrived(east, topic, [400] * 4)
        assert numbers(east, topic, 3) == [*range(3, 1600, 4)]
        assert "diverged" not in mirror.said()


def test_progress_of_older_release_gains_last_batch(
    source: CopiedInProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    """Also of a partition that gets no new records."""
    topic = unique("older")
    mirror = mirror_of_fifty(topic, source, east, start_mirror)
    group = f"millstream-mirror.{topic}.source"
    whole = progress(east, group, topic)
    assert whole.last is not None
    assert whole.target_id
    mirror.stop()
    commit(east, group, topic, replace(whole, last=None, target_id=""))
    mirror.start()
    eventually(
        lambda: progress(east, group, topic),
        lambda now: (now.last, now.target_id) == (whole.last, whole.target_id),
        "the last batch and the target's id",
    )


class Throttling:
    """Answers a Fetch as Kafka does while a quota is exceeded."""

    async def call_leader(self, *_: object) -> FetchResponse:
        return FetchResponse(throttle_time_ms=1)


async def test_throttled_source_is_retried() -> None:
    source: Any = Throttling()
    with pytest.raises(ApiError) as caught:
        await read(source, ("topic", 0), 0, 1)
    assert caught.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert caught.value.code.retriable


def progress(target: InProcessBroker, group: str, topic: str) -> Progress:
    """The progress that is committed at offset 50."""

    async def committed() -> Progress | None:
        async with ClusterClient(target.bootstrap) as cluster:
            return (await progress_of(cluster, group)).get((topic, 0))

    found = eventually(
        lambda: asyncio.run(committed()), lambda now: now is not None and now.offset == 50, "a commit"
    )
    assert found is not None
    return found


def commit(target: InProcessBroker, group: str, topic: str, one: Progress) -> None:
    async def store() -> None:
        async with ClusterClient(target.bootstrap) as cluster:
            await ProgressStore(cluster, group).commit({(topic, 0): one}, "", -1)

    asyncio.run(store())

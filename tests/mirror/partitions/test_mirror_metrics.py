"""Metrics of a worker: by source and by topic, within bounds."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import MirrorProcess, arrived, create, produce
from millstream_harness.scenario import eventually, unique
from millstream_mirror.partitions.diverged_partition import DivergedPartition
from millstream_mirror.partitions.metrics import MOST_TOPICS, page
from millstream_mirror.partitions.stats import Counters, SourceStatus, TopicStatus
from millstream_process.loop import stalls

pytestmark = pytest.mark.process

StartMirror = Callable[..., MirrorProcess]


def values(text: str, name: str) -> dict[str, float]:
    """Values by labels."""
    found = re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


async def test_topic_metrics_beyond_limit_are_added_up() -> None:
    topics = {f"t{number:05}": TopicStatus(1, 10, number, number) for number in range(MOST_TOPICS + 500)}
    sources = [
        SourceStatus(name, True, [], 0, 0, 0.0, "", target={"reachable": True}, by_topic=topics)
        for name in ("west", "north")
    ]
    text = page(sources, stalls()).text().decode()
    for name, total in (("records_total", 1500), ("bytes_total", 15_000), ("lag_records", sum(range(1500)))):
        found = values(text, f"millstream_mirror_topic_{name}")
        assert len(found) == 2 * MOST_TOPICS
        assert sum(value for labels, value in found.items() if "west" in labels) == total
        assert found['source="north",topic="(others)"'] == found['source="west",topic="(others)"'] > 1
    seconds = values(text, "millstream_mirror_topic_lag_seconds")
    assert len(seconds) == 2 * MOST_TOPICS
    assert min(seconds.values()) == 500, "the topics that are furthest behind"


async def test_renamed_metric_keeps_former_name() -> None:
    counters = Counters(renumbered_partitions=3)
    diverged = [DivergedPartition("t", 0, 5, 4), DivergedPartition("t", 1, 2, 3)]
    source = SourceStatus(
        "west", True, [], 0, 0, 0.0, "", counters, target={"reachable": True}, diverged=diverged
    )
    text = page([source], stalls()).text().decode()
    for name in ("renumbered_partitions", "renumbered_lanes"):
        assert values(text, f"millstream_mirror_{name}_total") == {'source="west"': 3}
    for name in ("diverged_records", "set_aside_records"):
        assert values(text, f"millstream_mirror_{name}") == {'source="west",topic="t"': 7}


def test_worker_metrics_count_records_by_source_and_topic(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    one, two = unique("one"), unique("two")
    for topic, count in ((one, 100), (two, 30)):
        create(west, topic)
        produce(west, topic, range(count))
    limit = {"west": {"maxBytesPerSecond": 50_000_000}}
    topics = {"include": [one, two]}
    mirror = start_mirror(
        {"west": west.bootstrap}, east.bootstrap, security=limit, topics=topics, naming="Prefixed", name=one
    )
    for topic, count in ((one, 100), (two, 30)):
        arrived(east, f"west.{topic}", [count])
    labels = {topic: f'source="west",topic="west.{topic}"' for topic in (one, two)}
    records = eventually(
        lambda: values(mirror.get("/metrics"), "millstream_mirror_topic_records_total"),
        lambda found: sum(found.values()) == 130,
        "all records counted",
    )
    assert records == {labels[one]: 100, labels[two]: 30}
    text = mirror.get("/metrics")
    sizes = values(text, "millstream_mirror_topic_bytes_total")
    assert sum(sizes.values()) == values(text, "millstream_mirror_bytes_total")['source="west"']
    assert values(text, "millstream_mirror_topic_lag_records") == dict.fromkeys(labels.values(), 0)
    assert values(text, "millstream_mirror_limit_bytes_per_second") == {'source="west"': 50_000_000}
    assert values(text, "millstream_mirror_target_reachable") == {'source="west"': 1}
    assert 'source="west"' in values(text, "millstream_mirror_throttled_seconds_total")

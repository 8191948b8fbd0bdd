"""A source topic that is compacted while no worker runs: each record that is left comes once, in order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.mirror import (
    MirrorProcess,
    Peer,
    admin,
    arrived,
    create,
    numbers,
    produce,
    read_batches,
)
from millstream_harness.mirror_groups import commit, follows, values
from millstream_harness.scenario import eventually, unique
from millstream_harness.wire import Wire
from millstream_kafka.batch import BatchHeader, Record, build_batch, read_header
from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol.errors import ErrorCode
from millstream_mirror.selection.other_mirrors import progress_of

pytestmark = pytest.mark.soak

StartMirror = Callable[..., MirrorProcess]
EAGER = {
    "cleanup_policy": "compact",
    "segment_bytes": "20000",
    "min_cleanable_dirty_ratio": "0.01",
    "max_compaction_lag_ms": "1",
}


KEYS = 50
"""That `produce` uses in turn: so many of the last records are the last ones of their keys."""


def set_policy(broker: Peer, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin(broker).incremental_alter_configs([resource])[resource].result(20)


def ahead_of_progress(target: InProcessBroker, mirror: MirrorProcess, topic: str) -> int:
    """How many records of the mirror the target has behind the progress."""

    async def sequence() -> int:
        async with ClusterClient(target.bootstrap) as cluster:
            await cluster.metadata([])
            found = await progress_of(cluster, f"millstream-mirror.{mirror.config['name']}.west")
            return found[topic, 0].sequence

    batches = asyncio.run(read_batches(target.bootstrap, topic, 0))
    return read_header(batches[-1]).last_sequence + 1 - asyncio.run(sequence())


def late_request(target: InProcessBroker, topic: str, last: BatchHeader) -> ErrorCode:
    """The target's response to a request of the ended worker, with the number that followed its ``last`` batch."""
    late = build_batch(
        [Record(b"key", b"late", int(time.time() * 1000))],
        producer_id=last.producer_id,
        producer_epoch=last.producer_epoch,
        base_sequence=last.last_sequence + 1,
    )
    with Wire(target.bootstrap) as wire:
        return ErrorCode.of(wire.produce(topic, late, acks=-1).error_code)


def until_clean(broker: Peer, topic: str) -> None:
    eventually(
        lambda: len(numbers(broker, topic)), lambda left: left < 300, "the cleaner has removed most", 60
    )


@pytest.mark.parametrize(
    ("batch", "target_too", "later"),
    [(1, False, "compact"), (7, False, "compact"), (7, True, "compact"), (7, False, "delete")],
)
def test_killed_worker_continues_in_compacted_source(
    west: InProcessBroker,
    east: InProcessBroker,
    start_mirror: StartMirror,
    batch: int,
    target_too: bool,
    later: str,
) -> None:
    """``target_too``: the copy is compacted, too. ``later``: the policy of the source when the worker is back."""
    topic = unique(f"compacted-{batch}")
    create(west, topic, **EAGER)
    create(east, topic, **(EAGER if target_too else {}))
    mirror = start_mirror({"west": west.bootstrap}, east.bootstrap, topics={"include": [topic]}, name=topic)
    written = 0

    def write(count: int) -> None:
        nonlocal written
        produce(west, topic, range(written, written + count), batch_num_messages=batch, linger_ms=20)
        written += count

    write(20)
    arrived(east, topic, [20])
    for _ in range(2):
        set_policy(west, topic, "compact")
        ahead = 0
        while not ahead:  # until it dies between sending records and committing that
            before = mirror.records()
            wanted = random.randint(1, 30)
            write(40)
            eventually(mirror.records, lambda now, at=before + wanted: now >= at, "records")
            mirror.kill()
            ahead = ahead_of_progress(east, mirror, topic)
            if not ahead:
                mirror.start()
        there = numbers(east, topic)
        last = read_header(asyncio.run(read_batches(east.bootstrap, topic, 0))[-1])
        write(800)  # the keys again, so that all before can be cleaned
        eventually(
            lambda: len(numbers(west, topic)), lambda left: left < 300, "the cleaner has removed most", 60
        )
        set_policy(west, topic, later)
        mirror.start()
        # The cleaner goes on meanwhile: what it leaves in the end must have come.
        found = eventually(
            lambda: (numbers(west, topic), numbers(east, topic)),
            lambda now: {*now[0][-KEYS:]} <= {*now[1]} and (target_too or {*now[0]} <= {*now[1]}),
            "all that is left in the source",
            60,
        )[1]
        assert target_too or found[: len(there)] == there
        assert found == sorted({*found}), "each once, in order"
        assert late_request(east, topic, last) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert 'renumbered_partitions_total{source="west"} 0' in mirror.get("/metrics")


def test_positions_over_gaps_are_exact_after_restart(
    west: InProcessBroker, east: InProcessBroker, start_mirror: StartMirror
) -> None:
    topic, lagging, current = unique("gaps"), unique("lagging"), unique("current")
    create(west, topic, **EAGER)
    create(east, topic)
    produce(west, topic, range(1500), batch_num_messages=7, linger_ms=20)
    until_clean(west, topic)
    set_policy(west, topic, "delete")  # so that the gaps stay as they are
    mirror = start_mirror(
        {"west": west.bootstrap},
        east.bootstrap,
        topics={"include": [topic]},
        groups={"include": [lagging, current]},
        name=topic,
    )
    there = asyncio.run(values(west, topic))
    arrived(east, topic, [len(there)])
    assert there[-1][0] + 1 > len(there) + 1000, "many offsets are missing"

    def exact(offset: int) -> int:
        return sum(at < offset for at, _ in there)

    first, middle, last = there[5][0], there[len(there) // 2][0], there[-1][0] + 1
    commit(west, lagging, topic, first)
    follows(east, lagging, topic, exact(first))
    commit(west, current, topic, last)
    follows(east, current, topic, exact(last))
    mirror.kill()
    mirror.start()
    eventually(lambda: mirror.status()["sources"][0]["groups"], lambda now: now == 2, "its groups")
    produce(west, topic, range(1500, 1510))
    arrived(east, topic, [len(there) + 10])
    commit(west, current, topic, last + 4)
    follows(east, current, topic, exact(last) + 4)  # it has read all that was there before the restart
    commit(west, lagging, topic, middle)
    follows(east, lagging, topic, exact(middle))
    set_policy(west, topic, "compact")  # the next worker cannot rely on numbers any more
    mirror.kill()
    mirror.start()
    late = there[-5][0]  # the last record of its key, so it stays
    commit(west, lagging, topic, late)
    follows(east, lagging, topic, exact(late))

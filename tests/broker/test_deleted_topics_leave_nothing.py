"""Topics that come and go while every background task is busy with them: nothing of them stays in memory."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from weakref import WeakSet

from millstream_broker.broker import Broker
from millstream_broker.client.connection import Connection
from millstream_broker.log.batch import Record, build_batch
from millstream_broker.log.log import Log
from millstream_broker.protocol import create_topics, delete_topics
from millstream_broker.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream_broker.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream_harness.in_process import connected, running
from millstream_harness.replica import NOW_MS
from millstream_harness.scenario import eventually

TOPICS, ROUNDS = 250, 4
ALWAYS_BUSY = {
    "log.cleaner.backoff.ms": "1",
    "log.retention.check.interval.ms": "1",
    "log.flush.offset.checkpoint.interval.ms": "1",
}
CONFIG = {"cleanup.policy": "compact,delete", "flush.ms": "1", "min.cleanable.dirty.ratio": "0"}


async def create(client: Connection, names: list[str]) -> None:
    configs = [CreatableTopicConfig(key, value) for key, value in CONFIG.items()]
    wanted = [CreatableTopic(name, 1, 1, [], configs) for name in names]
    answer = await client.call(create_topics.API, 7, CreateTopicsRequest(wanted, 60_000))
    assert not any(one.error_code for one in answer.topics)


async def delete(client: Connection, names: list[str]) -> None:
    request = DeleteTopicsRequest([DeleteTopicState(name) for name in names], timeout_ms=60_000)
    answer = await client.call(delete_topics.API, 6, request)
    assert not any(one.error_code for one in answer.responses)


def filled(broker: Broker, name: str) -> Log:
    partition = broker.partition(name, 0)
    for _ in range(2):
        records = memoryview(bytearray(build_batch([Record(b"k", b"v", NOW_MS)])))
        partition.append(records, NOW_MS, own=True)
        partition.log.roll(now_ms=NOW_MS)
    return partition.log


async def test_a_thousand_topics_that_were_deleted_leave_nothing_behind(tmp_path: Path) -> None:
    logs: WeakSet[Log] = WeakSet()
    names = [f"t{number}" for number in range(TOPICS)]
    async with running(tmp_path, ALWAYS_BUSY) as broker, connected(broker) as client:
        for _ in range(ROUNDS):  # each of the last round's names
            await create(client, names)
            logs.update(filled(broker, name) for name in names)
            await delete(client, names)

        def left() -> tuple[int, int]:
            gc.collect()
            return len(logs), len(list(tmp_path.glob("t*")))

        await asyncio.to_thread(eventually, left, lambda found: found == (0, 0), "logs and folders")
        assert len(broker.logs.files) == 0
        assert not any(home.rolled or home.logs for home in broker.logs.dirs)
        assert not broker.replicas.unopened

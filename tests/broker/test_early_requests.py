"""A request that comes before the broker knows its cluster is handled whole when it does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream_broker.broker import Broker
from millstream_broker.client import Connection
from millstream_broker.config import BrokerConfig
from millstream_broker.connection import routes_of
from millstream_broker.log.batch import build_batch
from millstream_broker.protocol import create_topics, produce
from millstream_broker.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from millstream_broker.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream_harness.wire import record


async def test_a_produce_that_waits_for_the_controller_keeps_its_records(tmp_path: Path) -> None:
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0", "http.listener": "127.0.0.1:0"}
    broker = Broker(BrokerConfig({"log.dirs": str(tmp_path), **listeners}))
    ready = await broker.start()
    port = int(ready.split("listeners=")[1].split()[0].rpartition(":")[2])
    connection = await Connection.open("127.0.0.1", port, "early")
    created = await connection.call(
        create_topics.API, 7, CreateTopicsRequest([CreatableTopic("t", 1, 1)], 60_000)
    )
    assert created.topics[0].error_code == 0
    told = asyncio.Event()
    broker.server.routes = routes_of(broker.stats, told)
    for number in range(3):
        data = PartitionProduceData(0, build_batch([record("a")]))
        request = ProduceRequest(None, -1, 30_000, [TopicProduceData("t", [data])])
        sent = asyncio.ensure_future(connection.call(produce.API, 9, request))
        await asyncio.sleep(0.1)
        assert sent.done() == told.is_set()
        told.set()
        answer = (await sent).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, number)
    await connection.close()
    await broker.stop()

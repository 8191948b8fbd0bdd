"""A request that comes before the broker knows its cluster is handled completely afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from millstream_broker.network.routes import routes_of
from millstream_harness.in_process import connected, create, running
from millstream_harness.members import until
from millstream_harness.wire import record
from millstream_kafka.batch import build_batch
from millstream_kafka.protocol import produce
from millstream_kafka.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData


class Told(asyncio.Event):
    """Whether the broker knows its cluster; counts the requests that have waited for it."""

    waited = 0

    async def wait(self) -> Literal[True]:
        self.waited += 1
        return await super().wait()


async def test_a_produce_that_waits_for_the_controller_keeps_its_records(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        told = Told()
        broker.server.full.routes = routes_of(broker.handlers, broker.stats, told)
        for number in range(3):
            data = PartitionProduceData(0, build_batch([record("a")]))
            request = ProduceRequest(None, -1, 30_000, [TopicProduceData("t", partition_data=[data])])
            sent = asyncio.ensure_future(client.call(produce.API, 9, request))
            if not told.is_set():
                await until(lambda: told.waited)
                assert not sent.done()
                told.set()
            answer = (await sent).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (0, number)

"""New producer ids from the target.

Kafka's brokers fetch a thousand ids at a time from their controller, and refuse requests that come meanwhile with
COORDINATOR_LOAD_IN_PROGRESS. A worker that starts with thousands of new partitions meets this: it waits.
"""

from __future__ import annotations

import asyncio
import time

from millstream_kafka.client import ClusterClient
from millstream_kafka.protocol import init_producer_id
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.init_producer_id import InitProducerIdRequest

WAIT_S, PAUSE_S = 30.0, 0.05


async def new_producer(target: ClusterClient) -> tuple[int, int]:
    """A producer id and its epoch. Raises BrokerError, ApiError."""
    deadline = time.monotonic() + WAIT_S
    while True:
        response = await target.call_any(init_producer_id.API, InitProducerIdRequest(None))
        if not response.error_code:
            return response.producer_id, response.producer_epoch
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS or time.monotonic() > deadline:
            raise ApiError(code, "requesting a producer id")
        await asyncio.sleep(PAUSE_S)

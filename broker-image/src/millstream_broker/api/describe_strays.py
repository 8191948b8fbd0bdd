"""DescribeStrays: the strays of this broker (`log.strays`), with their sizes as of now."""

from __future__ import annotations

import asyncio

from millstream_kafka.protocol import describe_strays
from millstream_kafka.protocol.describe_strays import (
    DescribedStray,
    DescribeStraysRequest,
    DescribeStraysResponse,
)
from millstream_kafka.protocol.schema import ZERO_UUID

from ..log.manager import LogManager
from ..network.handlers import RequestContext, handler


@handler(describe_strays.API)
async def handle(
    logs: LogManager, context: RequestContext, request: DescribeStraysRequest
) -> DescribeStraysResponse:
    await asyncio.to_thread(logs.strays.refresh)
    sizes = logs.strays.sizes
    return DescribeStraysResponse(
        0,
        [
            DescribedStray(
                str(one.path.parent),
                one.path.name,
                one.topic,
                one.partition,
                one.topic_id or ZERO_UUID,
                sizes.get(one.path, 0),
                one.since_ms,
            )
            for one in logs.strays
        ],
    )

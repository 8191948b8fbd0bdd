"""DescribeStrays: the strays of this broker (`log.strays`), with their sizes as of now."""

from __future__ import annotations

import asyncio

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import describe_strays
from millstream_kafka.protocol.describe_strays import (
    DescribedStray,
    DescribeStraysRequest,
    DescribeStraysResponse,
)
from millstream_kafka.protocol.schema import ZERO_UUID

from ..log.manager import LogManager
from ..network.handlers import RequestContext, handler
from ..security.acl.rights import on_cluster


@handler(describe_strays.API, rights=[on_cluster(AclOperation.DESCRIBE)])
async def handle(
    logs: LogManager, context: RequestContext, request: DescribeStraysRequest
) -> DescribeStraysResponse:
    await asyncio.to_thread(logs.strays.refresh)
    sizes = logs.strays.sizes
    return DescribeStraysResponse(
        0,
        [
            DescribedStray(
                str(stray.path.parent),
                stray.path.name,
                stray.topic,
                stray.partition,
                stray.topic_id or ZERO_UUID,
                sizes.get(stray.path, 0),
                stray.since_ms,
            )
            for stray in logs.strays
        ],
    )

"""DescribeLogDirs: contents and free space of each log directory (KIP-113, KIP-827).

A request for all topics, or for none, also gets the strays (`log.strays`): the name of a stray's folder,
`TOPIC-N.TOPICID-stray`, takes the place of a topic's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from millstream_kafka.acl import AclOperation
from millstream_kafka.protocol import describe_log_dirs
from millstream_kafka.protocol.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from millstream_kafka.protocol.errors import ErrorCode

from ..log.manager import LogManager
from ..network.handlers import RequestContext, handler
from ..replication.replicas import Replicas, lag
from ..runtime.steps import Steps
from ..security.acl.rights import on_cluster


@handler(describe_log_dirs.API, ends_with_connection=True, rights=[on_cluster(AclOperation.DESCRIBE)])
def handle(
    replicas: Replicas, logs: LogManager, context: RequestContext, request: DescribeLogDirsRequest
) -> Steps[DescribeLogDirsResponse]:
    requested = None
    if request.topics is not None:
        requested = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    found: dict[Path, dict[str, list[DescribeLogDirsPartition]]] = {folder: {} for folder in logs.paths}
    for held in list(replicas.all()):
        yield
        if requested is None or (held.topic, held.index) in requested:
            served = found[held.log.directory.parent]
            described = DescribeLogDirsPartition(held.index, held.log.size, lag(held), False)
            served.setdefault(held.topic, []).append(described)
    for stray in logs.strays if not requested else ():
        yield
        if (topics := found.get(stray.path.parent)) is not None:
            size = logs.strays.sizes.get(stray.path, 0)
            topics[stray.path.name] = [DescribeLogDirsPartition(stray.partition, size, 0, False)]
    return DescribeLogDirsResponse(
        results=[_result(logs, folder, topics) for folder, topics in found.items()]
    )


def _result(
    logs: LogManager, folder: Path, topics: dict[str, list[DescribeLogDirsPartition]]
) -> DescribeLogDirsResult:
    described = [DescribeLogDirsTopic(name, partitions) for name, partitions in topics.items()]
    if folder in logs.offline:
        return DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, str(folder), described)
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, str(folder), described)
    return DescribeLogDirsResult(ErrorCode.NONE, str(folder), described, usage.total, usage.free)

"""Strays of the brokers: logs that fit no topic of the cluster, and that nobody deleted. Brokers keep them, unserved.

DescribeStrays and RemoveStrays are Millstream's own requests; each broker responds for its logs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millstream.administering.brokers import call, run, run_at
from millstream.connection import REQUEST_TIMEOUT_S, Cluster
from millstream.errors import Failed
from millstream_kafka.client import ClusterClient, UnsupportedApi
from millstream_kafka.kafka_uuid import uuid_text
from millstream_kafka.protocol import describe_log_dirs, describe_strays
from millstream_kafka.protocol import remove_strays as removal
from millstream_kafka.protocol.api import Api, Req, Res
from millstream_kafka.protocol.describe_log_dirs import DescribeLogDirsRequest
from millstream_kafka.protocol.describe_strays import DescribedStray, DescribeStraysRequest
from millstream_kafka.protocol.remove_strays import RemoveStraysRequest, StrayToRemove

AT_ONCE: Final = 100
"""Strays in one request: the broker removes their files before it responds."""
REMOVAL_TIMEOUT_S: Final = 300.0
FOLDER: Final = re.compile(r"(.+)-[0-9]+\.[0-9a-f]{32}-stray")


@dataclass(frozen=True, slots=True)
class Stray:
    """A stray of a broker, in the folder ``folder`` of ``log_dir``.

    A long ``topic`` is shortened. ``topic_id`` is "" if the log has none. ``since_ms``: when it became a stray, by the
    broker's clock.
    """

    broker: int
    topic: str
    partition: int
    topic_id: str
    size: int
    since_ms: int
    log_dir: str
    folder: str


def list_strays(cluster: Cluster) -> list[Stray]:
    """The strays of all running brokers, by topic, partition and broker. Unreachable; Failed names a broker."""

    async def strays(client: ClusterClient) -> list[Stray]:
        return [stray for broker in client.brokers for stray in await _strays_of(client, broker)]

    found = run(cluster, strays)
    return sorted(found, key=lambda stray: (stray.topic, stray.partition, stray.broker, stray.folder))


def remove_strays(cluster: Cluster, strays: Collection[Stray]) -> dict[Stray, str]:
    """Remove strays for good; returns the reason why each was not, "" if it was. Unreachable; Failed names a broker.

    One that has been in use since it was listed is not removed.
    """
    by_broker: dict[int, list[Stray]] = defaultdict(list)
    for stray in strays:
        by_broker[stray.broker].append(stray)

    async def remove(client: ClusterClient) -> dict[Stray, str]:
        outcomes: dict[Stray, str] = {}
        for broker, of_broker in sorted(by_broker.items()):
            for start in range(0, len(of_broker), AT_ONCE):
                outcomes |= await _remove(client, broker, of_broker[start : start + AT_ONCE])
        return outcomes

    return run(cluster, remove)


def topics_of_strays(address: tuple[str, int], config: Mapping[str, Any]) -> list[str]:
    """The topic of each stray that a broker's log directories have, the same one several times. Failed.

    From DescribeLogDirs, which other programs may use, too. ``config`` has librdkafka's settings.
    """

    async def folders(client: ClusterClient) -> list[str]:
        response = await _call(client, 0, describe_log_dirs.API, DescribeLogDirsRequest(None))
        return [topic.name for log_dir in response.results for topic in log_dir.topics]

    return [
        match[1] for folder in run_at({0: address}, config, folders) if (match := FOLDER.fullmatch(folder))
    ]


async def _strays_of(client: ClusterClient, broker: int) -> list[Stray]:
    response = await _call(client, broker, describe_strays.API, DescribeStraysRequest())
    if response.error_code:
        raise Failed(f"broker {broker} cannot list its strays", f"Kafka's error {response.error_code}")
    return [_stray(broker, stray) for stray in response.strays]


def _stray(broker: int, stray: DescribedStray) -> Stray:
    topic_id = uuid_text(stray.topic_id) if stray.topic_id.int else ""
    return Stray(
        broker,
        stray.topic,
        stray.partition,
        topic_id,
        stray.size,
        stray.since_ms,
        stray.log_dir,
        stray.folder,
    )


async def _remove(client: ClusterClient, broker: int, strays: Sequence[Stray]) -> dict[Stray, str]:
    request = RemoveStraysRequest(
        [StrayToRemove(stray.log_dir, stray.folder, stray.since_ms) for stray in strays]
    )
    response = await _call(client, broker, removal.API, request, REMOVAL_TIMEOUT_S)
    if len(response.strays) != len(strays):
        raise Failed(
            f"the answer of broker {broker} cannot be read", "use the version of millstream that it has"
        )
    return {
        stray: (removed.error_message or f"Kafka's error {removed.error_code}") if removed.error_code else ""
        for stray, removed in zip(strays, response.strays, strict=True)
    }


async def _call(
    client: ClusterClient, broker: int, api: Api[Req, Res], request: Req, timeout_s: float = REQUEST_TIMEOUT_S
) -> Res:
    try:
        return await call(client, broker, api, request, timeout_s=timeout_s)
    except UnsupportedApi:
        raise Failed(
            f"broker {broker} cannot list or remove strays",
            "it is Apache Kafka, or an older Millstream: upgrade it",
        ) from None

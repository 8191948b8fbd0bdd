"""`helm test`: produces one record and consumes it, in its own topic, which it deletes afterwards.

python -m millstream_operator.tools.roundtrip HOST:PORT [USER AUTHORITIES]

USER: the folder with a User's Secret. AUTHORITIES: the file with those to trust, which exists if the Cluster has TLS.
Either may come late. Without the file, the connection has no TLS and no login.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from millstream_kafka.admin.client import AdminClient
from millstream_kafka.admin.records import NewTopic
from millstream_kafka.batch import Record, build_batch, iter_batches, read_records
from millstream_kafka.client import BrokerError, ClusterClient
from millstream_kafka.client.security import Credential, Sasl, Security, Tls
from millstream_kafka.protocol import fetch, produce
from millstream_kafka.protocol.errors import ApiError, ErrorCode

START_TIMEOUT_S = 90.0
CONNECT_TIMEOUT_S = 10.0
MECHANISM = "SCRAM-SHA-512"
RECORD_TIMEOUT_S = 30.0
PAUSE_S = 0.1
KEY, VALUE = b"key", b"there and back"
T = TypeVar("T")


class RoundtripFailed(Exception):
    pass


def login(user: Path, authorities: Path) -> Security:
    def value(file: Path) -> Credential:
        return Credential("roundtrip", str(file), file)

    return Security(
        Tls([value(authorities)]), Sasl(MECHANISM, value(user / "username"), value(user / "password"))
    )


async def roundtrip(bootstrap: str, user: Path | None = None, authorities: Path | None = None) -> float:
    """The seconds that the record took. Raises RoundtripFailed, BrokerError, ApiError or ValueError."""
    if user is None or authorities is None:
        return await _roundtrip(bootstrap, None, START_TIMEOUT_S)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        security = login(user, authorities) if authorities.exists() else None
        try:
            return await _roundtrip(bootstrap, security, CONNECT_TIMEOUT_S)
        except BrokerError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_S)


async def _roundtrip(bootstrap: str, security: Security | None, retry_timeout: float) -> float:
    topic = f"millstream-roundtrip-{uuid.uuid4().hex[:12]}"
    client = ClusterClient(bootstrap, "millstream-roundtrip", retry_timeout=retry_timeout, security=security)
    async with client as cluster:
        admin = AdminClient(cluster)
        created = await _retried(lambda: admin.create_topics([NewTopic(topic, 1, 1, {})]))
        if refusal := created[topic]:
            raise RoundtripFailed(str(refusal))
        try:
            begun = time.monotonic()
            await _retried(lambda: _produce(cluster, topic))
            found = await _retried(lambda: _consume(cluster, topic))
            if [(record.key, record.value) for record in found] != [(KEY, VALUE)]:
                raise RoundtripFailed(f"expected the one record that was produced, got {found}")
            return time.monotonic() - begun
        finally:
            await _retried(lambda: admin.delete_topics([topic]))


async def _retried(attempt: Callable[[], Awaitable[T]]) -> T:
    """Until a leader, or the controller, accepts: brokers learn of it one after another."""
    deadline = time.monotonic() + RECORD_TIMEOUT_S
    while True:
        try:
            return await attempt()
        except ApiError as error:
            if not error.code.retriable or time.monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_S)


async def _produce(cluster: ClusterClient, topic: str) -> None:
    """Raises ApiError if the record was not stored."""
    batch = build_batch([Record(KEY, VALUE, int(time.time() * 1000))])
    data = produce.TopicProduceData(topic, partition_data=[produce.PartitionProduceData(0, batch)])
    request = produce.ProduceRequest(None, -1, int(RECORD_TIMEOUT_S * 1000), [data])
    response = await cluster.call_leader(topic, 0, produce.BY_NAME, request)
    _check(cluster, topic, response.responses[0].partition_responses[0].error_code)


async def _consume(cluster: ClusterClient, topic: str) -> list[Record]:
    partition = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = fetch.FetchRequest(
        max_wait_ms=int(RECORD_TIMEOUT_S * 1000),
        min_bytes=1,
        topics=[fetch.FetchTopic(topic, partitions=[partition])],
    )
    response = await cluster.call_leader(topic, 0, fetch.BY_NAME, request, timeout=2 * RECORD_TIMEOUT_S)
    (found,) = response.responses[0].partitions
    _check(cluster, topic, found.error_code)
    records = found.records if isinstance(found.records, bytes | bytearray | memoryview) else b""
    return [
        record
        for position, header in iter_batches(records)
        for record in read_records(records[position : position + header.size])
    ]


def _check(cluster: ClusterClient, topic: str, code: int) -> None:
    if code:
        cluster.forget_leaders(topic)
        raise ApiError(ErrorCode.of(code))


def main() -> None:
    if len(sys.argv) not in (2, 4):
        sys.exit("usage: python -m millstream_operator.tools.roundtrip HOST:PORT [USER AUTHORITIES]")
    bootstrap, *files = sys.argv[1:]
    try:
        seconds = asyncio.run(roundtrip(bootstrap, *map(Path, files)))
    except (RoundtripFailed, BrokerError, ApiError, ValueError) as error:
        sys.exit(f"roundtrip: {error}")
    print(f"roundtrip: a record went through {bootstrap} in {seconds * 1000:.0f} ms")


if __name__ == "__main__":
    main()

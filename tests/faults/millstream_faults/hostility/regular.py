"""A well-behaved client, logged in, in a process of its own: how long its requests take.

    python -m millstream_faults.hostility.regular BOOTSTRAP TRUSTED PASSWORD OUT

It writes a record with acks=all, and fetches one that exists, every PAUSE_S, over open connections. Each line of OUT is
a time (monotonic), `produce` or `fetch`, and the seconds that it took, or the error. After a `produce` without error, a
line `acknowledged` has partition, offset and value of the record. SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from millstream_harness.wire import fetch_request, produce_request, record
from millstream_kafka.batch import build_batch
from millstream_kafka.client import ClusterClient
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.client.security import Credential, Sasl, Security, Tls
from millstream_kafka.protocol import fetch, produce
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from .lab import PARTITIONS, REGULAR, STEADY
from .samples import ACKNOWLEDGED

PAUSE_S = 0.02


async def produced(client: ClusterClient, partition: int, number: int) -> str:
    """What was acknowledged."""
    value = f"{number:0100}"
    request = produce_request(STEADY, build_batch([record(value)]), partition=partition, acks=-1)
    answer = await client.call_leader(STEADY, partition, produce.BY_NAME, request)
    found = answer.responses[0].partition_responses[0]
    if found.error_code:
        raise ApiError(ErrorCode.of(found.error_code))
    return f"{partition} {found.base_offset} {value}"


async def fetched(client: ClusterClient, partition: int, number: int) -> str:
    request = fetch_request(STEADY, 0, partition, partition_max_bytes=10_000)
    answer = await client.call_leader(STEADY, partition, fetch.BY_NAME, request)
    if code := answer.responses[0].partitions[0].error_code:
        raise ApiError(ErrorCode.of(code))
    return ""


async def measure(client: ClusterClient, out: TextIO) -> None:
    for number in itertools.count():
        for name, ask in (("produce", produced), ("fetch", fetched)):
            began, acknowledged = time.monotonic(), ""
            try:
                acknowledged = await ask(client, number % PARTITIONS, number)
                result = f"{time.monotonic() - began:.6f}"
            except (ApiError, BrokerError) as error:
                result = f"{type(error).__name__}: {error}".replace("\n", " ")
                client.forget_leaders(STEADY)
            out.write(f"{began:.3f} {name} {result}\n")
            if acknowledged:
                out.write(f"{began:.3f} {ACKNOWLEDGED} {acknowledged}\n")
        out.flush()
        await asyncio.sleep(PAUSE_S)


async def main(out: TextIO) -> None:
    bootstrap, trusted, password = sys.argv[1:4]
    tls = Tls([Credential("trusted", "the run", path=Path(trusted))])
    user, secret = (
        Credential(what, "the run", value=value) for what, value in (("user", REGULAR), ("p", password))
    )
    security = Security(tls, Sasl("SCRAM-SHA-512", user, secret))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]
    async with ClusterClient(bootstrap, REGULAR, security=security, timeout=30.0) as client:
        await measure(client, out)


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError), Path(sys.argv[4]).open("w") as opened:
        asyncio.run(main(opened))

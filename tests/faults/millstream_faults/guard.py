"""Users who try, all the time, what they may not do: read and write PRIVATE. Any success is a violation.

PROBER may use GUARDED, except while a fault has taken its rights (`rights.revoked`). STRANGER has no right at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from typing import NamedTuple

from millstream_harness.wire import fetch_request, produce_request, record
from millstream_kafka.batch import build_batch
from millstream_kafka.client.errors import BrokerError
from millstream_kafka.protocol import fetch, produce
from millstream_kafka.protocol.errors import ApiError, ErrorCode

from .history import HistoryWriter, Trouble
from .probe import Probe
from .users import GUARDED, PRIVATE, PROBER, STRANGER, Users

PAUSE_S = 0.3
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
READABLE = ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE
"""Only who may read learns that retention has deleted the first records, as it does while a clock is ahead."""
LARGE = 30_000
"""Bytes of a record that exceeds a quota."""


class Tried(NamedTuple):
    """The outcomes of a write and of a read."""

    wrote: ErrorCode
    read: ErrorCode
    throttle_ms: int = 0


async def attempt(probe: Probe, topic: str, partition: int = 0) -> Tried:
    """Raises BrokerError, ApiError."""
    client = probe.client
    try:
        leader = await client.leader(topic, partition)
    except ApiError as error:
        if error.code is REFUSED:
            return Tried(REFUSED, REFUSED)
        raise
    batch = build_batch([record(b"x")])
    wrote = await client.call_node(leader, produce.BY_NAME, produce_request(topic, batch, acks=1))
    read = await client.call_node(leader, fetch.BY_NAME, fetch_request(topic, 0, max_bytes=1000))
    codes = wrote.responses[0].partition_responses[0].error_code, read.responses[0].partitions[0].error_code
    if any(code not in (0, REFUSED) for code in codes):
        client.forget_leaders(topic)
    return Tried(ErrorCode.of(codes[0]), ErrorCode.of(codes[1]), wrote.throttle_time_ms)


async def direct(probe: Probe, topic: str, node: int) -> Tried:
    """Of one broker, whoever leads: a client that ignores what Metadata refuses."""
    batch = build_batch([record(b"x")])
    wrote = await probe.client.call_node(node, produce.BY_NAME, produce_request(topic, batch, acks=1))
    read = await probe.client.call_node(node, fetch.BY_NAME, fetch_request(topic, 0, max_bytes=1000))
    return Tried(
        ErrorCode.of(wrote.responses[0].partition_responses[0].error_code),
        ErrorCode.of(read.responses[0].partitions[0].error_code),
        wrote.throttle_time_ms,
    )


def once(users: Users, topic: str) -> Tried | None:
    """As PROBER, over new connections; None without an answer."""

    async def ask() -> Tried | None:
        async with Probe(users.secured_bootstrap, PROBER, users.login(PROBER).security) as probe:
            with contextlib.suppress(BrokerError, ApiError):
                return await attempt(probe, topic)
        return None

    return asyncio.run(ask())


def is_refused(users: Users) -> bool | None:
    """Whether PROBER may neither read nor write GUARDED; None if that is not known."""
    found = once(users, GUARDED)
    if found is None:
        return None
    if (found.wrote, found.read) == (REFUSED, REFUSED):
        return True
    return False if found.wrote is ErrorCode.NONE and found.read in READABLE else None


def throttle_ms(users: Users) -> int:
    """PROBER's throttle time after a write; 0 without an answer. It reads nothing: the connection is muted then."""

    async def ask() -> int:
        async with Probe(users.secured_bootstrap, PROBER, users.login(PROBER).security) as probe:
            with contextlib.suppress(BrokerError, ApiError):
                request = produce_request(GUARDED, build_batch([record(b"x" * LARGE)]), acks=1)
                answer = await probe.client.call_leader(GUARDED, 0, produce.BY_NAME, request)
                return answer.throttle_time_ms
        return 0

    return asyncio.run(ask())


class Guard:
    """Tries PRIVATE at every broker, over connections that stay open, in a thread."""

    def __init__(self, users: Users, history: HistoryWriter) -> None:
        self._users = users
        self._history = history
        self._stop = threading.Event()
        self._outcomes: Counter[str] = Counter()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="guard")

    def __enter__(self) -> Guard:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def summary(self) -> str:
        return (
            ", ".join(f"{count} {outcome}" for outcome, count in self._outcomes.most_common())
            or "nothing tried"
        )

    async def _run(self) -> None:
        trying = []
        async with contextlib.AsyncExitStack() as probes:
            for user in (PROBER, STRANGER):
                security = self._users.login(user).security
                probe = await probes.enter_async_context(Probe(self._users.secured_bootstrap, user, security))
                trying.append(asyncio.create_task(self._try(user, probe)))
            await asyncio.gather(*trying)

    async def _try(self, user: str, probe: Probe) -> None:
        while not self._stop.is_set():
            for node in (1, 2, 3):
                try:
                    found = await direct(probe, PRIVATE, node)
                except (BrokerError, ApiError) as error:
                    self._outcomes[type(error).__name__] += 1
                    continue
                self._outcomes[f"{found.wrote.name} and {found.read.name}"] += 1
                if found.wrote is ErrorCode.NONE or found.read in READABLE:
                    text = f"{user} may not use {PRIVATE}: written {found.wrote.name}, read {found.read.name}"
                    self._history.add(Trouble(time.monotonic(), f"broker {node}", text))
            await asyncio.sleep(PAUSE_S)

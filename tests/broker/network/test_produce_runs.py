"""Small Produce requests that arrive together are appended as one, and get the responses that each would get alone."""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_broker.network.produce_runs import LARGEST, MOST, find_run
from millstream_broker.network.produce_shortcut import ProduceShortcut
from millstream_broker.replication.partition import Partition
from millstream_harness.in_process import connected, create, running
from millstream_harness.scenario import unique
from millstream_harness.wire import Wire, produce_request, record
from millstream_kafka.batch import HEADER_SIZE, build_batch
from millstream_kafka.protocol import metadata, produce
from millstream_kafka.protocol.errors import ErrorCode
from millstream_kafka.protocol.header import RequestHeader, encode_request_header

NAMED = (7, 9)
VERSIONS = (*NAMED, 13)
NOW_MS = 1_700_000_000_000
BATCH = build_batch([record("a", timestamp=NOW_MS)])


def frame(version: int, number: int, batch: bytes, topic: str = "topic", acks: int = 1) -> bytes:
    head = encode_request_header(RequestHeader(0, version, number, "client"))
    body = head + produce.API.encode_request(version, produce_request(topic, batch, acks=acks))
    return struct.pack(">i", len(body)) + body


def shortcut_of(version: int, topic: str = "topic", acks: int = 1) -> ProduceShortcut:
    """A connection's, after one request."""
    shortcut = ProduceShortcut()
    learned = produce_request(topic, memoryview(BATCH), acks=acks)  # type: ignore[arg-type]
    shortcut.learn(memoryview(frame(version, 0, BATCH, topic, acks))[4:], version, "client", learned)
    return shortcut


def found(
    version: int, *frames: bytes, end: int | None = None
) -> tuple[list[int], list[bytes], list[int], int]:
    """Correlation ids, batches, numbers of offsets and the end of the run; empty if there is none."""
    view = memoryview(b"".join(frames))
    run = find_run(shortcut_of(version), view, 0, len(view) if end is None else end)
    if run is None:
        return [], [], [], 0
    return run.correlation_ids, [bytes(one) for one in run.batches], run.counts, run.end


@pytest.mark.parametrize("version", NAMED)
def test_a_run_is_of_requests_for_one_partition(version: int) -> None:
    two = build_batch([record("a"), record("b" * 300)])
    alike = [frame(version, 5, BATCH), frame(version, 6, two), frame(version, 7, BATCH)]
    size = sum(map(len, alike))
    whole = ([5, 6, 7], [BATCH, two, BATCH], [1, 2, 1], size)
    assert found(version, *alike) == whole
    assert found(version, *alike, frame(version, 8, BATCH, topic="other")) == whole
    assert found(version, *alike, frame(version, 8, BATCH, acks=-1)) == whole
    assert found(version, *alike, frame(16 - version, 8, BATCH)) == whole
    assert found(version, *alike, bytes(100)) == whole
    assert found(version, *alike, frame(version, 8, build_batch([record("x" * LARGEST)]))) == whole
    cut = frame(version, 8, BATCH)
    for missing in (1, 50, len(cut) - 1):
        assert found(version, *alike, cut[:-missing]) == whole
    assert found(version, *(frame(version, number, BATCH) for number in range(2 * MOST)))[0] == list(
        range(MOST)
    )


@pytest.mark.parametrize(("most", "ids"), [(0, None), (1, None), (2, [1, 2]), (9, [1, 2, 3])])
def test_a_run_has_no_more_requests_than_may_wait(most: int, ids: list[int] | None) -> None:
    view = memoryview(b"".join(frame(9, number, BATCH) for number in (1, 2, 3)))
    run = find_run(shortcut_of(9), view, 0, len(view), most)
    assert (run and run.correlation_ids) == ids


@pytest.mark.parametrize("version", NAMED)
def test_unlike_requests_are_no_run(version: int) -> None:
    one = frame(version, 1, BATCH)
    assert found(version, one) == ([], [], [], 0)
    assert found(version, one, one, end=2 * len(one) - 1) == ([], [], [], 0)
    assert found(version, frame(version, 1, BATCH, topic="other"), one) == ([], [], [], 0)
    fetch = bytearray(one)
    struct.pack_into(">h", fetch, 4, 1)
    assert found(version, bytes(fetch), bytes(fetch)) == ([], [], [], 0)


@pytest.mark.parametrize("version", NAMED)
def test_each_request_of_a_run_has_one_whole_batch(version: int) -> None:
    """A batch in two halves, or two in one request, would get responses that nobody could assign."""
    halves = frame(version, 1, BATCH[:-3]), frame(version, 2, BATCH[-3:])
    assert found(version, *halves) == ([], [], [], 0)
    assert found(version, frame(version, 1, BATCH), *halves) == ([], [], [], 0)
    assert found(version, frame(version, 1, BATCH + BATCH), frame(version, 2, BATCH)) == ([], [], [], 0)
    assert found(version, frame(version, 1, BATCH[: HEADER_SIZE - 1]), frame(version, 2, BATCH)) == (
        [],
        [],
        [],
        0,
    )


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def of_producer(sequence: int, count: int = 1) -> bytes:
    records = [record(f"{sequence}-{index}", timestamp=NOW_MS) for index in range(count)]
    return build_batch(records, producer_id=4711, producer_epoch=0, base_sequence=sequence)


PLAIN = [
    build_batch([record("x" * size, timestamp=NOW_MS)] * count) for size, count in ((1, 1), (90, 3), (500, 1))
]
REQUESTS = st.one_of(
    st.sampled_from(PLAIN),
    st.sampled_from(PLAIN),
    st.integers(0, 3).map(of_producer),
    st.integers(0, 3).map(lambda sequence: of_producer(sequence, 2)),
    st.sampled_from(
        [
            damaged(BATCH),
            BATCH + BATCH,
            BATCH[:-3],
            BATCH[-3:],
            b"",
            build_batch([record("late", timestamp=1 << 50)]),
            build_batch([record("x" * 2000, timestamp=NOW_MS)]),
        ]
    ),
)
"""Batches, some of which a broker refuses: damaged, cut, out of order, from the future, too large."""


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(REQUESTS, st.sampled_from([1, 1, 1, -1])), min_size=2, max_size=30),
    st.sampled_from(VERSIONS),
)
def test_responses_and_records_are_those_of_single_requests(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[bytes, int]], version: int
) -> None:
    async def both() -> None:
        async with running(tmp_path_factory.mktemp("broker")) as broker, connected(broker) as client:
            results = []
            for together, flush in itertools.product((False, True), ("", "1")):
                topic = "a-b"[2 * together] + flush
                config = {"flush_messages": flush} if flush else {}
                await create(client, topic, max_message_bytes="1500", **config)
                topic_id = broker.replicas.metadata.topics[topic].topic_id
                with Wire(f"{client.host}:{client.port}") as wire:
                    produce_one = partial(wire.produce, topic, BATCH, version=version, topic_id=topic_id)
                    await asyncio.to_thread(produce_one, acks=1)
                    await asyncio.to_thread(produce_one, acks=-1)
                    asked = [
                        produce_request(topic, batch, acks=acks, topic_id=topic_id)
                        for batch, acks in requests
                    ]
                    if together:  # this thread runs the broker's loop, which then reads all frames at once
                        wire.socket.sendall(b"".join(wire.frame(produce.API, version, one) for one in asked))
                        answers = [await asyncio.to_thread(wire.receive) for _ in asked]
                    else:
                        answers = [
                            await asyncio.to_thread(wire.call, produce.API, version, one) for one in asked
                        ]
                    told = [one.responses[0].partition_responses[0] for one in answers]
                    stored = b"".join(broker.replicas.partitions[topic, 0].log.batches_from(0))
                    results.append((re.sub(rf"{topic}-0|\d{{13,}}", "…", str(told)), stored))
            assert results[0] == results[2]
            assert results[1] == results[3]

    asyncio.run(both())


async def test_one_append_for_many_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with other requests between them, and after a run that was refused."""
    appends: list[int] = []
    append = Partition._append

    def counted(this: Partition, batches: Any, *more: Any) -> Any:
        appends.append(len(batches))
        return append(this, batches, *more)

    monkeypatch.setattr(Partition, "_append", counted)
    topic = unique("run")
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, topic)
        with Wire(f"{client.host}:{client.port}") as wire:
            await asyncio.to_thread(wire.produce, topic, BATCH, version=9)

            async def sent(*batches: bytes | None) -> list[Any]:
                """The responses; None stands for a Metadata request between them."""
                appends.clear()
                frames = [
                    wire.frame(metadata.API, 12, metadata.MetadataRequest([]))
                    if batch is None
                    else wire.frame(produce.API, 9, produce_request(topic, batch))
                    for batch in batches
                ]
                wire.socket.sendall(b"".join(frames))
                return [await asyncio.to_thread(wire.receive) for _ in frames]

            await sent(*[BATCH] * 50)
            assert appends == [50 * len(BATCH)]
            await sent(*[BATCH] * 5, None, *[BATCH] * 3, None, BATCH)
            assert appends == [5 * len(BATCH), 3 * len(BATCH), len(BATCH)]
            answers = await sent(BATCH, damaged(BATCH), BATCH)
            assert appends == [3 * len(BATCH), *[len(BATCH)] * 3], "a run is tried once"
            codes = [one.responses[0].partition_responses[0].error_code for one in answers]
            assert codes == [0, ErrorCode.CORRUPT_MESSAGE, 0]

"""Long polls miss nothing: an event in the turn that reads a poll ends it, long before its timer.

Every poll here waits up to ten minutes, longer than any test may take.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.broker import Broker
from millstream_broker.config.config import TopicConfig
from millstream_broker.log.manager import Found
from millstream_broker.replication.delayed_fetch import DelayedFetch
from millstream_broker.replication.fetch_session import Session
from millstream_broker.replication.fetch_sessions import FollowerKey, FollowerSession
from millstream_broker.replication.isr import Isr
from millstream_broker.replication.partition import Partition, now_ms
from millstream_broker.runtime.steps import Steps, to_the_end
from millstream_broker.security.session import PeerBroker
from millstream_harness.background_loop import background_loop
from millstream_harness.clients import request_context
from millstream_harness.in_process import connected, create, delete, running
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.wire import Wire, fetch_request, produce_request, record
from millstream_kafka.batch import build_batch, read_records
from millstream_kafka.protocol import fetch, produce
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import FetchResponse, PartitionData

pytestmark = pytest.mark.process

TEN_MINUTES_MS = 600_000
BETWEEN = {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}
"""Errors allowed while a topic is being recreated; a poll must not wait for its timer."""
CONTEXT = request_context(12)


def poll(broker: Broker, topic: str = "t", **limits: int) -> asyncio.Future[FetchResponse]:
    """The handler's result, before anything awaits it."""
    request = fetch_request(topic, 0, wait_ms=TEN_MINUTES_MS, **limits)
    answer = to_the_end(broker.handlers[fetch.API.key].handle(CONTEXT, request))
    assert isinstance(answer, asyncio.Future)
    return answer


async def answer_of(waiting: asyncio.Future[FetchResponse]) -> PartitionData:
    response = await asyncio.wait_for(waiting, 60)
    return response.responses[0].partitions[0]


def append(partition: Partition, value: str = "news") -> None:
    partition.append(memoryview(bytearray(build_batch([record(value)]))), int(time.time() * 1000))


async def test_a_response_that_fails_after_a_pause_fails_the_poll() -> None:
    def read() -> Steps[FetchResponse]:
        yield
        raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    delayed = DelayedFetch(1, 60.0, read)
    delayed.over()
    with pytest.raises(ApiError) as error:
        await delayed.response
    assert error.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_response_that_takes_turns_is_awaited() -> None:
    expected = FetchResponse(0, 0, 7, [])

    def read() -> Steps[FetchResponse]:
        yield
        return expected

    delayed = DelayedFetch(1, 60.0, read)
    delayed.over()
    assert await asyncio.wait_for(delayed.response, 60) is expected


async def test_a_record_of_the_same_turn_ends_a_poll(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        waiting = poll(broker)
        append(partition)
        data = await answer_of(waiting)
        assert (data.high_watermark, len(data.records or b"") > 0) == (1, True)
        await asyncio.sleep(0)
        assert not partition.waiters


async def test_all_that_a_turn_brings_is_in_the_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        waiting = poll(broker)
        for _ in range(5):
            append(partition)
        assert (await answer_of(waiting)).high_watermark == 5


async def test_records_of_the_same_turn_count_towards_min_bytes(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        size = len(build_batch([record("news")]))
        waiting = poll(broker, min_bytes=3 * size)
        append(partition)
        append(partition)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        append(partition)
        assert len((await answer_of(waiting)).records or b"") == 3 * size


GONE: dict[str, tuple[Callable[[Broker], None], ErrorCode]] = {
    "deleted": (
        lambda broker: broker.replica_manager._roles.stop(("t", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ),
    "offline": (
        lambda broker: broker.replica_manager.lose([Found("t", 0, None)], "its directory failed"),
        ErrorCode.KAFKA_STORAGE_ERROR,
    ),
}


@pytest.mark.parametrize("how", GONE)
async def test_a_partition_that_goes_in_the_same_turn_ends_a_poll(tmp_path: Path, how: str) -> None:
    lose, code = GONE[how]
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        waiting = poll(broker)
        lose(broker)
        assert (await answer_of(waiting)).error_code == code


async def test_a_topic_made_anew_does_not_keep_its_predecessors_polls(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        waiting = poll(broker)
        await delete(client, "t")
        await create(client, "t")
        assert (await answer_of(waiting)).error_code in BETWEEN
        waiting = poll(broker)
        append(broker.replicas.partition("t", 0))
        assert (await answer_of(waiting)).high_watermark == 1


async def test_a_new_epoch_ends_polls_so_that_they_are_fenced(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = with_follower(broker)
        request = fetch_request("t", 0, wait_ms=TEN_MINUTES_MS, epoch=partition.record.leader_epoch)
        waiting = to_the_end(broker.handlers[fetch.API.key].handle(CONTEXT, request))
        assert isinstance(waiting, asyncio.Future)
        later = replace(partition.record, leader_epoch=partition.record.leader_epoch + 1)
        partition.lead(later)
        assert (await answer_of(waiting)).error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_a_topic_that_is_not_known_is_answered_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        request = fetch_request("unknown", 0, wait_ms=TEN_MINUTES_MS)
        answer = to_the_end(broker.handlers[fetch.API.key].handle(CONTEXT, request))
        assert isinstance(answer, FetchResponse)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_poll_that_is_cancelled_before_anybody_awaits_it_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        waiting = poll(broker)
        assert partition.waiters
        waiting.cancel()
        await asyncio.sleep(0)
        assert not partition.waiters
        append(partition)


async def test_polls_of_connections_that_close_leave_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = broker.replicas.partition("t", 0)
        tasks = []
        for _ in range(10):
            async with connected(broker) as one:
                request = fetch_request("t", 0, wait_ms=TEN_MINUTES_MS)
                tasks.append(asyncio.create_task(one.call(fetch.API, 12, request)))
                while len(partition.waiters) < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            while partition.waiters:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await client.call(fetch.API, 12, fetch_request("t", 0))).error_code == 0


# Followers


def with_follower(broker: Broker, replica: int = 2) -> Partition:
    """Partition t-0 with a second replica, which is outside the ISR and has not fetched yet."""
    partition = broker.replicas.partition("t", 0)
    record_ = replace(partition.record, replicas=(*partition.record.replicas, replica))
    isr = Isr(
        broker.replicas.broker_id,
        record_,
        log_end=partition.log.log_end_offset,
        high_watermark=partition.high_watermark,
        min_isr=1,
        max_lag_ms=TEN_MINUTES_MS,
        alive=broker.replicas.metadata.brokers,
        now_ms=now_ms(),
    )
    partition.lead(record_, isr)
    partition.configure(TopicConfig(broker.config, {}))
    return partition


def session_of(broker: Broker) -> Session:
    """A session of the follower, broker 2."""
    session = FollowerSession(
        broker.replicas,
        broker.fetch_sessions._alter_partition,
        broker.fetch_sessions._settings,
        FollowerKey(PeerBroker(2, 0), 1),
    )
    session.identify(1, 0.0)
    return session


def follower_request(**more: int) -> fetch.FetchRequest:
    request = fetch_request("t", 0, wait_ms=TEN_MINUTES_MS, **more)
    request.replica_id = 2
    return request


def follow(session: Session, **more: int) -> asyncio.Future[FetchResponse]:
    """A follower's request that finds nothing: it already knows the high watermark and the log start."""
    request = follower_request(**more)
    answer = to_the_end(session.answer(request))
    assert isinstance(answer, asyncio.Future)
    return answer


async def test_a_record_of_the_same_turn_ends_a_followers_fetch(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = with_follower(broker)
        session = session_of(broker)
        waiting = follow(session)
        append(partition)
        assert (await answer_of(waiting)).records
        session.close()


async def test_a_partition_that_goes_in_the_same_turn_ends_a_followers_fetch(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        with_follower(broker)
        session = session_of(broker)
        waiting = follow(session)
        broker.replica_manager._roles.stop(("t", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert (await answer_of(waiting)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        session.close()


async def test_a_second_request_of_a_session_answers_the_first(tmp_path: Path) -> None:
    """Both get responses, in order, and the second still waits for records."""
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = with_follower(broker)
        session = session_of(broker)
        first = follow(session)
        second = follow(session)
        await asyncio.wait_for(first, 60)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not second.done()
        append(partition)
        assert (await answer_of(second)).records
        session.close()


async def test_a_cancelled_fetch_of_a_follower_does_not_keep_the_next_from_waiting(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, connected(broker) as client:
        await create(client, "t")
        partition = with_follower(broker)
        session = session_of(broker)
        follow(session).cancel()
        append(partition, "one")
        request = follower_request()
        answer = to_the_end(session.answer(request))
        assert isinstance(answer, FetchResponse)
        assert answer.responses[0].partitions[0].records
        session.close()


# Through the wire


def values(data: PartitionData) -> list[bytes | None]:
    return [one.value for one in read_records(memoryview(bytes(data.records or b"")))]  # type: ignore[arg-type]


@pytest.mark.parametrize("acks", [1, -1])
def test_a_poll_and_a_record_that_arrive_together(
    start_broker: Callable[..., InProcessBroker], acks: int
) -> None:
    """Both are in their sockets when the broker wakes: it reads the poll first, and the record in the same turn."""
    broker = start_broker()
    with Wire(broker.bootstrap) as consumer, Wire(broker.bootstrap) as producer:
        consumer.create("t")
        for number in range(20):
            with background_loop().held():
                consumer.send(fetch.API, 12, fetch_request("t", number, wait_ms=TEN_MINUTES_MS))
                batch = build_batch([record(f"{number}")])
                producer.send(produce.API, 9, produce_request("t", batch, acks=acks))
            assert producer.receive().responses[0].partition_responses[0].base_offset == number
            assert values(consumer.receive().responses[0].partitions[0]) == [b"%d" % number]

"""Leaders send consumers to nearby replicas (KIP-392), and followers learn the high watermark in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from millstream_broker.coordination import TopicRecord
from millstream_harness.clients import consumer
from millstream_harness.fetch_sessions import (
    NO_SESSION,
    SIZE,
    Serving,
    fetch,
    follower,
    leading,
    size,
    summary,
    told,
    two_partitions,
    wanted,
)
from millstream_harness.replica import OTHERS, REPLICAS, THEM, US, answered, state
from millstream_harness.virtual_time import turns
from millstream_kafka.protocol.fetch import (
    FetchResponse,
)

RACKS = {0: "z", US: "a", THEM: "b", OTHERS: "c"}


async def moved_into_racks(leader: Serving, record: TopicRecord, alive: tuple[int, ...] = REPLICAS) -> None:
    """Put each broker into its own rack; from now on, consumers are sent to the nearest replica."""
    leader.world.limit(selects_by_rack=True)
    known = state(record, alive=alive)
    brokers = {one: replace(broker, rack=RACKS[one]) for one, broker in known.brokers.items()}
    await leader.world.told(replace(known, brokers=brokers))


def consume(
    leader: Serving, rack: str, version: int = 12, **more: Any
) -> FetchResponse | asyncio.Future[FetchResponse]:
    request = fetch(wanted(current_leader_epoch=-1), replica=-1, session=NO_SESSION, rack_id=rack, **more)
    return answered(leader.sessions, request, consumer(), version)


async def test_a_consumer_is_sent_to_the_replica_in_its_rack(tmp_path: Path) -> None:
    record = two_partitions()
    async with leading(tmp_path, record) as leader:
        await moved_into_racks(leader, record)
        leader.append()
        leader.fetch(wanted(0, 1), wanted(1))
        for rack, preferred, records in (("a", -1, SIZE), ("b", THEM, 0), ("c", -1, SIZE)):
            answer = consume(leader, rack, max_wait_ms=60_000)
            assert isinstance(answer, FetchResponse), "it is told at once"
            (data,) = told(answer)
            assert (data.preferred_read_replica, size(data)) == (preferred, records)
            assert (data.error_code, data.high_watermark, data.log_start_offset) == (0, 1, 0)
        for version, is_sent in ((10, False), (11, True)):
            answer = consume(leader, "b", version)
            assert isinstance(answer, FetchResponse)
            assert (told(answer)[0].preferred_read_replica == THEM) == is_sent, "others do not know the field"
        leader.world.limit(selects_by_rack=False)
        answer = consume(leader, "b")
        assert isinstance(answer, FetchResponse)
        assert [one.preferred_read_replica for one in told(answer)] == [-1]


async def test_a_consumer_is_sent_to_the_broker_with_the_lowest_id_at_once(tmp_path: Path) -> None:
    record = two_partitions(US, 0)
    async with leading(tmp_path, record) as leader:
        await moved_into_racks(leader, record, alive=(0, US))
        answered(leader.sessions, fetch(wanted(), replica=0), follower(0), 12)
        answer = consume(leader, "z", max_wait_ms=60_000)
        assert isinstance(answer, FetchResponse)
        assert [one.preferred_read_replica for one in told(answer)] == [0]


async def test_a_sole_replica_is_read_whatever_the_rack(tmp_path: Path) -> None:
    record = two_partitions(US)
    async with leading(tmp_path, record) as leader:
        await moved_into_racks(leader, record)
        answer = consume(leader, "b")
        assert isinstance(answer, FetchResponse)
        assert summary(told(answer)) == {0: (0, 0)}


async def test_a_follower_that_consumers_may_read_is_told_at_once_what_is_safe(tmp_path: Path) -> None:
    record = two_partitions(US, THEM, OTHERS)
    for is_read in (True, False):
        async with leading(tmp_path / str(is_read), record) as leader:
            leader.world.limit(selects_by_rack=is_read)
            leader.append()
            leader.fetch(wanted(0, 1))
            waiting = leader.wait()
            answered(leader.sessions, fetch(wanted(0, 1), replica=OTHERS), follower(OTHERS), 12)
            await turns()
            assert waiting.done() == is_read


async def test_a_follower_that_does_not_wait_hears_of_it_with_its_next_request(tmp_path: Path) -> None:
    async with leading(tmp_path, two_partitions(US, THEM, OTHERS)) as leader:
        leader.world.limit(selects_by_rack=True)
        leader.append()
        leader.fetch(wanted(0, 1))
        answered(leader.sessions, fetch(wanted(0, 1), replica=OTHERS), follower(OTHERS), 12)
        assert [data.high_watermark for data in leader.fetch()] == [1]


async def test_a_consumers_poll_does_not_end_for_the_start_of_the_log(tmp_path: Path) -> None:
    record = two_partitions()
    async with leading(tmp_path, record) as leader:
        await moved_into_racks(leader, record)
        for offset in (0, 1):
            leader.append()
            leader.fetch(wanted(0, offset + 1))
        waiting = answered(
            leader.sessions,
            fetch(wanted(0, 2, current_leader_epoch=-1), replica=-1, session=NO_SESSION, max_wait_ms=60_000),
            consumer(),
            12,
        )
        assert isinstance(waiting, asyncio.Future)
        leader.partition().delete_records_before(1, 0)
        await turns()
        assert not waiting.done()
        waiting.cancel()

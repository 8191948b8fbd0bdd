"""The driver around the state machine: changes of coordinator, loads, and closing."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from millstream_broker.coordinator import loader, runtime
from millstream_broker.groups.driver import GroupDriver
from millstream_broker.groups.group import GroupState
from millstream_broker.groups.messages import Commit, GroupConfig, LeavingMember, OffsetToCommit, Sync
from millstream_broker.groups.records import group_tombstone, read_groups
from millstream_harness.group_drivers import (
    PATIENCE_S,
    TOPICS,
    SharedTopic,
    assembled,
    committing,
    drivers,
    joining,
    loaded,
    position,
    until,
)
from millstream_harness.virtual_time import turns
from millstream_kafka.batch import Record, build_batch
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.schema import ZERO_UUID

NONE, NOT_COORDINATOR = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_the_topic_is_made_by_the_first_use_of_groups_and_only_once() -> None:
    topic = SharedTopic()
    driver = GroupDriver(GroupConfig(offsets_topic_num_partitions=50), topic, lambda name: ZERO_UUID)
    assert (topic.created, driver.partition_of("a")) == (0, 47)
    await asyncio.gather(driver.ensure_topic(), driver.ensure_topic())
    await driver.ensure_topic()
    assert topic.created == 1
    assert driver.partition_of("a") == 0, "it has one partition"
    await driver.close()


async def test_a_commit_has_the_time_of_the_wall_clock() -> None:
    async with drivers(SharedTopic(), 1) as (driver,):
        before = int(time.time() * 1000)
        assert await driver.commit(committing(7)) == {("t", 0): NONE}
        committed = driver.fetch_offsets("simple", None, stable=False).offsets["t", 0]
        assert committed is not None
        assert before <= committed.commit_timestamp <= int(time.time() * 1000)


async def test_another_coordinator_goes_on_where_the_first_was() -> None:
    topic = SharedTopic()
    async with drivers(topic) as (first, second):
        leader, static = await assembled(first)
        assert await first.commit(committing(7)) == {("t", 0): NONE}
        before = first.describe("g")
        assert second.heartbeat("g", leader.member_id, 2, None) is NOT_COORDINATOR

        first.on_resignation(0)
        assert first.heartbeat("g", leader.member_id, 2, None) is NOT_COORDINATOR
        assert (await first.join(joining(leader.member_id))).error is NOT_COORDINATOR
        assert (await first.sync(Sync("g", leader.member_id, 2, {}))).error is NOT_COORDINATOR
        assert first.leave("g", [LeavingMember(leader.member_id)])[0] is NOT_COORDINATOR
        assert await first.commit(committing(8)) == {("t", 0): NOT_COORDINATOR}
        assert first.fetch_offsets("simple", None, stable=False).error is NOT_COORDINATOR
        assert await first.delete_group("simple") is NOT_COORDINATOR
        assert first.list_groups() == (NONE, [])

        second.on_election(0, 1)
        await loaded(second)
        assert second.describe("g") == before
        assert second.heartbeat("g", leader.member_id, 2, None) is NONE
        assert (await second.sync(Sync("g", static.member_id, 2, {}, "i"))).assignment == b"two"
        again = await second.join(joining(instance="i"))
        assert (again.error, again.generation) == (NONE, 2)
        assert second.heartbeat("g", static.member_id, 2, "i") is ErrorCode.FENCED_INSTANCE_ID
        committed = second.fetch_offsets("simple", None, stable=False).offsets["t", 0]
        assert committed is not None
        assert committed.offset == 7
        assert await second.commit(committing(9)) == {("t", 0): NONE}

        # And back: nothing of the first term may be left.
        second.on_resignation(0)
        first.on_election(0, 1)
        await loaded(first)
        assert first.heartbeat("g", again.member_id, 2, "i") is NONE
        committed = first.fetch_offsets("simple", None, stable=False).offsets["t", 0]
        assert committed is not None
        assert committed.offset == 9


async def test_who_waits_is_sent_to_the_new_coordinator() -> None:
    topic = SharedTopic()
    async with drivers(topic, 1) as (driver,):
        leader, _ = await assembled(driver)
        rejoining = asyncio.create_task(driver.join(joining(leader.member_id)))
        topic.writable.clear()
        committing_one = asyncio.create_task(driver.commit(committing(7)))
        await asyncio.sleep(0)
        assert not rejoining.done()
        driver.on_resignation(0)
        rejoined = await rejoining
        assert (rejoined.error, rejoined.member_id) == (NOT_COORDINATOR, leader.member_id)
        assert await committing_one == {("t", 0): NOT_COORDINATOR}
        topic.writable.set()


async def test_who_waits_for_an_assignment_is_sent_to_the_new_coordinator() -> None:
    topic = SharedTopic()
    async with drivers(topic, 1) as (driver,):
        joined = await driver.join(joining())
        topic.writable.clear()
        syncing = asyncio.create_task(driver.sync(Sync("g", joined.member_id, 1, {joined.member_id: b"x"})))
        await asyncio.sleep(0)
        driver.on_resignation(0)
        assert (await syncing).error is NOT_COORDINATOR
        topic.writable.set()


async def test_while_the_groups_are_loaded() -> None:
    topic = SharedTopic()
    async with drivers(topic) as (first, second):
        leader, _ = await assembled(first)
        first.on_resignation(0)
        topic.readable.clear()
        second.on_election(0, 1)
        assert (await second.join(joining(leader.member_id))).error is LOADING
        assert (
            await second.sync(Sync("g", leader.member_id, 2, {}))
        ).error is ErrorCode.REBALANCE_IN_PROGRESS
        assert second.heartbeat("g", leader.member_id, 2, None) is NONE
        assert second.leave("g", [LeavingMember(leader.member_id)])[0] is LOADING
        assert await second.commit(committing(8)) == {("t", 0): LOADING}
        assert second.fetch_offsets("simple", None, stable=False).error is LOADING
        assert second.describe("g").error is LOADING
        assert await second.delete_group("g") is LOADING
        assert second.list_groups()[0] is LOADING
        topic.readable.set()
        await loaded(second)
        assert second.describe("g").state is GroupState.STABLE


async def test_what_was_being_loaded_when_another_took_over_is_not_taken() -> None:
    topic = SharedTopic()
    async with drivers(topic) as (first, second):
        assert await first.commit(committing(1)) == {("t", 0): NONE}
        topic.reading.clear()
        topic.readable.clear()
        ended = topic.ended
        second.on_election(0, 1)
        assert await asyncio.to_thread(topic.reading.wait, PATIENCE_S), "it has read what is there now"
        second.on_resignation(0)
        assert await first.commit(committing(2)) == {("t", 0): NONE}
        topic.readable.set()
        await until(lambda: topic.ended > ended)  # the abandoned load
        await turns()
        assert second.heartbeat("simple", "m", 1, None) is NOT_COORDINATOR
        first.on_resignation(0)
        second.on_election(0, 1)
        await loaded(second)
        committed = second.fetch_offsets("simple", None, stable=False).offsets["t", 0]
        assert committed is not None
        assert committed.offset == 2


async def test_a_record_that_cannot_be_read_costs_no_other_group() -> None:
    topic = SharedTopic()
    async with drivers(topic) as (first, second):
        assert await first.commit(committing(1)) == {("t", 0): NONE}
        topic.batches.append(build_batch([Record(group_tombstone("g")[0], b"\0\x63", 0)]))
        for times in (1, 2):
            second.on_election(0, 1)
            await loaded(second)
            assert position(second) == 1
            assert second.unreadable == times
            second.on_resignation(0)


@pytest.mark.parametrize(
    "reason", [OSError(5, "Input/output error"), ApiError(ErrorCode.CORRUPT_MESSAGE), KeyError("a defect")]
)
async def test_a_load_that_fails_is_tried_again_while_the_partition_is_led(
    reason: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "RETRY_S", 0.001)
    topic = SharedTopic()
    async with drivers(topic) as (first, second):
        assert await first.commit(committing(1)) == {("t", 0): NONE}
        topic.broken, topic.attempts = reason, 0
        second.on_election(0, 1)
        await until(lambda: topic.attempts >= 3)
        assert second.fetch_offsets("simple", None, stable=False).error is LOADING
        assert second.loading == 1
        topic.broken = None
        await loaded(second)
        assert (position(second), second.loading) == (1, 0)


async def test_a_partition_that_is_led_already_is_not_loaded_again() -> None:
    topic = SharedTopic()
    async with drivers(topic) as (_, second):
        topic.attempts = 0
        topic.readable.clear()
        second.on_election(0, 1)
        second.on_election(0, 1)
        topic.readable.set()
        await loaded(second)
        second.on_election(0, 1)
        assert (topic.attempts, second.loading) == (1, 0)


async def test_pauses_between_attempts_to_load_double_up_to_the_longest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader, "RETRY_S", 0.001)
    monkeypatch.setattr(loader, "LONGEST_RETRY_S", 0.004)
    topic = SharedTopic()
    async with drivers(topic) as (_, second):
        topic.broken = OSError(5, "Input/output error")
        second.on_election(0, 1)
        await until(lambda: len(caplog.messages) >= 4)
        second.on_resignation(0)
    assert caplog.messages[:4] == [
        f"__consumer_offsets-0: cannot load its groups, retrying in {pause} s: [Errno 5] Input/output error"
        for pause in ("0.001", "0.002", "0.004", "0.004")
    ]


@pytest.mark.parametrize(
    ("reason", "is_a_defect"),
    [
        (OSError(5, "Input/output error"), False),
        (ApiError(ErrorCode.CORRUPT_MESSAGE), False),
        (KeyError("?"), True),
    ],
)
async def test_a_load_that_fails_by_a_defect_logs_where_it_happened(
    reason: Exception, is_a_defect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topic = SharedTopic()
    async with drivers(topic) as (_, second):
        topic.broken = reason
        second.on_election(0, 1)
        await until(lambda: bool(caplog.records))
        second.on_resignation(0)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert bool(record.exc_info) == is_a_defect
    assert "ing in 0.1 s" in record.getMessage(), "a defect is tried again at the same pace"


async def test_a_load_that_fails_ends_with_the_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "RETRY_S", 0.001)
    topic = SharedTopic()
    async with drivers(topic) as (_, second):
        topic.broken = OSError(5, "Input/output error")
        second.on_election(0, 1)
        await until(lambda: topic.attempts >= 3)
        second.on_resignation(0)
        assert second.loading == 0
        topic.broken, attempts = None, topic.attempts
        await asyncio.sleep(0.02)
        assert topic.attempts == attempts
        assert second.fetch_offsets("simple", None, stable=False).error is NOT_COORDINATOR


async def test_making_the_topic_waits_only_so_long_for_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """FindCoordinator creates the topic; an unreadable disk must not make it hang."""
    monkeypatch.setattr(runtime, "FIRST_LOAD_S", 0.01)
    topic = SharedTopic()
    topic.broken = OSError(5, "Input/output error")
    config = GroupConfig(offsets_topic_num_partitions=1)
    driver = GroupDriver(config, topic, lambda name: TOPICS[name])
    driver.on_election(0, 1)
    async with asyncio.timeout(PATIENCE_S):
        await driver.ensure_topic()
    await driver.close()


async def test_a_load_that_was_overtaken_by_another_leadership_installs_nothing() -> None:
    """The broker leads, resigns and leads again during the first load: only the second load counts."""
    topic = SharedTopic()
    async with drivers(topic) as (first, second):
        assert await first.commit(committing(1)) == {("t", 0): NONE}
        topic.reading.clear()
        topic.readable.clear()
        second.on_election(0, 1)
        assert await asyncio.to_thread(topic.reading.wait, PATIENCE_S), "it has read what is there now"
        second.on_resignation(0)
        assert await first.commit(committing(2)) == {("t", 0): NONE}
        second.on_election(0, 1)
        topic.readable.set()
        await loaded(second)
        assert position(second) == 2


async def test_what_waited_to_be_written_in_an_earlier_leadership_is_not_written_in_a_later_one() -> None:
    topic = SharedTopic()
    async with drivers(topic) as (first, second):
        topic.writable.clear()
        commits = []
        for offset in (1, 2):  # the first is being appended, the second waits for it
            commits.append(asyncio.create_task(first.commit(committing(offset))))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        first.on_resignation(0)
        assert [await commit for commit in commits] == [{("t", 0): NOT_COORDINATOR}] * 2
        first.on_election(0, 1)
        topic.writable.set()
        await loaded(first)
        assert await first.commit(committing(3)) == {("t", 0): NONE}
        first.on_resignation(0)
        second.on_election(0, 1)
        await loaded(second)
        written = [
            each.offset
            for batch in topic.batches
            for group in read_groups([batch]).groups
            for each in group.offsets.values()
        ]
        assert written == [1, 3]


async def test_a_topic_deleted_while_groups_are_loaded() -> None:
    topic = SharedTopic()
    async with drivers(topic) as (first, second):
        assert await first.commit(committing(1)) == {("t", 0): NONE}
        topic.readable.clear()
        second.on_election(0, 1)
        second.on_topics_deleted({"t": TOPICS["t"]})
        topic.readable.set()
        await loaded(second)
        assert second.fetch_offsets("simple", None, stable=False).offsets == {}


async def test_thousands_of_positions_in_a_deleted_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion hides all positions at once; their tombstones are written in short steps."""
    topic = SharedTopic()
    monkeypatch.setattr("millstream_broker.groups.offsets.FORGOTTEN_AT_ONCE", 10)
    async with drivers(topic, 1) as (driver,):
        offsets = [OffsetToCommit("t", index, 1, topic_id=TOPICS["t"]) for index in range(95)]
        await driver.commit(Commit("simple", offsets))
        driver.on_topics_deleted({"t": TOPICS["t"]})
        assert driver.fetch_offsets("simple", None, stable=False).offsets == {}
        await until(lambda: driver.committed_partitions("simple") == [])
        assert driver.committed_partitions("no such group") == []


async def test_closed_driver_takes_no_calls() -> None:
    async with drivers(SharedTopic(), 1) as (driver,):
        await driver.close()
        with pytest.raises(ApiError):
            await driver.join(joining())


async def test_closing_does_not_wait_for_replicas_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a broker stops without ZooKeeper: each append would take its full timeout."""
    monkeypatch.setattr("millstream_broker.coordinator.runtime.FINISH_S", 0.1)
    topic = SharedTopic()
    async with drivers(topic, 1) as (driver,):
        topic.writable.clear()
        commits = [asyncio.create_task(driver.commit(committing(offset))) for offset in range(3)]
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await driver.close()
        assert topic.batches == []
        for commit in commits:
            commit.cancel()
        await asyncio.gather(*commits, return_exceptions=True)

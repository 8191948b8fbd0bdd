"""A broker's replicas as coordination's state changes, and their logs meanwhile."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.coordination import NO_LEADER, PartitionRecord, TopicRecord
from millstream_broker.log.log import Log
from millstream_broker.log.manager import Found
from millstream_broker.metadata.cache import Metadata
from millstream_broker.replication.fetcher import PATIENCE_S
from millstream_broker.replication.follower import Outcome
from millstream_broker.replication.partition import Partition
from millstream_broker.replication.purgatory import DelayedProduce
from millstream_broker.replication.stops import Stop
from millstream_broker.runtime import slices
from millstream_broker.topic_rules.internal_topics import OFFSETS_TOPIC
from millstream_harness.replica import (
    NOW_MS,
    OTHERS,
    REPLICAS,
    THEM,
    US,
    Clock,
    Replicating,
    asked,
    batch,
    fetched,
    led_by,
    replicating,
    state,
    topic,
)
from millstream_harness.virtual_time import turns
from millstream_kafka.protocol.errors import ApiError, ErrorCode
from millstream_kafka.protocol.fetch import EpochEndOffset
from millstream_kafka.protocol.stop_replica import EPOCH_DURING_DELETE

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NOT_LEADER, OFFLINE = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR


def led(world: Replicating) -> list[tuple[str, int]]:
    return sorted(world.replicas.partitions)


def followed(world: Replicating) -> list[tuple[str, int]]:
    return sorted(world.replicas.followers)


def held(world: Replicating) -> list[tuple[str, int, int]]:
    return [(one.topic, one.index, id(one.log)) for one in world.replicas.all()]


def folders(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir() if one.is_dir())


def append(partition: Partition) -> None:
    partition.append(batch("a"), NOW_MS, acks=1)


def wait(partition: Partition) -> DelayedProduce:
    """Append a record that waits for all replicas."""
    waiting = partition.append(batch("a"), NOW_MS, acks=-1)
    assert isinstance(waiting, DelayedProduce)
    return waiting


def changed(record: TopicRecord, **more: Any) -> TopicRecord:
    """The topic, with newer states of its partitions."""
    return replace(
        record,
        partitions=tuple(replace(one, version=one.version + 1, **more) for one in record.partitions),
    )


async def asked_for(world: Replicating) -> dict[int, set[tuple[str, int]]]:
    """The partitions requested from each leader since the last call."""
    await turns()
    found: dict[int, set[tuple[str, int]]] = {}
    for call in world.peers.calls:
        found.setdefault(call.connection.broker_id, set()).update(asked(call.request))
    world.peers.calls.clear()
    return found


# Leading and following


async def test_a_broker_leads_and_follows_what_the_records_say(tmp_path: Path) -> None:
    record = topic(
        "t",
        led_by(US),
        led_by(THEM),
        led_by(THEM, THEM, OTHERS),
        led_by(NO_LEADER),
        led_by(OTHERS, US, OTHERS),
    )
    async with replicating(tmp_path) as world:
        now = state(record)
        await world.told(now)
        assert led(world) == [("t", 0)]
        assert followed(world) == [("t", 1), ("t", 4)], "without a leader no log is created"
        assert {(one.topic, one.index) for one in world.replicas.all()} == {
            ("t", index) for index in (0, 1, 4)
        }
        assert world.replicas.metadata.state is now
        assert await asked_for(world) == {THEM: {("t", 1)}, OTHERS: {("t", 4)}}


async def test_a_change_is_followed_without_being_asked_to(tmp_path: Path) -> None:
    async with replicating(tmp_path) as world:
        world.manager.changed(state(topic("t")))
        world.manager.changed(state(topic("u")))
        while (following := world.manager._catching_up) is not None:
            await asyncio.wait([following])
        assert led(world) == [("u", 0)]


async def test_each_topic_that_changed_is_followed(tmp_path: Path) -> None:
    async with replicating(tmp_path) as world:
        before = state(topic("t"), topic("u"))
        await world.told(before)
        newer = changed(before.topics["u"])
        await world.told(replace(before, topics={**before.topics, "u": newer, "v": topic("v")}))
        assert led(world) == [("t", 0), ("u", 0), ("v", 0)]
        assert world.replicas.partitions["u", 0].record is newer.partitions[0]


async def test_settings_of_brokers_count_for_topics_that_did_not_change(tmp_path: Path) -> None:
    async with replicating(tmp_path) as world:
        before = state(topic("t"))
        await world.told(before)
        await world.told(replace(before, broker_configs={None: {"log.retention.ms": "1234"}}))
        opened = world.logs.get("t", 0)
        assert opened.config.retention_ms == 1234


async def test_partitions_are_followed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1.0)  # a slice is one step
    record = topic("t", *[led_by(US)] * 5)
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        Clock(monkeypatch)
        following = asyncio.create_task(world.told(state(changed(record))))
        done = [0]
        for _ in range(20):
            await asyncio.sleep(0)
            now = sum(one.record.version for one in world.replicas.partitions.values())
            done += [now] if now != done[-1] else []
        assert done == [0, 1, 2, 3, 4, 5]
        assert following.done()


async def test_a_sole_replica_needs_no_isr_until_it_gets_company(tmp_path: Path) -> None:
    record = topic("t", led_by(US, US))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        partition = world.replicas.partitions["t", 0]
        append(partition)
        record = changed(record)
        await world.told(state(record))
        assert (partition.isr, partition.record) == (None, record.partitions[0])
        record = changed(record, replicas=(US, THEM))
        await world.told(state(record))
        isr = partition.isr
        assert isr is not None
        assert (set(isr.followers), isr.high_watermark) == ({THEM}, 1)
        await world.told(state(changed(record)))
        assert partition.isr is isr, "what is known of followers is kept"
        assert isr.record.version == 3


async def test_the_high_watermark_and_producers_that_wait_move_with_the_leadership(tmp_path: Path) -> None:
    record = t_of(led_by(US, epoch=1))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        partition = world.replicas.partitions["t", 0]
        append(partition)
        partition.fetched(THEM, 1, 0)
        waiting = wait(partition)
        record = changed(record, leader=THEM, leader_epoch=2)
        await world.told(state(record))
        assert (led(world), followed(world)) == ([], [("t", 0)])
        follower = world.replicas.followers["t", 0]
        assert (follower.high_watermark, waiting.is_done) == (1, False)
        await world.told(state(changed(record, leader=US, leader_epoch=3)))
        assert (led(world), followed(world)) == ([("t", 0)], [])
        partition = world.replicas.partitions["t", 0]
        assert (partition.high_watermark, waiting.is_done) == (1, False)
        partition.fetched(THEM, 2, 0)
        assert (waiting.is_done, waiting.error) == (True, None)


async def test_a_follower_is_asked_for_anew_only_where_the_leader_or_its_epoch_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    record = topic("t", led_by(THEM, US, THEM, OTHERS, epoch=1))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        assert await asked_for(world) == {THEM: {("t", 0)}}
        follower = world.replicas.followers["t", 0]
        record = changed(record, isr=(THEM,))
        await world.told(state(record, alive=()))
        assert (follower.record, await asked_for(world)) == (record.partitions[0], {})
        record = changed(record, leader_epoch=2)
        await world.told(state(record))
        await clock.advance(PATIENCE_S)
        assert await asked_for(world) == {THEM: {("t", 0)}}
        record = changed(record, leader=OTHERS, leader_epoch=3)
        await world.told(state(record))
        assert await asked_for(world) == {OTHERS: {("t", 0)}}
        assert world.replicas.followers["t", 0] is follower


async def test_a_leader_of_nothing_that_is_followed_is_let_go(tmp_path: Path) -> None:
    record = topic("t", led_by(THEM))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        await turns()
        call = world.peers.calls.pop()
        await world.told(state(changed(record, leader=US, leader_epoch=1)))
        await turns()
        assert call.connection.is_closed
        assert await asked_for(world) == {}


async def test_a_partition_that_gets_a_leader_is_fetched_from_it(tmp_path: Path) -> None:
    record = topic("t", led_by(NO_LEADER))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        assert await asked_for(world) == {}
        await world.told(state(changed(record, leader=THEM, leader_epoch=1)))
        assert await asked_for(world) == {THEM: {("t", 0)}}


async def test_replicas_that_the_topic_lists_are_throttled(tmp_path: Path) -> None:
    listed = {"follower_replication_throttled_replicas": f"1:{US}"}
    async with replicating(tmp_path) as world:
        await world.told(state(topic("t", led_by(THEM), led_by(THEM), **listed)))
        assert [world.replicas.followers["t", index].is_throttled for index in (0, 1)] == [False, True]


async def test_brokers_that_come_may_join_and_fetch_from_and_those_that_go_may_not(tmp_path: Path) -> None:
    record = topic("t", led_by(US, isr=(US,)), led_by(THEM), led_by(US, US))
    async with replicating(tmp_path, {"replica.fetch.backoff.ms": "60000"}) as world:
        await world.told(state(record, alive=(US,)))
        assert await asked_for(world) == {}, "the leader is not there"
        partition = world.replicas.partitions["t", 0]
        world.alter_partition.fetched(partition, THEM, 0, 0)
        await turns()
        assert partition.record.isr == (US,)
        now = state(record)
        await world.told(now)
        world.alter_partition.review(partition)
        assert await asked_for(world) == {THEM: {("t", 1)}}
        assert partition.record.isr == (US, THEM)


async def test_the_session_of_a_broker_that_went_ends(tmp_path: Path) -> None:
    async with replicating(tmp_path) as world:
        record = topic("t")
        await world.told(state(record))
        ended = []
        world.sessions.forget = ended.append  # type: ignore[method-assign, assignment]
        now = state(record, alive=(US,))
        await world.told(now)
        await world.told(replace(now, controller_id=2))
        assert ended == [now.brokers], "once for each change"


async def test_a_leader_that_cannot_write_has_others_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise ApiError(OFFLINE, "No space left on device")

    async with replicating(tmp_path) as world:
        await world.told(state(topic("t")))
        monkeypatch.setattr(Log, "append", full)
        with pytest.raises(ApiError):
            append(world.replicas.partitions["t", 0])
        assert world.coordination.has_lost_data


async def test_groups_hear_of_their_topic_alone(tmp_path: Path) -> None:
    record = topic(OFFSETS_TOPIC, led_by(US), led_by(US), led_by(THEM))
    async with replicating(tmp_path) as world:
        now = state(topic("t"), record)
        await world.told(now)
        assert world.groups.told == [("has partitions", 3), ("lead", 0), ("lead", 1)]
        world.groups.told.clear()
        first, second, third = record.partitions
        moved = replace(
            record, partitions=(first, replace(second, leader=THEM, leader_epoch=1, version=1), third)
        )
        await world.told(replace(now, topics={OFFSETS_TOPIC: moved}))
        assert world.groups.told == [
            ("has partitions", 3),
            ("resign", 1),
            ("forget", {"t": now.topics["t"].topic_id}),
        ]


async def test_groups_hear_of_a_leader_that_is_elected_again(tmp_path: Path) -> None:
    """It may have missed another one in between. A change of its ISR tells them nothing."""
    record = topic(OFFSETS_TOPIC, led_by(US, epoch=1))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        world.groups.told.clear()
        (first,) = record.partitions
        for later in (replace(first, version=1), replace(first, version=2, leader_epoch=3)):
            await world.told(state(replace(record, partitions=(later,))))
        counts = ("has partitions", 1)
        assert world.groups.told == [counts, counts, ("lead", 0)]


# Deleted topics


async def test_logs_go_with_topics_that_are_made_anew_and_with_no_others(tmp_path: Path) -> None:
    """A topic that is no longer announced is not served, but its log waits for the controller's request."""
    kept, gone, anew = (topic(name) for name in ("kept", "gone", "anew"))
    followed_one, moved = topic("followed", led_by(THEM)), topic("moved")
    async with replicating(tmp_path) as world:
        await world.told(state(kept, gone, anew, followed_one, moved))
        for partition in world.replicas.partitions.values():
            append(partition)
        waiting = wait(world.replicas.partitions["gone", 0])
        await world.told(state(kept, topic("anew"), topic("moved", led_by(THEM, THEM, OTHERS))))
        await world.settled()
        assert (led(world), followed(world)) == ([("anew", 0), ("kept", 0)], [])
        assert [world.replicas.partitions[name, 0].log.log_end_offset for name in ("anew", "kept")] == [0, 1]
        strays = [f"{one.name}-0.{one.topic_id.hex}-stray" for one in (anew, moved)]
        assert folders(tmp_path) == ["anew-0", strays[0], "followed-0", "gone-0", "kept-0", strays[1]]
        with pytest.raises(ApiError) as error:
            await waiting
        assert error.value.code is UNKNOWN
        await world.manager.stop_replicas(
            [Stop(one.name, 0, -2, True, one.topic_id) for one in (gone, followed_one, anew)]
        )
        await world.settled()
        assert folders(tmp_path) == ["anew-0", "kept-0", strays[1]]


def as_stored(*topics: TopicRecord, unreadable: str = "") -> Any:
    """Reads these topics from a tree."""

    async def read(names: Collection[str]) -> dict[str, TopicRecord | None]:
        there = {one.name: one for one in topics}
        return {name: there.get(name) for name in names if name != unreadable}

    return read


async def test_logs_that_fit_nothing_in_coordination_become_strays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("kept", "gone", "anew", "moved", "leftover", "shorter", "pending", "unreadable")
    topics = {name: topic(name, led_by(US), led_by(US)) for name in names}
    async with replicating(tmp_path) as world:
        await world.told(state(*topics.values()))
        for partition in world.replicas.partitions.values():
            append(partition)
        await world.told(state(topics["kept"]))
        elsewhere = led_by(THEM, THEM, OTHERS)
        stored = as_stored(
            topic("anew"),
            replace(topics["moved"], partitions=(elsewhere, led_by(THEM))),
            replace(topics["leftover"], partitions=(replace(elsewhere, removing=(US,)),) * 2),
            replace(topics["shorter"], partitions=(led_by(US),)),
            topics["pending"],
            unreadable="unreadable",
        )
        before = folders(tmp_path)
        caplog.clear()
        for _ in range(2):
            await world.manager.settle_strays(stored)
        strays = [("anew", 0), ("anew", 1), ("gone", 0), ("gone", 1), ("moved", 0), ("shorter", 1)]
        renamed = {
            f"{name}-{number}": f"{name}-{number}.{topics[name].topic_id.hex}-stray"
            for name, number in strays
        }
        assert folders(tmp_path) == sorted(renamed.get(name, name) for name in before)
        assert sorted((one.topic, one.partition) for one in world.logs.strays) == strays
        assert len(caplog.records) == len(strays)
        assert f"{tmp_path}/gone-0 (topic id {topics['gone'].topic_id}) belongs to no topic" in caplog.text
        assert "moved-0" in caplog.text
        assert "has no replica on this broker" in caplog.text
        assert all(world.logs.strays.sizes.values())


async def test_a_stray_is_used_again_when_its_topic_comes_back(tmp_path: Path) -> None:
    record = topic("t")
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        append(world.replicas.partitions["t", 0])
        await world.told(state())
        await world.manager.settle_strays(as_stored())
        await world.told(state(topic("t")))
        assert world.replicas.partitions["t", 0].log.log_end_offset == 0
        await world.told(state())
        await world.told(state(record))
        assert world.replicas.partitions["t", 0].log.log_end_offset == 1
        assert {one.topic_id for one in world.logs.strays} != {record.topic_id}


async def test_a_stray_that_differs_from_the_leaders_log_is_kept_and_an_empty_log_follows(
    tmp_path: Path,
) -> None:
    """As after a lost partition was added again. A restart does not bring the stray back."""
    record = topic("t")
    followed = replace(record, partitions=(led_by(THEM, epoch=9),))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        append(world.replicas.partitions["t", 0])
        await world.told(state())
        await world.manager.settle_strays(as_stored())
        await world.told(state(followed))
        follower = world.replicas.followers["t", 0]
        assert follower.log.unconfirmed
        diverged = fetched(diverging_epoch=EpochEndOffset(-1, 0))
        assert follower.answered(diverged) is Outcome.FAILED
        await world.manager._removals.ended()
        assert world.replicas.followers["t", 0].log.log_end_offset == 0
        (stray,) = world.logs.strays
        assert (world.logs.strays.end(stray).offset, stray.is_replaced) == (1, True)
        await world.told(state())
        await world.manager.settle_strays(as_stored())
        await world.told(state(record))
        assert world.replicas.partitions["t", 0].log.log_end_offset == 0
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        assert world.replicas.partitions["t", 0].log.log_end_offset == 0
        (stray,) = world.logs.strays
        assert (world.logs.strays.end(stray).offset, stray.is_replaced) == (1, True)


@pytest.mark.parametrize("change", ["closed", "another role", "deleted", "made anew"])
async def test_a_log_that_differs_is_not_replaced_after_a_change(tmp_path: Path, change: str) -> None:
    record = topic("t", led_by(THEM))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        follower = world.replicas.followers["t", 0]
        if change == "closed":
            world.manager._is_closed = True
        elif change == "another role":
            await world.told(state(changed(record, leader=US, leader_epoch=1)))
        else:
            world.replicas.metadata = Metadata(state(*[topic("t")][: change == "made anew"]))
        before = held(world)
        await world.manager._replace(follower)
        assert held(world) == before
        assert list(world.logs.strays) == []


# Truncation of a log that is led


async def test_a_log_that_is_truncated_keeps_its_time_and_is_used_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int, bool]] = []
    monkeypatch.setattr(
        Log, "truncate_led", lambda log, offset, now_ms: found.append((offset, now_ms, log.truncating))
    )
    async with replicating(tmp_path) as world:
        await world.told(state(topic("t")))
        before_ms = time.time() * 1000
        await world.manager.truncate_led(("t", 0), lambda partition: None, 0)
        ((offset, now_ms, is_reserved),) = found
        assert (offset, is_reserved) == (0, True)
        assert before_ms - 1 <= now_ms <= time.time() * 1000
        assert not world.replicas.partitions["t", 0].log.truncating


@pytest.mark.parametrize("change", ["deleted", "made anew", "fewer partitions"])
async def test_nothing_is_truncated_while_a_newer_state_is_applied(tmp_path: Path, change: str) -> None:
    record = topic("t", led_by(US), led_by(US))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        led = world.replicas.partitions["t", 1]
        newer = {
            "deleted": (),
            "made anew": (topic("t", led_by(US), led_by(US)),),
            "fewer partitions": (replace(record, partitions=record.partitions[:1]),),
        }
        world.replicas.metadata = Metadata(state(*newer[change]))
        with pytest.raises(ApiError) as error:
            await world.manager.truncate_led(("t", 1), lambda partition: None, 0)
        assert error.value.code is NOT_LEADER
        assert world.replicas.partitions["t", 1] is led


async def test_a_log_whose_directory_fails_during_truncation_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = topic("t", led_by(US), led_by(US))
    async with replicating(tmp_path) as world:
        await world.told(state(record))

        def fail(log: Log, offset: int, now_ms: int) -> None:
            world.logs.release([("t", 1)], "")
            raise ApiError(OFFLINE)

        monkeypatch.setattr(Log, "truncate_led", fail)
        with pytest.raises(ApiError) as error:
            await world.manager.truncate_led(("t", 1), lambda partition: None, 0)
        assert error.value.code is OFFLINE
        assert [world.manager.lost.includes(record, index) for index in (0, 1)] == [False, True]
        assert world.replicas.unopened == {("t", 1): "its log directory is offline"}


async def test_a_leader_that_goes_on_has_the_newest_known_isr(tmp_path: Path) -> None:
    """A write that was in flight during the truncation may have ended."""
    record = topic("t", led_by(US, isr=REPLICAS))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        led = world.replicas.partitions["t", 0]
        assert led.isr is not None
        led.isr.record = replace(led.record, isr=(US,), version=1)
        world.manager._roles.lead_on(led, record, led.isr)
        assert world.replicas.partitions["t", 0].record is led.isr.record


async def test_a_controller_deletes_no_log_of_another_topic_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A late request, or one of a controller with an older tree."""
    record, other, unserved = topic("t"), topic("t"), topic("u")
    async with replicating(tmp_path) as world:
        await world.told(state(record, unserved))
        await world.told(state(record))
        for epoch in (-2, -1, 7):
            stops = [Stop(name, 0, epoch, True, other.topic_id) for name in ("t", "u")]
            assert set((await world.manager.stop_replicas(stops)).values()) == {NONE}
        assert led(world) == [("t", 0)]
        assert folders(tmp_path) == ["t-0", "u-0"]
        assert f"{tmp_path}/u-0: not deleted: its topic id is {unserved.topic_id}" in caplog.text


# Replicas stopped by a controller


T_ID = uuid.UUID(int=7)


def stop(index: int = 0, epoch: int = -1, *, delete: bool = False) -> Stop:
    return Stop("t", index, epoch, delete, T_ID)


def t_of(*partitions: PartitionRecord) -> TopicRecord:
    return replace(topic("t", *partitions), topic_id=T_ID)


@pytest.mark.parametrize("leader", [US, THEM])
@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, NONE), (0, ErrorCode.FENCED_LEADER_EPOCH), (1, NONE), (2, NONE)]
)
async def test_a_replica_stops_by_the_word_of_its_epoch_or_a_later_one(
    tmp_path: Path, leader: int, epoch: int, code: ErrorCode
) -> None:
    async with replicating(tmp_path) as world:
        await world.told(state(t_of(*[led_by(leader, epoch=1)] * 3)))
        errors = await world.manager.stop_replicas([stop(0, epoch), stop(1, 1), stop(7)])
        assert errors == {("t", 0): code, ("t", 1): NONE, ("t", 7): NONE}
        left = {("t", 2)} if code is NONE else {("t", 0), ("t", 2)}
        assert {(one.topic, one.index) for one in world.replicas.all()} == left
        assert folders(tmp_path) == ["t-0", "t-1", "t-2"]


@pytest.mark.parametrize("epoch", [1, EPOCH_DURING_DELETE])
async def test_removed_replica_with_unconfirmed_log_becomes_a_stray(tmp_path: Path, epoch: int) -> None:
    """After coordination was restored, its assignments may be older than the log. A deleted topic's log is deleted."""
    async with replicating(tmp_path) as world:
        await world.told(state(t_of(led_by(THEM, epoch=1))))
        world.replicas.followers["t", 0].log.unconfirmed = True
        assert await world.manager.stop_replicas([stop(0, epoch, delete=True)]) == {("t", 0): NONE}
        await world.manager._removals.ended()
        assert [one.topic_id for one in world.logs.strays] == ([T_ID] if epoch == 1 else [])
        assert "t-0" not in folders(tmp_path)


async def test_strays_go_with_their_deleted_topic_alone(tmp_path: Path) -> None:
    async with replicating(tmp_path) as world:
        await world.told(state(t_of(led_by(US))))
        append(world.replicas.partitions["t", 0])
        await world.told(state())
        await world.manager.settle_strays(as_stored())
        for request in (stop(0, EPOCH_DURING_DELETE), stop(0, 1, delete=True)):
            await world.manager.stop_replicas([request])
            await world.settled()
            assert [one.topic_id for one in world.logs.strays] == [T_ID]
        await world.manager.stop_replicas([stop(0, EPOCH_DURING_DELETE, delete=True)])
        await world.settled()
        assert list(world.logs.strays) == []


async def test_followers_share_the_writes_of_log_starts(tmp_path: Path) -> None:
    async with replicating(tmp_path) as world:
        await world.told(state(topic("t", led_by(THEM), led_by(US))))
        starts = world.manager._roles.starts
        assert world.replicas.followers["t", 0]._starts is starts
        assert world.replicas.partitions["t", 1]._starts is starts


@pytest.mark.parametrize("leader", [US, THEM])
@pytest.mark.parametrize("confirmed", [False, True])
async def test_removed_replica_older_than_the_comparison_becomes_a_stray_unless_confirmed(
    tmp_path: Path, leader: int, confirmed: bool
) -> None:
    """An ordinary move of an idle partition, whose log has no later epoch, leaves no stray."""
    async with replicating(tmp_path) as world:
        await world.told(state(t_of(led_by(US, epoch=1))))
        append(world.replicas.partitions["t", 0])
        compared = replace(led_by(leader, epoch=9), compared=9, version=9)
        await world.told(state(t_of(compared)))
        if leader == THEM and confirmed:
            follower = world.replicas.followers["t", 0]
            follower.request(1000)
            assert follower.answered(fetched()) is Outcome.NOTHING_NEW
        await world.manager.stop_replicas([stop(0, 9, delete=True)])
        await world.manager._removals.ended()
        assert len([*world.logs.strays]) == (leader == THEM and not confirmed)
        assert "t-0" not in folders(tmp_path)


@pytest.mark.parametrize("leader", [US, THEM])
async def test_a_replica_that_was_deleted_comes_back_in_a_later_epoch_only(
    tmp_path: Path, leader: int
) -> None:
    record = t_of(led_by(leader, epoch=1))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        assert await world.manager.stop_replicas([stop(delete=True), stop(7, delete=True)]) == {
            ("t", 0): NONE,
            ("t", 7): NONE,
        }
        await world.settled()
        assert folders(tmp_path) == []
        record = changed(record)
        await world.told(state(record))
        assert folders(tmp_path) == []
        await world.told(state(changed(record, leader_epoch=2)))
        assert folders(tmp_path) == ["t-0"]
        assert [(one.topic, one.index) for one in world.replicas.all()] == [("t", 0)]
        await world.manager.stop_replicas([stop()])
        await world.told(state(changed(record, leader_epoch=2)))
        assert [(one.topic, one.index) for one in world.replicas.all()] == [("t", 0)], (
            "it was not deleted again"
        )


async def test_a_replica_that_has_moved_away_may_come_back_in_the_same_epoch(tmp_path: Path) -> None:
    record = t_of(led_by(US, epoch=1))
    async with replicating(tmp_path) as world:
        await world.told(state(record))
        partition = world.replicas.partitions["t", 0]
        partition.record = replace(partition.record, replicas=(THEM,))
        await world.manager.stop_replicas([stop(delete=True)])
        await world.told(state(changed(record)))
        assert led(world) == [("t", 0)]


async def test_nothing_is_remembered_of_topics_that_are_deleted(tmp_path: Path) -> None:
    one, other = topic("t"), topic("other")
    async with replicating(tmp_path) as world:
        await world.told(state(one, other))
        await world.manager.stop_replicas([Stop(of.name, 0, -1, True, of.topic_id) for of in (one, other)])
        world.manager.lose([Found("t", 1, one.topic_id), Found("other", 1, other.topic_id)], "gone")
        await world.told(state(other))
        assert world.manager._removed == {(other.topic_id, 0): 0}
        assert [world.manager.lost.includes(each, 1) for each in (one, other)] == [False, True]

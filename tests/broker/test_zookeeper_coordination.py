"""Brokers that agree by a real ZooKeeper; the tests play the controller where it is not the point."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.coordination import (
    BrokerRecord,
    Conflict,
    CoordinationError,
    PartitionRecord,
    TopicRecord,
    tree,
)
from millstream_broker.coordination import coordination as module
from millstream_broker.coordination.controllership import (
    BrokersChanged,
    ConfigsChanged,
    DeletionsRequested,
    Fenced,
    StatesChanged,
)
from millstream_broker.coordination.stores import Unavailable
from millstream_harness.members import (
    Member,
    lead,
    led_topic,
    members,
    told,
    topic_of,
    topics_of,
    until,
)
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.protocol.errors import ApiError, ErrorCode


@pytest.fixture
def connect(shared_zookeeper: ZooKeeperProcess) -> str:
    return shared_zookeeper.own_tree()


async def stored(member: Member, path: str) -> Any:
    node = await member.coordination._nodes.get(path)
    return None if node is None else json.loads(node.data or b"null")


# Joining


async def test_the_first_broker_makes_the_cluster_and_controls_it(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        assert one.coordination.cluster_id == two.coordination.cluster_id != ""
        await one.elected()
        await until(lambda: two.state.controller_id == 1)
        assert not two.stores
        assert await stored(one, "/cluster/id") == {"version": "1", "id": one.coordination.cluster_id}
        registered = await stored(one, "/brokers/ids/2")
        assert registered["endpoints"] == ["PLAINTEXT://127.0.0.1:9002"]
        assert (await stored(one, "/controller"))["brokerid"] == 1
        assert await stored(one, "/controller_epoch") == 1
        assert two.epoch > one.epoch > 0
        image = await one.load()
        assert set(image.brokers) == {1, 2}
        assert image.brokers[2] == replace(two.record, epoch=two.epoch)


async def test_leaving_gives_everything_up_at_once(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        await one.elected()
        await one.coordination.leave()
        assert one.depositions == 1
        store = await two.elected()
        assert store.epoch == 2
        assert await stored(two, "/brokers/ids/1") is None
        assert (await two.load()).brokers.keys() == {2}


async def test_a_broker_id_belongs_to_one_broker(connect: str) -> None:
    async with members(connect, 1, session_s=1.0):
        other = Member(connect, 1, session_s=1.0, directory="elsewhere")
        try:
            with pytest.raises(
                CoordinationError, match=r"broker.id=1 is taken: the broker at PLAINTEXT://127.0.0.1:9001 has"
            ):
                await other.join()
        finally:
            await other.coordination.leave()


async def test_an_earlier_incarnation_is_taken_over_at_once(connect: str) -> None:
    async with members(connect, 1, 2, session_s=30.0) as (one, two):
        await one.elected()
        one.coordination.withdraw()  # it has ended: its session alone lives on
        began = time.monotonic()
        async with members(connect, 1, session_s=30.0) as (again,):
            assert time.monotonic() - began < 5
            assert again.epoch > one.epoch
            await until(lambda: again.stores or two.stores)
            (store,) = again.stores + two.stores
            assert store.epoch == 2
            await until(lambda: one.depositions == 1)


async def test_another_clusters_id_is_kept_for_the_broker_to_refuse(connect: str) -> None:
    async with members(connect, 1, known_cluster_id="of-its-data") as (one,):
        assert one.coordination.cluster_id == "of-its-data"
        async with members(connect, 2, known_cluster_id="another") as (two,):
            assert two.coordination.cluster_id == "of-its-data"


async def test_zookeeper_may_come_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = ZooKeeperProcess(tmp_path)
    member = Member(f"{server.connect}/late", 1)
    joining = asyncio.create_task(member.join())
    try:
        await until(lambda: f"waiting for ZooKeeper at {server.connect}/late" in caplog.text)
        assert not joining.done()
        await asyncio.to_thread(server.start)
        await joining
        await member.elected()
    finally:
        await member.coordination.leave()
        server.kill()


# What is told and asked for


async def test_a_topic_is_created_told_and_deleted(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        store = await one.elected()
        await one.load()
        topic = topic_of("flights", 2)
        creating = asyncio.create_task(
            two.coordination.create_topic(replace(topic, config={"retention.ms": "7"}))
        )
        led = (await lead(one, store, ["flights"]))["flights"]
        assert led.config == {"retention.ms": "7"}
        assert not creating.done()
        await two.coordination.update(told(one, [one, two], [led], two))
        await creating
        assert two.state.topics["flights"] == led
        assert two.state.brokers.keys() == {1, 2}
        assert await stored(one, "/config/topics/flights") == {"version": 1, "config": {"retention.ms": "7"}}
        assert (await stored(one, "/brokers/topics/flights"))["partitions"] == {"0": [1, 2], "1": [1, 2]}
        assert await stored(one, "/brokers/topics/flights/partitions/1/state") == {
            "controller_epoch": 1,
            "leader": 1,
            "version": 1,
            "leader_epoch": 0,
            "isr": [1, 2],
        }
        with pytest.raises(Conflict):
            await one.coordination.create_topic(topic_of("flights"))
        deleting = asyncio.create_task(two.coordination.delete_topic("flights"))
        await until(lambda: one.last(DeletionsRequested))
        assert one.last(DeletionsRequested).topics == {"flights"}
        await two.coordination.update(told(one, [one, two], [led], two, deleted=True))
        await deleting
        assert not two.state.topics
        await store.remove_topic("flights")
        for path in ("/brokers/topics/flights", "/config/topics/flights", "/admin/delete_topics/flights"):
            assert await two.coordination._nodes.get(path) is None
        with pytest.raises(Conflict):
            await two.coordination.delete_topic("flights")
        again = asyncio.create_task(one.coordination.create_topic(topic_of("flights")))
        led = (await lead(one, store, ["flights"]))["flights"]
        await one.coordination.update(told(one, [one, two], [led], one))
        await again


async def test_partitions_are_added(connect: str) -> None:
    async with members(connect, 1) as (one,):
        store = await one.elected()
        await one.load()
        creating = asyncio.create_task(one.coordination.create_topic(topic_of("t", 1, (1,))))
        led = await lead(one, store, ["t"])
        await one.coordination.update(told(one, [one], led.values(), one))
        await creating
        adding = asyncio.create_task(one.coordination.add_partitions("t", topic_of("", 2, (1,)).partitions))
        await until(lambda: len(topics_of(one)["t"].partitions) == 3)
        assert [p.version for p in topics_of(one)["t"].partitions] == [0, tree.NO_STATE, tree.NO_STATE]
        led = await lead(one, store, ["t"])
        await one.coordination.update(told(one, [one], led.values(), one))
        await adding
        assert len(one.state.topics["t"].partitions) == 3
        with pytest.raises(Conflict):
            await one.coordination.add_partitions("none", topic_of("").partitions)


async def test_too_large_a_topic_is_refused_before_zookeeper_hangs_up(connect: str) -> None:
    async with members(connect, 1) as (one,):
        with pytest.raises(ApiError, match="bytes in coordination: 1000000 are allowed"):
            await one.coordination.create_topic(topic_of("t", 100_000, (1, 2, 3)))


async def test_what_is_written_and_not_carried_out_is_said(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.5)
    async with members(connect, 1) as (one,):
        with pytest.raises(ApiError, match="topic t is written, but the controller has not") as failed:
            await one.coordination.create_topic(topic_of("t"))
        assert failed.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_old_controllers_and_old_registrations_are_refused(connect: str) -> None:
    async with members(connect, 1) as (one,):
        await one.elected()
        await one.coordination._nodes.set("/controller_epoch", b"5")
        await one.coordination.update(told(one, [one], [], one, controller_epoch=5))
        with pytest.raises(ApiError) as stale:
            await one.coordination.update(told(one, [one], [], one, controller_epoch=4))
        assert stale.value.code is ErrorCode.STALE_CONTROLLER_EPOCH
        for other in (-1, 0, one.epoch - 1, one.epoch + 1, 2**63 - 1):
            with pytest.raises(ApiError) as stale:
                await one.coordination.update(
                    told(one, [one], [], one, controller_epoch=5, broker_epoch=other)
                )
            assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH


async def test_a_controller_is_believed_when_zookeeper_has_it(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        await until(lambda: one.stores or two.stores)
        first, second = (one, two) if one.stores else (two, one)
        brokers = [one, two]
        for _ in range(2):  # before the controller was heard of, and after
            for epoch in (2, 2**31 - 1):
                with pytest.raises(ApiError) as unknown:
                    await second.coordination.update(
                        told(first, brokers, [topic_of("made-up")], second, controller_epoch=epoch)
                    )
                assert unknown.value.code is ErrorCode.NOT_CONTROLLER
            with pytest.raises(ApiError) as unknown:
                await second.coordination.update(told(second, brokers, [], second, controller_epoch=1))
            assert unknown.value.code is ErrorCode.NOT_CONTROLLER
            assert not second.state.topics
            await second.coordination.update(told(first, brokers, [], second))
            assert second.state.controller_id == first.record.broker_id
        await first.coordination.leave()
        await second.elected()
        await second.coordination.update(told(second, [second], [], second))
        with pytest.raises(ApiError) as deposed:
            await second.coordination.update(told(first, [second], [], second))
        assert deposed.value.code is ErrorCode.STALE_CONTROLLER_EPOCH


async def test_of_two_records_the_newer_stays(connect: str) -> None:
    async with members(connect, 1) as (one,):
        await one.elected()
        topic = TopicRecord("t", uuid.uuid4(), (PartitionRecord((1, 2), 1, 3, (1,), 7, 1),) * 2)
        await one.coordination.update(told(one, [one], [topic], one))
        before = one.state.topics["t"]
        older = replace(topic.partitions[0], isr=(1, 2), version=6)
        newer = replace(topic.partitions[0], isr=(1, 2), version=8)
        await one.coordination.update(told(one, [one], [replace(topic, partitions=(older, older))], one))
        assert one.state.topics["t"] is before
        await one.coordination.update(told(one, [one], [replace(topic, partitions=(older, newer))], one))
        assert one.state.topics["t"].partitions == (topic.partitions[0], newer)
        reborn = TopicRecord("t", uuid.uuid4(), (PartitionRecord((1,), 1, 0, (1,), 0, 1),))
        await one.coordination.update(told(one, [one], [reborn], one))
        assert one.state.topics["t"] == reborn


# Configuration


async def test_configuration_reaches_everybody(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        store = await one.elected()
        await one.load()
        creating = asyncio.create_task(two.coordination.create_topic(topic_of("t")))
        led = await lead(one, store, ["t"])
        for member in (one, two):
            await member.coordination.update(told(one, [one, two], led.values(), member))
        await creating
        await one.coordination.set_topic_config("t", {"retention.ms": "5"})
        assert one.state.topics["t"].config == {"retention.ms": "5"}
        await until(lambda: two.state.topics["t"].config == {"retention.ms": "5"})
        await two.coordination.set_topic_config("t", {"min.insync.replicas": "2"})
        await until(lambda: one.state.topics["t"].config == {"min.insync.replicas": "2"})
        await until(lambda: one.last(ConfigsChanged).topics == {"t": {"min.insync.replicas": "2"}})
        await two.coordination.set_broker_config(None, {"log.retention.ms": "9"})
        await two.coordination.set_broker_config(2, {"log.retention.ms": "8"})
        wanted = {None: {"log.retention.ms": "9"}, 2: {"log.retention.ms": "8"}}
        await until(lambda: one.state.broker_configs == wanted)
        assert await stored(one, "/config/brokers/<default>") == {
            "version": 1,
            "config": {"log.retention.ms": "9"},
        }
        with pytest.raises(Conflict):
            await one.coordination.set_topic_config("none", {})
        async with members(connect, 3) as (three,):
            assert three.coordination.stored_config("t") == {"min.insync.replicas": "2"}
            assert three.state.broker_configs == wanted


async def test_configuration_that_cannot_be_used_is_left_out(
    connect: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with members(connect, 1) as (one,):
        session = one.coordination._nodes
        await session.create(
            "/config/topics/t", tree.config_json({"retention.ms": "x", "segment.bytes": "100"})
        )
        await session.create("/config/brokers/1", tree.config_json({"broker.id": "3", "no.such": "1"}))
        await session.create("/config/brokers/<default>", b"nonsense")
        async with members(connect, 2) as (two,):
            assert two.coordination.stored_config("t") == {"segment.bytes": "100"}
            assert two.state.broker_configs == {1: {}}
    for complaint in (
        "/config/topics/t is used without retention.ms=x: ",
        "broker.id cannot",
        "no.such: no such",
        "is not a JSON object",
    ):
        assert complaint in caplog.text


async def test_producer_ids_are_given_once(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        blocks = await asyncio.gather(
            *(member.coordination.allocate_producer_ids() for member in (one, two) * 5)
        )
        assert sorted(block.start for block in blocks) == list(range(0, 10_000, 1000))
        assert all(len(block) == 1000 for block in blocks)


# The ISR, and the controller's writes


async def test_an_isr_is_written_under_its_version_and_noted(connect: str) -> None:
    async with members(connect, 1) as (one,):
        (record, _) = (await led_topic(one, 2)).partitions
        shrunk = await one.coordination.write_partition("t", 0, replace(record, isr=(1,), elr=(2,)))
        assert (shrunk.version, shrunk.isr, shrunk.elr) == (record.version + 1, (1,), (2,))
        assert one.state.topics["t"].partitions[0] == shrunk
        await until(lambda: one.last(StatesChanged))
        assert one.last(StatesChanged).states == {("t", 0): shrunk}
        await until(lambda: one.last(StatesChanged) is not None)
        assert await one.coordination._nodes.children(tree.ISR_CHANGES) == []
        # The same again, as after a lost answer: it is there already.
        assert await one.coordination.write_partition("t", 0, replace(record, isr=(1,), elr=(2,))) == shrunk
        with pytest.raises(Conflict):
            await one.coordination.write_partition("t", 0, replace(record, isr=(1, 2)))
        with pytest.raises(Conflict):
            await one.coordination.write_partition("t", 7, replace(record, isr=(1, 2)))


async def test_a_conflict_shows_what_is_stored(connect: str) -> None:
    async with members(connect, 1) as (one,):
        (record,) = (await led_topic(one)).partitions
        store = await one.elected()
        elected = replace(record, leader=2, leader_epoch=1)
        assert await store.write_states({("t", 0): elected}) == {("t", 0): replace(elected, version=1)}
        with pytest.raises(Conflict):
            await one.coordination.write_partition("t", 0, replace(record, isr=(1,)))
        assert one.state.topics["t"].partitions[0] == replace(elected, version=1)


async def test_states_are_written_each_under_its_version(connect: str) -> None:
    async with members(connect, 1) as (one,):
        store = await one.elected()
        await one.load()
        records = (await led_topic(one, 150)).partitions
        one.events.clear()
        wanted = {("t", index): replace(record, leader_epoch=1) for index, record in enumerate(records)}
        wanted["t", 70] = replace(wanted["t", 70], version=9)
        wanted["none", 0] = replace(records[0], version=tree.NO_STATE)
        wanted["gone", 0] = records[0]
        answer = await store.write_states(wanted)
        assert answer.keys() == wanted.keys()
        assert answer["t", 70] == records[70]
        for gone in ("none", 0), ("gone", 0):
            assert (answer[gone].version, answer[gone].leader) == (tree.NO_STATE, -1)
        others = {key: record for key, record in wanted.items() if key[0] == "t" and key[1] != 70}
        assert {key: answer[key] for key in others} == {
            key: replace(record, version=1) for key, record in others.items()
        }


async def test_an_assignment_is_written_and_what_was_added_meanwhile_stays(connect: str) -> None:
    async with members(connect, 1) as (one,):
        topic = await led_topic(one)
        store = await one.elected()
        grown = replace(topic, partitions=(*topic.partitions, *topic_of("", 1, (5,)).partitions))
        await one.coordination._nodes.set("/brokers/topics/t", tree.topic_json(grown))
        moving = replace(topic.partitions[0], replicas=(3, 1, 2), adding=(3,), removing=(1,))
        await store.write_assignment(replace(topic, partitions=(moving,)))
        now = await stored(one, "/brokers/topics/t")
        assert now["partitions"] == {"0": [3, 1, 2], "1": [5]}
        assert (now["adding_replicas"], now["removing_replicas"]) == ({"0": [3]}, {"0": [1]})
        await store.write_assignment(topic_of("none"))
        assert await stored(one, "/brokers/topics/none") is None


async def test_an_unclean_broker_is_accepted(connect: str) -> None:
    async with members(connect, 1) as (one,):
        store = await one.elected()
        two = Member(connect, 2)
        two.record = replace(two.record, unclean=True)
        try:
            await two.join()
            image = await one.load()
            assert image.brokers[2].unclean
            await store.accept_broker(replace(image.brokers[2], epoch=1))
            assert (await stored(one, "/brokers/ids/2"))["unclean"] is True
            await store.accept_broker(image.brokers[2])
            assert (await stored(one, "/brokers/ids/2"))["unclean"] is False
            await until(lambda: two.coordination._broker and not two.coordination._broker.unclean)
            assert two.epoch == image.brokers[2].epoch
        finally:
            await two.coordination.leave()


async def test_a_broker_that_loses_a_directory_registers_anew(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        await one.elected()
        await one.load()
        epoch = two.epoch
        two.coordination.lost_data()
        await until(lambda: two.epoch > epoch)
        await until(
            lambda: one.last(BrokersChanged) and one.last(BrokersChanged).brokers[2].epoch == two.epoch
        )
        assert one.last(BrokersChanged).brokers[2].unclean
        one.coordination.lost_data()
        await until(lambda: one.last(BrokersChanged).brokers[1].unclean)
        assert one.depositions == 0


async def test_a_deposed_controller_changes_nothing(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        topic = await led_topic(one)
        store = await one.elected()
        # Somebody deletes /controller: whoever is first takes it, and the old one's store is fenced.
        one.coordination.campaigns = False
        await two.coordination._nodes.delete("/controller")
        newer = await two.elected()
        assert newer.epoch == store.epoch + 1
        record = replace(topic.partitions[0], leader=2, leader_epoch=1)
        for write in (
            lambda: store.write_states({("t", 0): record}),
            lambda: store.write_assignment(replace(topic, partitions=(replace(record, replicas=(2,)),))),
            lambda: store.remove_topic("t"),
            lambda: store.refuse_deletion(["t"]),
            lambda: store.load(one.events.append),
        ):
            with pytest.raises(Fenced):
                await write()
        assert one.depositions == 1
        assert await stored(two, "/brokers/topics/t/partitions/0/state") == json.loads(
            tree.state_json(topic.partitions[0])
        )


async def test_a_controller_that_does_not_know_yet_is_fenced_by_its_writes(connect: str) -> None:
    async with members(connect, 1) as (one,):
        topic = await led_topic(one)
        store = await one.elected()
        epoch = await one.coordination._nodes.get("/controller_epoch")
        assert epoch is not None
        await one.coordination._nodes.set(
            "/controller_epoch", b"9"
        )  # by another, who knows nothing of watches
        with pytest.raises(Fenced):
            await store.write_states({("t", 0): replace(topic.partitions[0], leader_epoch=1)})
        assert one.depositions == 1
        assert (await stored(one, "/brokers/topics/t/partitions/0/state"))["leader_epoch"] == 0


# Processes that have ended


def incarnation(member: Member) -> BrokerRecord:
    return replace(member.record, epoch=member.epoch)


async def test_the_end_of_a_process_is_the_end_of_its_registration(connect: str) -> None:
    """And if it lives after all, it registers again and is another incarnation."""
    async with members(connect, 1, 2, session_s=30.0) as (one, two):
        await one.elected()
        await one.load()
        old = incarnation(two)
        one.coordination.process_ended(old)
        await until(lambda: two.epoch > old.epoch)
        await until(
            lambda: one.last(BrokersChanged) and one.last(BrokersChanged).brokers.get(2) == incarnation(two)
        )
        assert (one.depositions, two.depositions) == (0, 0)
        one.coordination.process_ended(old)
        await until(lambda: not one.coordination._ended)
        node = await one.coordination._nodes.get("/brokers/ids/2")
        assert node is not None
        assert node.created == two.epoch, "the proof was of the incarnation before"


async def test_a_broker_registers_again_though_the_connection_was_lost_before(tmp_path: Path) -> None:
    """Watches go with a connection, also where the session lives on."""
    with ZooKeeperProcess(tmp_path) as server:
        async with members(f"{server.connect}/kafka", 1, 2, session_s=30.0) as (one, two):
            await one.elected()
            await until(lambda: two.state.controller_id == 1)  # it has looked at all that it watches
            server.kill()
            await until(lambda: not two.coordination.is_connected)
            await asyncio.to_thread(server.start)
            await until(lambda: one.coordination.is_connected and two.coordination.is_connected)
            old = incarnation(two)
            one.coordination.process_ended(old)
            await until(lambda: two.epoch > old.epoch)


async def test_the_end_of_the_controllers_process_is_the_end_of_its_controllership(connect: str) -> None:
    async with members(connect, 1, 2, session_s=30.0) as (one, two):
        topic = await led_topic(one)
        first, old = await one.elected(), incarnation(one)
        one.coordination.campaigns = False
        two.coordination.process_ended(old)
        second = await two.elected()
        assert second.epoch == first.epoch + 1
        await until(lambda: one.depositions == 1)
        with pytest.raises(Fenced):
            await first.write_states({("t", 0): topic.partitions[0]})
        await until(lambda: one.epoch > old.epoch)
        one.coordination.campaigns = True
        two.coordination.process_ended(old)
        await until(lambda: not two.coordination._ended)
        assert two.depositions == 0


async def test_a_broker_that_registers_meanwhile_keeps_its_registration(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has the same version as the one before."""
    async with members(connect, 1, 2) as (one, two):
        await one.elected()
        registering_before_the_next_multi(monkeypatch, one, two)
        old = incarnation(two)
        one.coordination.process_ended(old)
        await until(lambda: not one.coordination._ended)
        assert two.epoch > old.epoch
        node = await one.coordination._nodes.get("/brokers/ids/2")
        assert node is not None
        assert node.created == two.epoch


async def test_a_broker_that_registers_meanwhile_as_unclean_stays_so(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(connect, 1, 2) as (one, two):
        store = await one.elected()
        two.coordination.lost_data()
        epoch = two.epoch
        await until(lambda: two.epoch > epoch)
        old = incarnation(two)
        registering_before_the_next_multi(monkeypatch, one, two)
        await store.accept_broker(old)
        assert two.epoch > old.epoch
        assert (await stored(one, "/brokers/ids/2"))["unclean"] is True


def registering_before_the_next_multi(monkeypatch: pytest.MonkeyPatch, writer: Member, other: Member) -> None:
    session, epoch = writer.coordination._nodes, other.epoch
    multi = session.multi

    async def late(operations: Any) -> Any:
        if other.epoch == epoch:
            other.coordination.lost_data()
            await until(lambda: other.epoch > epoch)
        return await multi(operations)

    monkeypatch.setattr(session, "multi", late)


async def test_a_broker_that_stops_does_not_register_again(connect: str) -> None:
    """It has closed its listeners by then."""
    async with members(connect, 1, 2, session_s=30.0) as (one, two):
        await one.elected()
        await one.load()
        two.coordination.withdraw()
        one.coordination.process_ended(incarnation(two))
        await until(lambda: one.last(BrokersChanged) and 2 not in one.last(BrokersChanged).brokers)
        await two.coordination._renew_registration()
        assert await stored(one, "/brokers/ids/2") is None


# ZooKeeper goes away


async def test_a_lost_session_is_followed_by_a_new_registration(
    connect: str, shared_zookeeper: ZooKeeperProcess
) -> None:
    async with members(connect, 1, 2) as (one, two):
        topic = await led_topic(one)
        first, epoch = await one.elected(), one.epoch
        two.coordination.campaigns = False
        await asyncio.to_thread(end_session, shared_zookeeper.connect, one)
        await until(lambda: len(one.stores) == 2)
        assert one.depositions == 1
        assert one.stores[1].epoch == first.epoch + 1
        await until(lambda: one.epoch > epoch)
        assert one.state.topics["t"] == topic
        await until(lambda: one.state.brokers[1].epoch == one.epoch)
        with pytest.raises(Fenced):
            await first.write_states({("t", 0): topic.partitions[0]})
        assert (await one.load()).brokers.keys() == {1, 2}


def end_session(connect: str, member: Member) -> None:
    from kazoo.client import KazooClient

    other = KazooClient(connect, client_id=member.coordination._nodes._client.client_id)
    other.start()
    other.stop()
    other.close()


async def test_topics_deleted_while_nobody_told_us_are_gone(
    connect: str, shared_zookeeper: ZooKeeperProcess
) -> None:
    async with members(connect, 1, 2) as (one, two):
        topic = await led_topic(one)
        await two.coordination.update(told(one, [one, two], [topic], two))
        await (await one.elected()).remove_topic("t")
        assert two.state.topics.keys() == {"t"}
        await asyncio.to_thread(end_session, shared_zookeeper.connect, two)
        await until(lambda: not two.state.topics)


async def test_away_and_back(tmp_path: Path) -> None:
    """What was asked for while ZooKeeper was away is done when it is back; nothing is lost or done twice."""
    with ZooKeeperProcess(tmp_path) as server:
        async with members(f"{server.connect}/kafka", 1, session_s=20.0) as (one,):
            topic = await led_topic(one, 3)
            store = await one.elected()
            one.events.clear()
            server.kill()
            await until(lambda: not one.coordination._nodes.is_connected)
            with pytest.raises(Unavailable):
                await one.coordination.write_partition("t", 0, replace(topic.partitions[0], isr=(1,)))
            writing = asyncio.create_task(
                store.write_states({("t", 1): replace(topic.partitions[1], leader_epoch=1)})
            )
            allocating = asyncio.create_task(one.coordination.allocate_producer_ids())
            configuring = asyncio.create_task(one.coordination.set_topic_config("t", {"retention.ms": "5"}))
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in (writing, allocating, configuring))
            await asyncio.to_thread(server.start)
            assert (await writing)["t", 1].version == 1
            assert await allocating == range(1000)
            await configuring
            assert one.depositions == 0
            shrunk = await one.coordination.write_partition("t", 0, replace(topic.partitions[0], isr=(1,)))
            await until(lambda: one.last(StatesChanged))
            assert one.last(StatesChanged).states == {("t", 0): shrunk}
            async with members(f"{server.connect}/kafka", 2):
                await until(lambda: one.last(BrokersChanged))
                assert one.last(BrokersChanged).brokers.keys() == {1, 2}


@pytest.mark.parametrize("attempt", [0, 2])
async def test_answers_that_get_lost_are_found_out(tmp_path: Path, attempt: int) -> None:
    """The server dies in the midst of writes: each has happened once when its call returns."""
    with ZooKeeperProcess(tmp_path) as server:
        async with members(f"{server.connect}/kafka", 1, session_s=20.0) as (one,):
            topic = await led_topic(one, 200)
            store = await one.elected()
            records = dict(enumerate(topic.partitions))
            for round_ in range(2):
                wanted = {
                    ("t", index): replace(record, leader_epoch=round_ + 1)
                    for index, record in records.items()
                }
                writing = asyncio.create_task(store.write_states(wanted))
                blocks = asyncio.gather(*(one.coordination.allocate_producer_ids() for _ in range(20)))
                await asyncio.sleep(0.003 * attempt)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                written = await writing
                assert {key: record.version for key, record in written.items()} == {
                    key: record.version + 1 for key, record in wanted.items()
                }
                records = {key[1]: record for key, record in written.items()}
                assert len({block.start for block in await blocks}) == 20


async def test_leaving_keeps_its_deadline_though_zookeeper_hangs(tmp_path: Path) -> None:
    with ZooKeeperProcess(tmp_path) as server:
        member = await Member(server.connect, 1, session_s=30.0).join()
        server.pause()
        began = time.monotonic()
        await member.coordination.leave()
        assert time.monotonic() - began < module.LEAVE_S + 1
        server.resume()


async def test_a_thousand_topics_are_loaded_and_led_in_time(connect: str) -> None:
    async with members(connect, 1) as (one,):
        store = await one.elected()
        await one.load()
        topics = [topic_of(f"t{index}") for index in range(1000)]
        session = one.coordination._nodes
        await session.multi_all([module.Create(tree.topic_path(t.name), tree.topic_json(t))] for t in topics)
        await until(lambda: len(topics_of(one)) == 1000)
        began = time.monotonic()
        await lead(one, store, [topic.name for topic in topics])
        led = time.monotonic()
        image = await one.load()
        loaded = time.monotonic()
        assert len(image.topics) == 1000
        assert all(topic.partitions[0].leader == 1 for topic in image.topics.values())
        print(f"led {led - began:.2f} s, loaded {loaded - led:.2f} s")
        assert loaded - began < 10

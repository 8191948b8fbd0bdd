"""Brokers that coordinate by a real ZooKeeper: they join, get updates, and send requests; tests play the controller."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from millstream_broker.coordination import (
    Conflict,
    CoordinationError,
    PartitionRecord,
    TopicRecord,
    tree,
)
from millstream_broker.coordination import state_waits as module
from millstream_broker.coordination.controllership import (
    ConfigsChanged,
    DeletionsRequested,
)
from millstream_broker.coordination.entities import DEFAULT, Entity
from millstream_harness.members import (
    Member,
    lead,
    members,
    stored,
    told,
    topic_of,
    topics_of,
    until,
)
from millstream_harness.zookeeper import ZooKeeperProcess
from millstream_kafka.protocol.errors import ApiError, ErrorCode

pytestmark = pytest.mark.process


@pytest.fixture
def connect(shared_zookeeper: ZooKeeperProcess) -> str:
    return shared_zookeeper.own_tree()


async def test_configuration_of_entities_reaches_the_others(connect: str) -> None:
    entity = Entity(user="a b", client_id=DEFAULT)
    async with members(connect, 1, 2) as (one, two):
        changed: list[frozenset[Entity]] = []
        two.coordination.on_entities.append(changed.append)
        await one.coordination.change_entity(entity, lambda config: {"consumer_byte_rate": "7"})
        await until(lambda: two.coordination.entity_configs == {entity: {"consumer_byte_rate": "7"}})
        assert {entity} in changed
        assert await stored(one, "/config/users/a%20b/clients/<default>") == {
            "version": 1,
            "config": {"consumer_byte_rate": "7"},
        }


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
    async with members(connect, 1):
        other = Member(connect, 1, directory="elsewhere")
        other.coordination._nodes.timeout = 0.5  # how long it waits for the holder's session to end
        try:
            with pytest.raises(
                CoordinationError, match=r"broker.id=1 is taken: the broker at PLAINTEXT://127.0.0.1:9001 has"
            ):
                await other.join()
        finally:
            await other.coordination.leave()


async def test_an_earlier_incarnation_is_taken_over_at_once(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        await one.elected()
        one.coordination.withdraw()  # its process has ended; only the session lives on, and does not end
        async with members(connect, 1) as (again,):
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


# Updates and requests


async def test_a_topic_is_created_told_and_deleted(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
        store = await one.elected()
        await one.load()
        topic = topic_of("flights", 2)
        creating = asyncio.create_task(
            two.coordination.topics.create(replace(topic, config={"retention.ms": "7"}))
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
            await one.coordination.topics.create(topic_of("flights"))
        deleting = asyncio.create_task(two.coordination.topics.delete("flights"))
        await until(lambda: one.last(DeletionsRequested))
        assert one.last(DeletionsRequested).topics == {"flights"}
        await two.coordination.update(told(one, [one, two], [led], two, deleted=True))
        await deleting
        assert not two.state.topics
        await store.remove_topic("flights")
        for path in ("/brokers/topics/flights", "/config/topics/flights", "/admin/delete_topics/flights"):
            assert await two.coordination._nodes.get(path) is None
        with pytest.raises(Conflict):
            await two.coordination.topics.delete("flights")
        again = asyncio.create_task(one.coordination.topics.create(topic_of("flights")))
        led = (await lead(one, store, ["flights"]))["flights"]
        await one.coordination.update(told(one, [one, two], [led], one))
        await again


async def test_partitions_are_added(connect: str) -> None:
    async with members(connect, 1) as (one,):
        store = await one.elected()
        await one.load()
        creating = asyncio.create_task(one.coordination.topics.create(topic_of("t", 1, (1,))))
        led = await lead(one, store, ["t"])
        await one.coordination.update(told(one, [one], led.values(), one))
        await creating
        adding = asyncio.create_task(
            one.coordination.topics.add_partitions("t", topic_of("", 2, (1,)).partitions)
        )
        await until(lambda: len(topics_of(one)["t"].partitions) == 3)
        assert [p.version for p in topics_of(one)["t"].partitions] == [0, tree.NO_STATE, tree.NO_STATE]
        led = await lead(one, store, ["t"])
        await one.coordination.update(told(one, [one], led.values(), one))
        await adding
        assert len(one.state.topics["t"].partitions) == 3
        with pytest.raises(Conflict):
            await one.coordination.topics.add_partitions("none", topic_of("").partitions)


async def test_too_large_a_topic_is_refused_before_zookeeper_hangs_up(connect: str) -> None:
    async with members(connect, 1) as (one,):
        with pytest.raises(ApiError, match="bytes in coordination: 1000000 are allowed"):
            await one.coordination.topics.create(topic_of("t", 100_000, (1, 2, 3)))


async def test_what_is_written_and_not_carried_out_is_said(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.5)
    async with members(connect, 1) as (one,):
        with pytest.raises(ApiError, match="topic t is written, but the controller has not") as failed:
            await one.coordination.topics.create(topic_of("t"))
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
        for _ in range(2):  # before and after the controller is known
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
        creating = asyncio.create_task(two.coordination.topics.create(topic_of("t")))
        led = await lead(one, store, ["t"])
        for member in (one, two):
            await member.coordination.update(told(one, [one, two], led.values(), member))
        await creating
        topic_id = one.state.topics["t"].topic_id
        await one.coordination.set_topic_config("t", topic_id, {"retention.ms": "5"}, ["retention.ms"])
        assert one.state.topics["t"].config == {"retention.ms": "5"}
        await until(lambda: two.state.topics["t"].config == {"retention.ms": "5"})
        await two.coordination.set_topic_config("t", topic_id, {"min.insync.replicas": "2"}, [])
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
        for name, of in (("none", topic_id), ("t", uuid.uuid4())):  # the second topic has taken over the name
            with pytest.raises(Conflict):
                await one.coordination.set_topic_config(name, of, {}, [])
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
        "/config/topics/t: ignoring retention.ms=x: ",
        "broker.id cannot",
        "no.such: no such",
        "is not a JSON object",
    ):
        assert complaint in caplog.text

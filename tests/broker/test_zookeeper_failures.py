"""Ended processes and a ZooKeeper that is down: registrations and controllership follow."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream_broker.coordination import (
    BrokerRecord,
    tree,
)
from millstream_broker.coordination import candidacy as module
from millstream_broker.coordination.controllership import (
    BrokersChanged,
    Fenced,
    StatesChanged,
)
from millstream_broker.coordination.own_tree import OwnTree
from millstream_broker.coordination.stores import Create, Unavailable
from millstream_broker.coordination.stores.zookeeper import ZooKeeperStore
from millstream_harness.members import (
    Member,
    lead,
    led_topic,
    members,
    stored,
    told,
    topic_of,
    topics_of,
    until,
)
from millstream_harness.virtual_time import turns
from millstream_harness.zookeeper import MAX_SESSION_MS, ZooKeeperProcess

pytestmark = pytest.mark.soak


@pytest.fixture
def connect(shared_zookeeper: ZooKeeperProcess) -> str:
    return shared_zookeeper.own_tree()


# Processes that have ended


def incarnation(member: Member) -> BrokerRecord:
    return replace(member.record, epoch=member.epoch)


async def test_the_end_of_a_process_is_the_end_of_its_registration(connect: str) -> None:
    """If the process lives after all, it registers again, as another incarnation."""
    async with members(connect, 1, 2) as (one, two):
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
        await until(lambda: not one.coordination._registration.ended)
        node = await one.coordination._nodes.get("/brokers/ids/2")
        assert node is not None
        assert node.created == two.epoch, "the proof was of the incarnation before"


async def test_a_broker_registers_again_though_the_connection_was_lost_before(tmp_path: Path) -> None:
    """Watches end with a connection, even if the session lives on."""
    with ZooKeeperProcess(tmp_path) as server:
        async with members(f"{server.connect}/kafka", 1, 2) as (one, two):
            await one.elected()
            await until(lambda: two.state.controller_id == 1)  # it has read every node that it watches
            server.kill()
            await until(lambda: not two.coordination.is_connected)
            await asyncio.to_thread(server.start)
            await until(lambda: one.coordination.is_connected and two.coordination.is_connected)
            old = incarnation(two)
            one.coordination.process_ended(old)
            await until(lambda: two.epoch > old.epoch)


async def test_the_end_of_the_controllers_process_is_the_end_of_its_controllership(connect: str) -> None:
    async with members(connect, 1, 2) as (one, two):
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
        await until(lambda: not two.coordination._registration.ended)
        assert two.depositions == 0


async def test_a_controller_that_was_taken_for_ended_lets_others_stand_first(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it may win, although nobody reaches it."""
    monkeypatch.setattr(module, "STAND_DOWN_S", 600.0)
    async with members(connect, 1, 2) as (one, two):
        first, old = await one.elected(), incarnation(one)
        two.coordination.campaigns = False
        two.coordination.process_ended(old)
        await until(lambda: one.epoch > old.epoch)
        await until(lambda: one.depositions == 1)
        two.coordination.campaigns = True
        two.coordination._coalescer.need("the controller")
        assert (await two.elected()).epoch == first.epoch + 1
        assert len(one.stores) == 1


async def test_it_stands_again_where_nobody_else_does(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STAND_DOWN_S", 0.2)
    async with members(connect, 1, 2) as (one, two):
        first, old = await one.elected(), incarnation(one)
        two.coordination.campaigns = False
        two.coordination.process_ended(old)
        await until(lambda: len(one.stores) == 2)
        assert one.stores[1].epoch == first.epoch + 1


async def test_a_broker_that_registers_meanwhile_keeps_its_registration(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has the same version as its predecessor."""
    async with members(connect, 1, 2) as (one, two):
        await one.elected()
        registering_before_the_next_multi(monkeypatch, one, two)
        old = incarnation(two)
        one.coordination.process_ended(old)
        await until(lambda: not one.coordination._registration.ended)
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
    """By then it has closed its listeners."""
    async with members(connect, 1, 2) as (one, two):
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

    other = KazooClient(connect, client_id=member.store._client.client_id)
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
    """Writes requested meanwhile happen once ZooKeeper is back; none is lost or repeated."""
    with ZooKeeperProcess(tmp_path) as server:
        async with members(f"{server.connect}/kafka", 1) as (one,):
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
            configuring = asyncio.create_task(
                one.coordination.set_topic_config("t", topic.topic_id, {"retention.ms": "5"}, [])
            )
            await turns()
            assert not any(task.done() for task in (writing, configuring))
            await asyncio.to_thread(server.start)
            assert (await writing)["t", 1].version == 1
            await configuring
            assert one.depositions == 0
            shrunk = await one.coordination.write_partition("t", 0, replace(topic.partitions[0], isr=(1,)))
            await until(lambda: one.last(StatesChanged))
            assert one.last(StatesChanged).states == {("t", 0): shrunk}
            async with members(f"{server.connect}/kafka", 2):
                await until(lambda: one.last(BrokersChanged))
                assert one.last(BrokersChanged).brokers.keys() == {1, 2}


class Waits:
    """Counts a session's calls, and its waits: the times when nothing was on the way to ZooKeeper before a call."""

    def __init__(self, member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = self.waits = self.answers = 0
        tree = member.coordination._nodes
        assert isinstance(tree, OwnTree)
        session = tree._nodes
        assert isinstance(session, ZooKeeperStore)
        send = session._send

        async def counted(*call: Any) -> asyncio.Future[Any]:
            self.waits += self.answers == self.calls
            self.calls += 1
            answer = await send(*call)
            answer.add_done_callback(self._answered)
            return answer

        monkeypatch.setattr(session, "_send", counted)

    def _answered(self, _: object) -> None:
        self.answers += 1


@pytest.mark.parametrize("after", [0, 2])
async def test_answers_that_get_lost_are_found_out(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server dies in the midst of writes: when a call returns, its write has happened once.

    200 states are four multis, so they have four answers.
    """
    with ZooKeeperProcess(tmp_path) as server:
        async with members(f"{server.connect}/kafka", 1) as (one,):
            topic = await led_topic(one, 200)
            store = await one.elected()
            counted = Waits(one, monkeypatch)
            records = dict(enumerate(topic.partitions))
            for round_ in range(2):
                wanted = {
                    ("t", index): replace(record, leader_epoch=round_ + 1)
                    for index, record in records.items()
                }
                writing = asyncio.create_task(store.write_states(wanted))
                enough = counted.answers + after
                while counted.answers < enough:
                    assert not writing.done(), "nothing is left to get lost"
                    await asyncio.sleep(0)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                written = await writing
                assert {key: record.version for key, record in written.items()} == {
                    key: record.version + 1 for key, record in wanted.items()
                }
                records = {key[1]: record for key, record in written.items()}


async def test_leaving_keeps_its_deadline_though_zookeeper_hangs(tmp_path: Path) -> None:
    with ZooKeeperProcess(tmp_path) as server:
        member = await Member(server.connect, 1, session_s=MAX_SESSION_MS / 1000).join()
        server.pause()
        async with asyncio.timeout(60):  # long before the session's end
            await member.coordination.leave()
        server.resume()


async def test_a_thousand_topics_are_loaded_and_led_with_few_waits(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(connect, 1) as (one,):
        store = await one.elected()
        await one.load()
        topics = [topic_of(f"t{index}") for index in range(1000)]
        session = one.coordination._nodes
        await session.multi_all([Create(tree.topic_path(t.name), tree.topic_json(t))] for t in topics)
        await until(lambda: len(topics_of(one)) == 1000)
        counted = Waits(one, monkeypatch)
        await lead(one, store, [topic.name for topic in topics])
        image = await one.load()
        assert len(image.topics) == 1000
        assert all(topic.partitions[0].leader == 1 for topic in image.topics.values())
        assert 2000 < counted.calls < 6000, "a few for each topic"
        assert counted.waits < counted.calls / 10

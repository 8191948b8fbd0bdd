"""Writes of leaders and controllers to a real ZooKeeper; those of a deposed controller fail."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from millstream_broker.coordination import (
    Conflict,
    tree,
)
from millstream_broker.coordination.controllership import (
    BrokersChanged,
    Fenced,
    StatesChanged,
)
from millstream_broker.coordination.stores import Delete, Operation, Unavailable
from millstream_harness.members import (
    Member,
    led_topic,
    members,
    stored,
    topic_of,
    until,
)
from millstream_harness.zookeeper import ZooKeeperProcess

pytestmark = pytest.mark.process


@pytest.fixture
def connect(shared_zookeeper: ZooKeeperProcess) -> str:
    return shared_zookeeper.own_tree()


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
        # A second time, as after a lost response: the state is stored already.
        assert await one.coordination.write_partition("t", 0, replace(record, isr=(1,), elr=(2,))) == shrunk
        with pytest.raises(Conflict):
            await one.coordination.write_partition("t", 0, replace(record, isr=(1, 2)))
        with pytest.raises(Conflict):
            await one.coordination.write_partition("t", 7, replace(record, isr=(1, 2)))


async def test_a_lost_response_to_the_removal_of_notes_loses_no_change(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(connect, 1) as (one,):
        (record, _) = (await led_topic(one, 2)).partitions
        nodes, lost = one.coordination._nodes, list[str]()
        multi_all = nodes.multi_all

        async def losing(multis: Iterable[Sequence[Operation]]) -> list[Any]:
            sent = list(multis)
            answers = await multi_all(sent)
            notes = [each.path for group in sent for each in group if isinstance(each, Delete)]
            if lost or not any(path.startswith(tree.ISR_CHANGES) for path in notes):
                return answers
            lost.extend(notes)
            return [Unavailable("the connection was lost before it answered") for _ in answers]

        monkeypatch.setattr(nodes, "multi_all", losing)
        shrunk = await one.coordination.write_partition("t", 0, replace(record, isr=(1,), elr=(2,)))
        await until(lambda: one.last(StatesChanged))
        assert one.last(StatesChanged).states == {("t", 0): shrunk}
        assert lost


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
            await until(
                lambda: (
                    two.coordination._registration.broker
                    and not two.coordination._registration.broker.unclean
                )
            )
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
        # Someone deletes /controller: the first broker to react takes it, and the old store is fenced.
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
        )  # by a client that does not follow watches
        with pytest.raises(Fenced):
            await store.write_states({("t", 0): replace(topic.partitions[0], leader_epoch=1)})
        assert one.depositions == 1
        assert (await stored(one, "/brokers/topics/t/partitions/0/state"))["leader_epoch"] == 0

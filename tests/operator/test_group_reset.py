"""Resets of groups: the resulting positions; and each runs once, even if a process ends between any two steps.

The operator is its own code with a real broker; Kubernetes is in memory. Commits stand in for consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer

from millstream_harness.broker import BrokerProcess
from millstream_harness.in_memory import InMemory, MemoryKube, ToldBrokers, stored
from millstream_harness.kube import until
from millstream_harness.manifests import cluster, group
from millstream_harness.mortal import Died, Life
from millstream_harness.scenario import unique
from millstream_operator.kafka_admin import AdminPool, KafkaAdmin
from millstream_operator.kafka_records import GroupMember, NewTopic, Partition, TopicIdentity
from millstream_operator.models import ConsumerGroup, LastReset, Reset, ResetOffset, decode_as
from millstream_operator.reconcile.group_kafka import reconcile_groups
from millstream_operator.reconcile.group_reset import (
    Logs,
    Refused,
    plan,
    positions,
    steps,
    topics_of,
    waiting_words,
)

NOW = datetime(2026, 11, 24, tzinfo=UTC)
A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
LOGS = Logs(
    {"a": TopicIdentity("id-a", 2), "b": TopicIdentity("id-b", 1)},
    {A0: 2, A1: 0, B0: 0},
    {A0: 10, A1: 20, B0: 30},
    {A0: 7, A1: -1, B0: 5},
)
COMMITTED = {A0: 4, B0: 30}


def planned(to: Any, topics: tuple[str, ...] = ("a", "b"), **more: Any) -> dict[Partition, int] | str:
    """The resulting positions of a request, or the reason for its refusal."""
    found = plan(Reset(request_id="r", to=to, **more), topics, COMMITTED, LOGS, NOW)
    return found.message if isinstance(found, Refused) else positions(found)


def offsets(*wanted: tuple[str, int, int]) -> tuple[ResetOffset, ...]:
    return tuple(ResetOffset(topic=topic, partition=index, offset=at) for topic, index, at in wanted)


def test_where_a_time_leads() -> None:
    """The first record at or after that time, or the end of the log."""
    assert planned("Timestamp", timestamp=NOW) == {A0: 7, A1: 20, B0: 5}


def test_a_shift_moves_what_was_committed_and_stays_in_the_log() -> None:
    assert planned("Shift", shift=-1) == {A0: 3, B0: 29}
    assert planned("Shift", shift=-100) == {A0: 2, B0: 0}
    assert planned("Shift", shift=5) == {A0: 9, B0: 30}


def test_offsets_set_what_they_name() -> None:
    assert planned("Offsets", ("a",), offsets=offsets(("a", 1, 3))) == {A1: 3}
    assert planned("Offsets", ("a",), offsets=offsets(("a", 0, 1), ("a", 1, 99))) == {A0: 2, A1: 20}


@pytest.mark.parametrize(
    ("to", "topics", "more", "words"),
    [
        ("Earliest", ("a", "nowhere"), {}, "there is no topic nowhere: "),
        ("Offsets", ("a",), {"offsets": offsets(("a", 2, 0))}, "offsets: a has 2 partitions, and no 2"),
        (
            "Offsets",
            ("a",),
            {"offsets": offsets(("a", 0, 3), ("a", 0, 4))},
            "offsets: a partition is there twice",
        ),
        (
            "Shift",
            ("a",),
            {"shift": -3, "on_out_of_range": "Refuse"},
            "outside the log: a-0 has 2 to 10, not 1; ",
        ),
        ("Shift", (), {"shift": 1}, "there is no position to reset: "),
    ],
)
def test_what_is_refused(to: Any, topics: tuple[str, ...], more: dict[str, Any], words: str) -> None:
    found = planned(to, topics, **more)
    assert isinstance(found, str)
    assert found.startswith(words)


def test_too_many_positions_are_refused() -> None:
    many = {Partition("a", index): 0 for index in range(10_001)}
    logs = Logs({"a": TopicIdentity("id", len(many))}, many, many, many)
    found = plan(Reset(request_id="r", to="Earliest"), ["a"], {}, logs, NOW)
    assert isinstance(found, Refused)
    assert found.message.startswith("10,001 positions are too many; at most: 10,000: ")


def test_the_topics_of_a_reset() -> None:
    one = decode_as(ConsumerGroup, stored(group("watch", topics=["b"])))
    assert topics_of(one, Reset(request_id="r", to="Latest"), COMMITTED) == ["a", "b"]
    assert topics_of(one, Reset(request_id="r", to="Latest", topics=("b",)), COMMITTED) == ["b"]
    assert topics_of(one, Reset(request_id="r", to="Offsets", offsets=offsets(("c", 0, 0))), COMMITTED) == [
        "c"
    ]


def test_a_reset_names_those_for_whom_it_waits() -> None:
    members = [GroupMember(f"c-{number}", "10.0.0.1", ()) for number in range(7)]
    words = ", ".join(f"c-{number} (10.0.0.1)" for number in range(5))
    assert waiting_words(members) == f"waiting until the group has no members: stop {words} and 2 more"


class MortalKube(MemoryKube):
    life = Life()

    def apply(self, manifest: Mapping[str, Any], subresource: str = "") -> Any:
        return self.life.write(lambda: super(MortalKube, self).apply(manifest, subresource))


class MortalAdmin(KafkaAdmin):
    life = Life()

    def commit(self, *wanted: Any, **options: Any) -> Any:
        return self.life.write(lambda: super(MortalAdmin, self).commit(*wanted, **options))

    def delete_offsets(self, *wanted: Any) -> Any:
        return self.life.write(lambda: super(MortalAdmin, self).delete_offsets(*wanted))


class Pool(AdminPool):
    def __init__(self, admin: KafkaAdmin) -> None:
        super().__init__()
        self.admin = admin

    def at(self, bootstrap: str) -> KafkaAdmin:
        return self.admin


class World:
    """A group with its resource, a broker, and one operator after another."""

    def __init__(self, broker: BrokerProcess, admin: KafkaAdmin, **spec: Any) -> None:
        self.admin = admin
        self.mortal = MortalAdmin(broker.bootstrap)
        self.group = unique("group")
        manifest = stored(group("watch", groupId=self.group, **spec))
        self.kube = MortalKube(stored(cluster("default")), manifest)

    def look(self, life: Life | None = None) -> dict[str, Any]:
        """Reconcile once with a new operator; return the status."""
        self.kube.life = self.mortal.life = life or Life()
        operator = InMemory(self.kube, ToldBrokers())
        object.__setattr__(operator.services, "admins", Pool(self.mortal))
        try:
            resource = decode_as(ConsumerGroup, self.kube.objects["ConsumerGroup", "watch"])
            reconcile_groups(operator.services, [resource])
        finally:
            self.kube.life = self.mortal.life = Life()
        return operator.status("ConsumerGroup", "watch")

    def ask(self, **reset: Any) -> None:
        self.kube.objects["ConsumerGroup", "watch"]["spec"]["reset"] = {"requestId": "r", **reset}

    def committed(self) -> dict[int, int]:
        return {
            one.partition: offset for one, offset in self.admin.committed([self.group])[self.group].items()
        }

    def condition(self) -> tuple[str, str, str] | None:
        return InMemory(self.kube, ToldBrokers()).condition("ConsumerGroup", "watch", "Reset")


@pytest.fixture
def admin(shared_broker: BrokerProcess) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(shared_broker.bootstrap)
    yield admin
    admin.close()


NewWorld = Callable[..., World]


@pytest.fixture
def world(shared_broker: BrokerProcess, admin: KafkaAdmin) -> Iterator[NewWorld]:
    made: list[World] = []

    def make(**spec: Any) -> World:
        made.append(World(shared_broker, admin, **spec))
        return made[-1]

    yield make
    for one in made:
        one.mortal.close()


PARTITIONS = 150  # two steps


@pytest.fixture
def topic(admin: KafkaAdmin) -> str:
    name = unique("reset")
    admin.create_topics([NewTopic(name, PARTITIONS, 1, {})])
    return name


def everywhere(topic: str, offset: int) -> dict[Partition, int]:
    return {Partition(topic, index): offset for index in range(PARTITIONS)}


def test_a_reset_runs_once_and_shows_what_it_did(world: NewWorld, admin: KafkaAdmin, topic: str) -> None:
    one = world(topics=[topic])
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    one.ask(to="Earliest")
    status = one.look()
    assert set(one.committed().values()) == {0}
    last = status["lastReset"]
    (shown,) = last["topics"]
    assert (last["requestId"], last["state"], shown["topic"]) == ("r", "Done", topic)
    assert (shown["before"], shown["after"]) == ([7] * PARTITIONS, [0] * PARTITIONS)
    assert one.condition() == ("True", "ResetDone", "request r: 150 positions set")
    assert admin.marks([one.group]) == {}
    assert admin.commit(one.group, everywhere(topic, 5)) is None
    one.look()
    assert set(one.committed().values()) == {5}
    one.ask(to="Earliest", requestId="another")
    one.look()
    assert set(one.committed().values()) == {0}


@pytest.mark.parametrize("after", [False, True], ids=["before a write", "after a write"])
@pytest.mark.parametrize("consumes", [False, True], ids=["nobody consumes", "consumers move on"])
def test_a_reset_is_neither_lost_nor_repeated(
    world: NewWorld, admin: KafkaAdmin, topic: str, after: bool, consumes: bool
) -> None:
    """The operator dies before or after each of its writes in turn, and the next one takes over.

    Meanwhile consumers may commit anywhere, even old positions; these stay in partitions that were reset already.
    """
    deaths = 0
    while True:
        deaths += 1
        one = world(topics=[topic])
        assert admin.commit(one.group, everywhere(topic, 7)) is None
        one.ask(to="Earliest")
        try:
            one.look(Life(deaths, after=after))
        except Died:
            pass
        else:
            break
        reset = {index for index, offset in one.committed().items() if offset == 0}
        if consumes:
            assert admin.commit(one.group, everywhere(topic, 7)) is None
        status = one.look()
        one.look()
        assert status["lastReset"]["state"] == "Done"
        kept = reset if consumes else set()
        assert one.committed() == {index: 7 if index in kept else 0 for index in range(PARTITIONS)}, deaths
        assert admin.marks([one.group]) == {}
    assert deaths == 6, "the intent, two commits, the end, the removal of the mark"


def test_a_reset_waits_for_its_members_and_names_them(
    world: NewWorld, admin: KafkaAdmin, shared_broker: BrokerProcess, topic: str
) -> None:
    one = world(topics=[topic])
    assert admin.commit(one.group, everywhere(topic, 0)) is None
    config = {"bootstrap.servers": shared_broker.bootstrap, "group.id": one.group, "client.id": "busy"}
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe([topic])
    until("a member", lambda: consumer.poll(0.1) or admin.groups([one.group])[one.group].members, 30)
    one.ask(to="Latest")
    status = one.look()
    assert "lastReset" not in status
    words = "waiting until the group has no members: stop busy (127.0.0.1)"
    assert one.condition() == ("False", "WaitingForMembers", words)
    consumer.close()
    assert one.look()["lastReset"]["state"] == "Done"


def test_a_member_that_joins_in_mid_reset_keeps_the_group_until_it_leaves(
    world: NewWorld, admin: KafkaAdmin, shared_broker: BrokerProcess, topic: str
) -> None:
    """The operator dies after the first of two commits, and a consumer joins: the reset continues once it has left."""
    one = world(topics=[topic])
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    one.ask(to="Earliest")
    with pytest.raises(Died):
        one.look(Life(2, after=True))
    config = {"bootstrap.servers": shared_broker.bootstrap, "group.id": one.group, "client.id": "busy"}
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe([topic])
    until("a member", lambda: consumer.poll(0.1) or admin.groups([one.group])[one.group].members, 30)
    assert one.look()["lastReset"]["state"] == "Running"
    assert (one.condition() or ())[:2] == ("False", "WaitingForMembers")
    assert set(one.committed().values()) == {0, 7}
    consumer.close()
    assert one.look()["lastReset"]["state"] == "Done"
    assert set(one.committed().values()) == {0}


def test_a_request_that_is_taken_back_before_its_first_commit_is_cancelled(
    world: NewWorld, admin: KafkaAdmin, topic: str
) -> None:
    one = world(topics=[topic])
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    one.ask(to="Earliest")
    with pytest.raises(Died):
        one.look(Life(1, after=True))
    del one.kube.objects["ConsumerGroup", "watch"]["spec"]["reset"]
    assert one.look()["lastReset"]["state"] == "Cancelled"
    assert set(one.committed().values()) == {7}
    assert one.condition() is None


@pytest.mark.parametrize("writes", [1, 2, 3], ids=["before any commit", "after one", "after all"])
def test_a_topic_that_is_replaced_in_mid_reset_gets_no_position_of_the_old_one(
    world: NewWorld, admin: KafkaAdmin, topic: str, writes: int
) -> None:
    other = unique("kept")
    admin.create_topics([NewTopic(other, 1, 1, {})])
    one = world(topics=[topic, other])
    assert admin.commit(one.group, {**everywhere(topic, 7), Partition(other, 0): 3}) is None
    one.ask(to="Earliest")
    with pytest.raises(Died):
        one.look(Life(writes, after=True))
    assert admin.delete_topics([topic]) == {topic: None}
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, {})])
    last = one.look()["lastReset"]
    assert last["state"] == "Done"
    there = admin.committed([one.group])[one.group]
    assert there[Partition(other, 0)] == 0
    if writes == 1:  # planned again, for the new topic
        assert [there[one] for one in everywhere(topic, 0)] == [0] * PARTITIONS
    else:
        assert {partition.topic for partition in there} == {other}
        assert last["message"] == f"no position was set in {topic}, deleted and created again meanwhile"
        assert [shown["topic"] for shown in last["topics"]] == [other]


def test_a_refused_request_changes_nothing_and_is_not_tried_again(
    world: NewWorld, admin: KafkaAdmin, topic: str
) -> None:
    one = world(topics=[topic])
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    missing = unique("missing")
    one.ask(to="Latest", topics=[missing])
    assert one.look()["lastReset"]["state"] == "Refused"
    assert (one.condition() or ())[:2] == ("False", "ResetRefused")
    admin.create_topics([NewTopic(missing, 1, 1, {})])
    one.look()
    assert set(one.committed().values()) == {7}


def test_steps_cover_all_positions_in_order() -> None:
    last = plan(Reset(request_id="r", to="Latest"), ["a", "b"], {}, LOGS, NOW)
    assert isinstance(last, LastReset)
    assert steps(last) == [positions(last)]

"""Resets of groups: the resulting positions, and that each runs once, even if a process ends between any two steps.

The operator is its own code with a real broker; Kubernetes is in memory. Commits stand in for consumers.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.connection import Cluster
from millstream.groups import MARK_PARTITION, MARK_PREFIX, committed_offsets
from millstream_harness.group_looks import OneAdmin
from millstream_harness.in_memory import InMemory, MemoryKube, ToldBrokers, stored
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kube import until
from millstream_harness.manifests import cluster, group
from millstream_harness.mortal import Died, Life
from millstream_harness.scenario import unique
from millstream_kafka import group_mark
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import NewTopic, Partition
from millstream_operator.models import ConsumerGroup, decode_as
from millstream_operator.models.conditions import rfc3339
from millstream_operator.reconcile.group.apply import reconcile_groups

pytestmark = pytest.mark.process


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


class World:
    """A group with its resource, a broker, and one operator after another."""

    def __init__(self, broker: InProcessBroker, admin: KafkaAdmin, **spec: Any) -> None:
        self.admin = admin
        self.mortal = MortalAdmin(broker.bootstrap)
        self.group = unique("group")
        manifest = stored(group("watch", groupId=self.group, **spec))
        self.kube = MortalKube(stored(cluster("default")), manifest)

    def look(self, life: Life | None = None) -> dict[str, Any]:
        """Reconcile once with a new operator; return the status."""
        self.kube.life = self.mortal.life = life or Life()
        operator = InMemory(self.kube, ToldBrokers())
        object.__setattr__(operator.services, "admins", OneAdmin(self.mortal))
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
def admin(shared_broker: InProcessBroker) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(shared_broker.bootstrap)
    yield admin
    admin.close()


NewWorld = Callable[..., World]


@pytest.fixture
def world(shared_broker: InProcessBroker, admin: KafkaAdmin) -> Iterator[NewWorld]:
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
    assert deaths == 5, "the intent, two commits, the end"


LOST = ["the status", "all but an older request", "the resource"]


@pytest.mark.parametrize("lost", LOST)
def test_reset_is_not_repeated_after_its_status_was_restored(
    world: NewWorld, admin: KafkaAdmin, topic: str, lost: str
) -> None:
    one = world(topics=[topic])
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    one.ask(to="Earliest", requestId="first")
    older = one.look()
    one.ask(to="Earliest", requestId="second")
    assert one.look()["lastReset"]["state"] == "Done"
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    stored_group = one.kube.objects["ConsumerGroup", "watch"]
    if lost == "all but an older request":
        stored_group["status"] = older
    else:
        del stored_group["status"]
    if lost == "the resource":
        stored_group["metadata"]["uid"] = "another"
    last = one.look()["lastReset"]
    assert set(one.committed().values()) == {7}
    assert (last["requestId"], last["state"]) == ("second", "Done")
    assert (one.condition() or ())[:2] == ("True", "ResetDone")
    if lost != "all but an older request":
        one.ask(to="Earliest", requestId="first")
        assert one.look()["lastReset"]["state"] == "Done"
        assert set(one.committed().values()) == {7}
    one.ask(to="Earliest", requestId="third")
    one.look()
    assert set(one.committed().values()) == {0}


def test_reset_whose_plan_is_lost_is_refused(world: NewWorld, admin: KafkaAdmin, topic: str) -> None:
    """The operator dies after the first of two commits, and an older status is restored: a shift would be added."""
    one = world(topics=[topic])
    older = one.look()
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    one.ask(to="Shift", shift=-3, onOutOfRange="Clamp")
    with pytest.raises(Died):
        one.look(Life(2, after=True))
    before = one.committed()
    one.kube.objects["ConsumerGroup", "watch"]["status"] = older
    assert one.look()["lastReset"]["state"] == "Refused"
    assert "check the positions" in (one.condition() or ("", "", ""))[2]
    assert one.committed() == before


def test_mark_of_resets_goes_with_its_group(world: NewWorld, admin: KafkaAdmin, topic: str) -> None:
    one = world(topics=[topic])
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    one.ask(to="Earliest")
    one.look()
    assert admin.delete_groups([one.group]) == {one.group: None}
    del one.kube.objects["ConsumerGroup", "watch"]["status"]
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    one.look()
    assert set(one.committed().values()) == {0}


def test_command_hides_the_mark(
    world: NewWorld, admin: KafkaAdmin, shared_broker: InProcessBroker, topic: str
) -> None:
    one = world(topics=[topic])
    assert admin.commit(one.group, everywhere(topic, 7)) is None
    one.ask(to="Earliest")
    one.look()
    assert one.group in admin.marks([one.group])
    assert (MARK_PARTITION, MARK_PREFIX) == (group_mark.PARTITION, group_mark.PREFIX)
    assert {name for name, _ in committed_offsets(Cluster(shared_broker.bootstrap), one.group)} == {topic}


BEGAN = datetime(2026, 11, 20, tzinfo=UTC)
"""The time of the first record; each next one is a second younger."""
WAS = {"x": [5, 4, -1], "y": [6, 6]}
"""Committed positions by topic and partition; -1 for none. Each log ends at 10; the log of x-0 begins at 2."""


def at(seconds: int) -> str:
    return rfc3339(BEGAN + timedelta(seconds=seconds))


def each(**offsets: int) -> list[dict[str, Any]]:
    """``x_1=3``: offset 3 for partition 1 of topic x."""
    return [
        {"topic": name[0], "partition": int(name[2:]), "offset": offset} for name, offset in offsets.items()
    ]


CLAMPED = "x-0, x-1"
OUTSIDE = "outside the log: x-0 has 2 to 10, not 1; onOutOfRange: Clamp takes the nearest offset"
RESETS: dict[str, tuple[dict[str, Any], dict[str, list[int]], str]] = {
    "earliest": ({"to": "Earliest"}, {"x": [2, 0, 0], "y": [0, 0]}, ""),
    "latest": ({"to": "Latest"}, {"x": [10, 10, 10], "y": [10, 10]}, ""),
    "latest of a topic": ({"to": "Latest", "topics": ["y"]}, {"y": [10, 10]}, ""),
    "a time": ({"to": "Timestamp", "timestamp": at(7)}, {"x": [7, 7, 7], "y": [7, 7]}, ""),
    "a time in a topic": ({"to": "Timestamp", "timestamp": at(7), "topics": ["x"]}, {"x": [7, 7, 7]}, ""),
    "a time before the log": ({"to": "Timestamp", "timestamp": at(-9)}, {"x": [2, 0, 0], "y": [0, 0]}, ""),
    "a time after the log": (
        {"to": "Timestamp", "timestamp": at(99)},
        {"x": [10, 10, 10], "y": [10, 10]},
        "",
    ),
    "offsets": ({"to": "Offsets", "offsets": each(x_0=3, y_1=9)}, {"x": [3, -1, -1], "y": [-1, 9]}, ""),
    "offsets clamped": (
        {"to": "Offsets", "offsets": each(x_0=1, x_1=99, x_2=5)},
        {"x": [2, 10, 5]},
        f"2 positions clamped to the log: {CLAMPED}",
    ),
    "offsets refused": (
        {"to": "Offsets", "offsets": each(x_0=1, x_2=5), "onOutOfRange": "Refuse"},
        {},
        OUTSIDE,
    ),
    "offsets within": (
        {"to": "Offsets", "offsets": each(x_0=2, x_1=10), "onOutOfRange": "Refuse"},
        {"x": [2, 10, -1]},
        "",
    ),
    "back": ({"to": "Shift", "shift": -3}, {"x": [2, 1, -1], "y": [3, 3]}, ""),
    "on in a topic": ({"to": "Shift", "shift": 3, "topics": ["y"]}, {"y": [9, 9]}, ""),
    "back clamped": (
        {"to": "Shift", "shift": -4},
        {"x": [2, 0, -1], "y": [2, 2]},
        "1 position clamped to the log: x-0",
    ),
    "on clamped": (
        {"to": "Shift", "shift": 100, "topics": ["x"]},
        {"x": [10, 10, -1]},
        f"2 positions clamped to the log: {CLAMPED}",
    ),
    "back refused": ({"to": "Shift", "shift": -4, "onOutOfRange": "Refuse"}, {}, OUTSIDE),
}


@pytest.mark.parametrize(("reset", "after", "message"), RESETS.values(), ids=RESETS.keys())
def test_where_each_kind_of_reset_leads(
    world: NewWorld,
    admin: KafkaAdmin,
    shared_broker: InProcessBroker,
    reset: dict[str, Any],
    after: dict[str, list[int]],
    message: str,
) -> None:
    """The status shows the positions before and after, and a client finds them and reads from there.

    Partitions outside the request keep their positions.
    """
    names = {short: unique(short) for short in WAS}
    for short, offsets in WAS.items():
        fill(admin, shared_broker, names[short], len(offsets))
    trim(shared_broker, names["x"], before=2)
    one = world(topics=sorted(names.values()))
    committed = {
        Partition(names[short], index): offset
        for short, offsets in WAS.items()
        for index, offset in enumerate(offsets)
        if offset >= 0
    }
    assert admin.commit(one.group, committed) is None
    wanted = copy.deepcopy(reset)
    wanted["topics"] = [names[short] for short in reset["topics"]] if "topics" in reset else None
    for entry in wanted.get("offsets", ()):
        entry["topic"] = names[entry["topic"]]
    one.ask(**{name: value for name, value in wanted.items() if value is not None})

    last = one.look()["lastReset"]
    said = last.get("message", "")
    for short, name in names.items():
        said = said.replace(name, short)
    assert (last["state"], said) == ("Done" if after else "Refused", message)
    shown = {topic["topic"]: (topic["before"], topic["after"]) for topic in last.get("topics", ())}
    assert shown == {names[short]: (WAS[short], offsets) for short, offsets in after.items()}
    assert (one.condition() or ())[:2] == (("True", "ResetDone") if after else ("False", "ResetRefused"))
    expected = {
        (names[short], index): offset
        for short, before in WAS.items()
        for index, (old, new) in enumerate(zip(before, after.get(short, before), strict=True))
        if (offset := old if new < 0 else new) >= 0
    }
    assert as_a_client_sees(shared_broker, one.group, names.values()) == (expected, expected)


def fill(admin: KafkaAdmin, broker: InProcessBroker, topic: str, partitions: int) -> None:
    """Ten records in each partition."""
    admin.create_topics([NewTopic(topic, partitions, 1, {})])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(partitions):
        for number in range(10):
            stamp = int(BEGAN.timestamp() + number) * 1000
            producer.produce(topic, str(number), partition=partition, timestamp=stamp)
    assert producer.flush(60) == 0


def trim(broker: InProcessBroker, topic: str, before: int) -> None:
    """Delete the first records of partition 0."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for one in client.delete_records([TopicPartition(topic, 0, before)]).values():
        one.result(60)


def as_a_client_sees(
    broker: InProcessBroker, group_id: str, topics: Iterable[str]
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Committed offsets, and the offsets at which a consumer of the group begins to read."""
    config = {"bootstrap.servers": broker.bootstrap, "group.id": group_id, "enable.auto.commit": False}
    consumer = Consumer({**config, "auto.offset.reset": "error", "enable.partition.eof": True})
    try:
        every = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in consumer.list_topics(topic, 60).topics[topic].partitions
        ]
        known = [one for one in consumer.committed(every, 60) if one.offset >= 0]
        consumer.assign([TopicPartition(one.topic, one.partition) for one in known])
        begun: dict[tuple[str, int], int] = {}
        deadline = time.monotonic() + 60
        while len(begun) < len(known) and time.monotonic() < deadline:
            if (message := consumer.poll(0.2)) is not None:
                assert message.error() is None or message.error().code() == KafkaError._PARTITION_EOF
                begun.setdefault((message.topic(), message.partition()), message.offset())
        return {(one.topic, one.partition): one.offset for one in known}, begun
    finally:
        consumer.close()


def test_a_reset_waits_for_its_members_and_names_them(
    world: NewWorld, admin: KafkaAdmin, shared_broker: InProcessBroker, topic: str
) -> None:
    one = world(topics=[topic])
    assert admin.commit(one.group, everywhere(topic, 0)) is None
    config = {"bootstrap.servers": shared_broker.bootstrap, "group.id": one.group, "client.id": "busy"}
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe([topic])
    until("a member", lambda: consumer.poll(0.1) or admin.groups([one.group])[one.group].members)
    one.ask(to="Latest")
    status = one.look()
    assert "lastReset" not in status
    words = "waiting until the group has no members: stop busy (127.0.0.1)"
    assert one.condition() == ("False", "WaitingForMembers", words)
    consumer.close()
    assert one.look()["lastReset"]["state"] == "Done"


def test_a_member_that_joins_in_mid_reset_keeps_the_group_until_it_leaves(
    world: NewWorld, admin: KafkaAdmin, shared_broker: InProcessBroker, topic: str
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
    until("a member", lambda: consumer.poll(0.1) or admin.groups([one.group])[one.group].members)
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
    assert admin.delete_topics({topic: None}) == {topic: None}
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

"""An operator that lost its Lease: no write reaches a real broker; reads continue."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from millstream_harness.in_memory import InMemory, deleted, in_memory, stored
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.manifests import cluster, group, topic
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.client_config import ClientConfig
from millstream_operator.kafka.pools import AdminPool
from millstream_operator.kafka.records import EARLIEST, ConfigChange, NewTopic, Partition
from millstream_operator.kubernetes.client import KubeError
from millstream_operator.models import ConsumerGroup, Topic, decode_as
from millstream_operator.reconcile.group.apply import reconcile_groups
from millstream_operator.reconcile.topic.apply import reconcile_topics

pytestmark = pytest.mark.process

FIRST = Partition("flights", 0)


class Lease:
    """A Lease that is valid for this many writes."""

    def __init__(self) -> None:
        self.left = 1000

    def check(self) -> None:
        if self.left == 0:
            raise KubeError(0, "NotLeading", "this operator does not hold the Lease")
        self.left -= 1


@pytest.fixture
def lease() -> Lease:
    return Lease()


@pytest.fixture
def broker(empty_broker: InProcessBroker) -> InProcessBroker:
    return empty_broker


@pytest.fixture
def fenced(broker: InProcessBroker, lease: Lease) -> Iterator[InMemory]:
    """A Cluster with real brokers, and an operator that writes while the Lease is valid."""
    found = in_memory(stored(cluster("default")))
    services = dataclasses.replace(
        found.services, admins=AdminPool(), reach=lambda *_: ClientConfig(broker.bootstrap)
    )
    services.obey(lease.check)
    object.__setattr__(found, "services", services)
    yield found
    services.admins.close()


@pytest.fixture
def other(broker: InProcessBroker) -> Iterator[KafkaAdmin]:
    """Another client of the same broker."""
    admin = KafkaAdmin(broker.bootstrap)
    admin.create_topics([NewTopic("flights", 1, 1, {})])
    assert admin.commit("watch", {FIRST: 0}) is None
    yield admin
    admin.close()


WRITES: dict[str, Callable[[KafkaAdmin], object]] = {
    "create_topics": lambda admin: admin.create_topics([NewTopic("new", 1, 1, {})]),
    "add_partitions": lambda admin: admin.add_partitions({"flights": 2}),
    "change_configs": lambda admin: admin.change_configs(
        {"flights": ConfigChange({"retention.ms": "1"}, ())}
    ),
    "delete_topics": lambda admin: admin.delete_topics({"flights": None}),
    "commit": lambda admin: admin.commit("other", {FIRST: 0}),
    "delete_offsets": lambda admin: admin.delete_offsets("watch", [FIRST]),
    "delete_groups": lambda admin: admin.delete_groups(["watch"]),
    "reassign": lambda admin: admin.reassign({("flights", 0): [0]}),
    "change_brokers_config": lambda admin: admin.change_brokers_config(
        ConfigChange({"log.retention.ms": "1"}, ())
    ),
}
READS: dict[str, Callable[[KafkaAdmin], object]] = {
    "cluster_id": lambda admin: admin.cluster_id(),
    "brokers": lambda admin: admin.brokers(),
    "replicas": lambda admin: admin.replicas(min_isr=True),
    "held": lambda admin: admin.held(admin.brokers().racks),
    "strays": lambda admin: admin.strays(),
    "reassigning": lambda admin: admin.reassigning(),
    "brokers_config": lambda admin: admin.brokers_config(),
    "topic_names": lambda admin: admin.topic_names(),
    "topics": lambda admin: admin.topics(["flights"]),
    "partitions": lambda admin: admin.partitions(["flights"]),
    "described": lambda admin: admin.described(["flights"]),
    "identities": lambda admin: admin.identities(["flights"]),
    "groups": lambda admin: admin.groups(["watch"]),
    "committed": lambda admin: admin.committed(["watch"]),
    "committed_entries": lambda admin: admin.committed_entries(["watch"]),
    "marks": lambda admin: admin.marks(["watch"]),
    "offsets": lambda admin: admin.offsets({FIRST: EARLIEST}),
    "led_offsets": lambda admin: admin.led_offsets({FIRST: EARLIEST}),
}


def state(admin: KafkaAdmin) -> object:
    names = admin.topic_names()
    return admin.topics(names), admin.committed(["watch", "other"]), admin.brokers_config()


def test_every_request_is_a_read_or_behind_the_fence(lease: Lease, other: KafkaAdmin) -> None:
    own = {name for name, value in vars(KafkaAdmin).items() if callable(value) and not name.startswith("_")}
    assert own == {*WRITES, *READS}, "a new request belongs to one of them"
    before = state(other)
    lease.left = 0
    admin = KafkaAdmin(other.bootstrap, fence=lease.check)
    for read in READS.values():
        read(admin)
    for name, write in WRITES.items():
        with pytest.raises(KubeError, match="does not hold the Lease"):
            write(admin)
        assert state(other) == before, name
    admin.close()


def test_a_lease_that_ends_between_plan_and_write(lease: Lease, fenced: InMemory, other: KafkaAdmin) -> None:
    before = state(other)
    wanted = stored(topic("flights", partitions=3, config={"retention.ms": "1"}))
    doomed = stored(topic("doomed", topicName="flights", deletionPolicy="Delete"), **deleted(1))
    start = stored(group("other", topics=["flights"], startAt="Earliest"))
    lease.left = 0
    for resource in (wanted, doomed):
        with pytest.raises(KubeError, match="does not hold the Lease"):
            reconcile_topics(fenced.services, [decode_as(Topic, resource)])
    with pytest.raises(KubeError, match="does not hold the Lease"):
        reconcile_groups(fenced.services, [decode_as(ConsumerGroup, start)])
    assert state(other) == before


def test_a_lease_that_ends_between_two_writes(lease: Lease, fenced: InMemory, other: KafkaAdmin) -> None:
    wanted = stored(topic("flights", partitions=3, config={"retention.ms": "1"}))
    lease.left = 1  # configuration goes first
    with pytest.raises(KubeError, match="does not hold the Lease"):
        reconcile_topics(fenced.services, [decode_as(Topic, wanted)])
    found = other.topics(["flights"])["flights"]
    assert (found.partitions, found.config) == (1, {"retention.ms": "1"})
    lease.left = 1000
    reconcile_topics(fenced.services, [decode_as(Topic, wanted)])
    assert other.partitions(["flights"]) == {"flights": 3}, "the connection is as it was"

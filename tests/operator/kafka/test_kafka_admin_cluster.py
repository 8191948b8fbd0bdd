"""The operator's requests and plans against a real cluster of three brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.in_process_cluster import InProcessCluster
from millstream_harness.kube import until
from millstream_harness.transactional_writer import TransactionalWriter
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import EARLIEST, LATEST, AdminError, ConfigChange, NewTopic, Partition
from millstream_operator.models import API_VERSION, Cluster, Resource, Topic
from millstream_operator.models.conditions import ConditionType, Reason
from millstream_operator.reconcile.cluster.kafka import View, configure_live, scale, spread
from millstream_operator.reconcile.cluster.plan import Findings, live_config
from millstream_operator.reconcile.topic.plan import plan_topic
from millstream_operator.reconcile.topic.replication import Replication
from millstream_operator.reconcile.topic.replication_apply import replicate
from millstream_operator.validation.admission import decode

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    patient = "30000"  # no leader changes by itself on a busy machine
    times = {"zookeeper.session.timeout.ms": patient, "replica.lag.time.max.ms": patient}
    cluster = InProcessCluster(folder, config={"broker.rack": "here", **times})
    cluster.brokers = {number: cluster.broker(number) for number in range(3)}  # the operator's numbers
    with cluster:
        yield cluster


@pytest.fixture
def admin(brokers: InProcessCluster) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(brokers.bootstrap)
    yield admin
    admin.close()


def resource(kind: str, name: str, **spec: Any) -> Resource:
    return decode({"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec})


def a_cluster(replicas: int = 3, **spec: Any) -> Cluster:
    found = resource(
        "Cluster", "east", brokers={"replicas": replicas}, zookeeper={"connect": "zk:2181"}, **spec
    )
    assert isinstance(found, Cluster)
    return found


def a_topic(name: str, factor: int) -> Topic:
    found = resource("Topic", name, clusterRef={"name": "east"}, replicationFactor=factor)
    assert isinstance(found, Topic)
    return found


def created(
    brokers: InProcessCluster, admin: KafkaAdmin, name: str, partitions: int, factor: int, **config: str
) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    assert admin.create_topics([NewTopic(name, partitions, factor, settings)]) == {name: None}
    brokers.await_in_sync(name, factor)  # on every broker: any of them may answer


def settled(brokers: InProcessCluster, admin: KafkaAdmin, topic: str, factor: int) -> None:
    until("no reassignment", lambda: not admin.reassigning())
    brokers.await_in_sync(topic, factor)  # they hear of it after the controller


def test_what_brokers_say_of_themselves(brokers: InProcessCluster, admin: KafkaAdmin) -> None:
    found = admin.brokers()
    assert found.racks == {0: "here", 1: "here", 2: "here"}
    assert found.controller in found.racks
    created(brokers, admin, "said", 2, 3, min_insync_replicas="3")
    created(brokers, admin, "unsaid", 1, 2)

    def told() -> list[str]:  # the broker may not know the topic yet
        return sorted(str(one) for one in admin.replicas(["said", "unsaid"], min_isr=True))

    until("all are known", lambda: told() == ["said-0", "said-1", "unsaid-0"])
    there = {str(one): one for one in admin.replicas(["said", "unsaid"], min_isr=True)}
    assert there["said-0"].min_isr == 3
    assert there["unsaid-0"].min_isr == 2, "the brokers' own"
    assert sorted(there["said-1"].replicas) == [0, 1, 2]
    until("all in sync", lambda: all(len(one.isr) == 3 for one in admin.replicas(["said"])))


def test_another_replication_factor(brokers: InProcessCluster, admin: KafkaAdmin) -> None:
    created(brokers, admin, "grows", 3, 1)

    def look(factor: int) -> Replication:
        return replicate(admin, a_cluster(), [a_topic("grows", factor)], admin.topics(["grows"]))

    assert look(1) == Replication()
    assert sorted(look(3).progress) == ["grows"]
    settled(brokers, admin, "grows", 3)
    assert look(3) == Replication()
    assert sorted(look(2).progress) == ["grows"]
    settled(brokers, admin, "grows", 2)
    problem = look(5).problems["grows"]
    assert problem.reason is Reason.INVALID_REPLICATION_FACTOR
    assert "there are 3" in problem.message


def test_a_broker_that_does_not_exist_is_refused_by_name(
    brokers: InProcessCluster, admin: KafkaAdmin
) -> None:
    created(brokers, admin, "stays", 1, 1)
    refused = admin.reassign({("stays", 0): (1, 9)})
    assert "9" in str(refused["stays", 0])
    assert refused["stays", 0].error == "INVALID_REPLICA_ASSIGNMENT"
    assert admin.reassigning() == {}


def test_configuration_is_set_on_running_brokers_and_taken_back(admin: KafkaAdmin) -> None:
    def keys(findings: Findings) -> tuple[str, ...] | None:
        return findings.config_keys

    findings = Findings()
    wanted = a_cluster(config={"log.retention.ms": "5000", "log.retention.hours": "2"})
    assert configure_live(wanted, View(admin), findings)
    assert keys(findings) == ("log.retention.ms",)
    until("it", lambda: admin.brokers_config() == {"log.retention.ms": "5000"})

    admin.change_brokers_config(ConfigChange({"log.segment.bytes": "2000000"}))  # another client's key
    until("both", lambda: len(admin.brokers_config()) == 2)
    document = {"apiVersion": API_VERSION, "kind": "Cluster", "metadata": {"name": "east"}}
    before = decode({**document, "spec": {}, "status": {"configKeys": ["log.retention.ms"]}})
    assert isinstance(before, Cluster)
    assert configure_live(before, View(admin), findings)
    assert keys(findings) is None
    until("only theirs", lambda: admin.brokers_config() == {"log.segment.bytes": "2000000"})

    wrong = a_cluster(config={"min.insync.replicas": "none"})
    assert not configure_live(wrong, View(admin), findings)
    assert findings.problem is not None
    assert findings.problem.reason is Reason.INVALID_CONFIG
    assert "min.insync.replicas" in findings.problem.message


SPELT = {
    "cleanup.policy": "compact, delete",
    "min.cleanable.dirty.ratio": "0.50",
    "unclean.leader.election.enable": "True",
    "retention.ms": " 604800000",
}


def test_settings_in_another_spelling_are_not_written_again(
    brokers: InProcessCluster, admin: KafkaAdmin
) -> None:
    topic = resource("Topic", "spelt", clusterRef={"name": "east"}, partitions=1, config=SPELT)
    assert isinstance(topic, Topic)
    plan = plan_topic("spelt", topic.spec, None)
    assert plan.create is not None
    assert admin.create_topics([plan.create]) == {"spelt": None}

    def has_its_settings() -> bool:
        topic = admin.topics(["spelt"]).get("spelt")
        return topic is not None and set(topic.config) == set(SPELT)

    until("its settings", has_its_settings)
    assert plan_topic("spelt", topic.spec, admin.topics(["spelt"])["spelt"]).empty

    wanted = a_cluster(
        config={
            "log.retention.ms": " 5000",
            "log.cleanup.policy": "compact, delete",
            "compression.type": "zstd ",
        }
    )
    assert configure_live(wanted, View(admin), Findings())
    until("those of the brokers", lambda: set(wanted.spec.config) <= set(admin.brokers_config()))
    assert live_config(wanted, admin.brokers_config()) == ConfigChange({})
    assert admin.change_brokers_config(ConfigChange({}, tuple(wanted.spec.config))) is None
    until("none of them", lambda: not set(wanted.spec.config) & set(admin.brokers_config()))


def test_offsets_come_from_every_leader_while_leaders_change(
    brokers: InProcessCluster, admin: KafkaAdmin
) -> None:
    created(brokers, admin, "counted", 6, 3)
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for number in range(21):
        producer.produce("counted", b"value", partition=number % 6)
    assert producer.flush(30) == 0
    wanted = {Partition("counted", number): LATEST for number in range(6)}
    ends = {Partition("counted", number): 4 if number < 3 else 3 for number in range(6)}
    assert admin.offsets(wanted) == ends
    assert admin.offsets(dict.fromkeys(wanted, EARLIEST)) == dict.fromkeys(wanted, 0)
    brokers.brokers[1].stop()
    assert admin.offsets(wanted) == ends  # its partitions have other leaders
    brokers.brokers[1].start()
    with pytest.raises(AdminError, match=r"unknown partitions: .*counted.*6"):
        admin.offsets(wanted | {Partition("counted", 6): LATEST})
    admin.delete_topics({"counted": None})


def test_a_broker_is_drained_and_filled_again(brokers: InProcessCluster, admin: KafkaAdmin) -> None:
    def topics(broker: InProcessBroker) -> list[str]:
        return [one.name or "" for one in brokers.metadata(of=broker).topics if not one.is_internal]

    def held(broker: InProcessBroker) -> list[int]:
        return [number for one in brokers.partitions("orders", of=broker) for number in one.replica_nodes]

    every = brokers.brokers.values()
    admin.delete_topics({name: None for name in admin.topic_names() if not name.startswith("__")})
    until("nothing else", lambda: not any(map(topics, every)))
    created(brokers, admin, "orders", 6, 2)

    def drained() -> bool:
        findings = Findings()
        count = scale(a_cluster(2), 3, View(admin), findings)
        assert findings.problem is None
        draining = (ConditionType.REBALANCING, True, Reason.DRAINING)
        assert count == 2 or findings.conditions[0][:3] == draining
        return count == 2

    assert not drained()
    until("broker 2 empty", drained)
    until("each broker knows", lambda: not any(2 in held(broker) for broker in every))

    view, findings = View(admin), Findings()
    assert view.partitions()
    created(brokers, admin, "late", 1, 3)
    assert scale(a_cluster(2), 3, view, findings) == 3, "the view is older than the topic"
    assert findings.conditions[0][3] == "broker 2: 1 replica left to move"
    admin.delete_topics({"late": None})
    until("only orders", lambda: all(topics(broker) == ["orders"] for broker in every))

    findings = Findings()
    assert scale(a_cluster(1), 2, View(admin), findings) == 2
    assert findings.problem is not None
    assert findings.problem.reason is Reason.SCALE_DOWN_REFUSED

    findings = Findings()
    spread(a_cluster(3), View(admin), findings)
    assert not findings.conditions, "Manual"
    spread(a_cluster(3, rebalance="Automatic"), View(admin), findings)
    assert findings.conditions[0][:3] == (ConditionType.REBALANCING, True, Reason.SPREADING)
    settled(brokers, admin, "orders", 2)
    equal = [0] * 4 + [1] * 4 + [2] * 4
    until("each broker knows", lambda: all(sorted(held(broker)) == equal for broker in every))
    findings = Findings()
    spread(a_cluster(3, rebalance="Automatic"), View(admin), findings)
    assert not findings.conditions


def test_committed_records_end_where_an_open_transaction_begins(
    brokers: InProcessCluster, admin: KafkaAdmin
) -> None:
    created(brokers, admin, "uncommitted", 1, 3)
    log, later = Partition("uncommitted", 0), int(time.time() * 1000) + 60_000
    writer = TransactionalWriter(brokers.bootstrap, "uncommitted")
    writer.begin(b"open", timestamp=later)
    assert admin.offsets({log: LATEST}) == {log: 1}
    assert admin.offsets({log: LATEST}, read_committed=True) == {log: 0}
    assert admin.offsets({log: later}, read_committed=True) == {log: -1}
    writer.commit()
    until("the marker is in the log", lambda: admin.offsets({log: LATEST}, read_committed=True) == {log: 2})
    assert admin.offsets({log: later}, read_committed=True) == {log: 0}
    admin.delete_topics({"uncommitted": None})

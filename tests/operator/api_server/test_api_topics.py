"""Topics on the real API server, with a running operator and a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream_harness.broker import fixed_port
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kube import Json, Namespace, run, until
from millstream_harness.manifests import cluster, topic
from millstream_harness.operator import OperatorProcess
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import OWNER, NewTopic
from millstream_operator.state.status import FINALIZER

pytestmark = pytest.mark.soak

KIND = "topic.millstream.dev"
NewNamespace = Callable[[], Namespace]
StartBroker = Callable[..., InProcessBroker]


@pytest.fixture(scope="module")
def mortal() -> str:
    """Address of the brokers of Clusters named mortal: a test starts the broker, and may kill it."""
    return f"127.0.0.1:{fixed_port()}"


@pytest.fixture(scope="module")
def cluster_addresses(module_broker: InProcessBroker, mortal: str) -> dict[str, str]:
    return {"default": module_broker.bootstrap, "mortal": mortal}


@pytest.fixture(scope="module")
def interval_s() -> float:
    """An hour: an event leads to every look that a test waits for, or the operator retries what failed."""
    return 3600.0


@pytest.fixture
def admin(empty_broker: InProcessBroker) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(empty_broker.bootstrap)
    yield admin
    admin.close()


@pytest.fixture
def namespace(empty_broker: InProcessBroker, watched_namespace: Namespace) -> Namespace:
    return watched_namespace


@pytest.fixture
def operator(shared_operator: OperatorProcess, namespace: Namespace) -> OperatorProcess:
    """An operator, and a Cluster named default."""
    namespace.apply(cluster())
    return shared_operator


@pytest.fixture
def start_mortal(start_broker: StartBroker, mortal: str) -> StartBroker:
    """``start_mortal({KEY: VALUE})`` starts the broker of Clusters named mortal."""
    return lambda config={}: start_broker({"listeners": f"PLAINTEXT://{mortal}", **config})


def on_mortal(name: str, **spec: Any) -> Json:
    return topic(name, clusterRef={"name": "mortal"}, **spec)


def gone(namespace: Namespace, name: str) -> None:
    namespace.kubectl("delete", KIND, name, "--wait=false")
    until(
        f"{KIND}/{name} gone",
        lambda: not namespace.kubectl("get", KIND, name, "--ignore-not-found", "-o", "name"),
    )


def owner(namespace: Namespace, name: str) -> dict[str, str]:
    """The setting by which a topic names its Topic resource."""
    return {OWNER: f"{namespace.name}/{name}"}


def test_the_life_of_a_topic(operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin) -> None:
    namespace.apply(topic("flights", partitions=3, config={"retention.ms": "100000", "segment.ms": "60000"}))
    status = namespace.wait_condition(KIND, "flights", reason="TopicReady")["status"]
    there = admin.topics(["flights"])["flights"]
    assert status["topicId"] == there.topic_id
    shown = (
        status["partitions"],
        status["replicationFactor"],
        status["underReplicated"],
        status["sizeBytes"],
    )
    assert shown == (3, 1, 0, 0)
    owned = owner(namespace, "flights")
    assert there.config == {"retention.ms": "100000", "segment.ms": "60000", **owned}

    # a changed key is set, a removed key is reset, others' keys stay
    namespace.apply(topic("flights", partitions=6, config={"retention.ms": "200000"}))
    assert namespace.wait_condition(KIND, "flights", reason="TopicReady")["status"]["partitions"] == 6
    assert admin.topics(["flights"])["flights"].config == {"retention.ms": "200000", **owned}

    namespace.apply(topic("flights", partitions=2, config={"retention.ms": "200000"}))
    refused = namespace.wait_condition(KIND, "flights", status="False", reason="PartitionDecreaseRefused")
    assert refused["status"]["partitions"] == 6
    assert "spec.partitions: 2 is not allowed" in namespace.condition(KIND, "flights")["message"]
    assert admin.partitions(["flights"]) == {"flights": 6}

    gone(namespace, "flights")
    assert admin.partitions(["flights"]) == {"flights": 6}, "the policy is Retain by default"


def test_a_converged_topic_is_not_written(operator: OperatorProcess, namespace: Namespace) -> None:
    namespace.apply(topic("flights", partitions=3, config={"retention.ms": "100000"}))
    namespace.wait_condition(KIND, "flights", reason="TopicReady")
    before = {kind: namespace.get(kind, name) for kind, name in ((KIND, "flights"), ("cluster", "default"))}
    operator.stop()
    operator.start()
    operator.has_looked_at(f"Topic {namespace.name}/flights")
    operator.has_looked_at(f"Cluster {namespace.name}/default")
    assert {
        kind: namespace.get(kind, name) for kind, name in ((KIND, "flights"), ("cluster", "default"))
    } == before


def test_a_topic_that_exists_is_adopted_with_its_configuration(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin
) -> None:
    admin.create_topics([NewTopic("by.hand", 4, 1, {"retention.ms": "-1"})])
    namespace.apply(topic("by-hand", topicName="by.hand", partitions=4, config={"max.message.bytes": "2000"}))
    status = namespace.wait_condition(KIND, "by-hand", reason="TopicReady")["status"]
    assert status["topicId"] == admin.topics(["by.hand"])["by.hand"].topic_id
    expected = {"retention.ms": "-1", "max.message.bytes": "2000", **owner(namespace, "by-hand")}
    assert admin.topics(["by.hand"])["by.hand"].config == expected


def test_counts_that_are_left_out_are_the_brokers(start_mortal: StartBroker, namespace: Namespace) -> None:
    broker = start_mortal({"num.partitions": "4"})
    namespace.apply(cluster("mortal"))
    with closing(KafkaAdmin(broker.bootstrap)) as admin:
        admin.create_topics([NewTopic("there", 3, 1, {})])
        for name in ("there", "new"):
            namespace.apply(on_mortal(name))
        for name, count in {"there": 3, "new": 4}.items():
            found = namespace.wait_condition(KIND, name, reason="TopicReady")
            assert found["spec"].keys().isdisjoint(("partitions", "replicationFactor"))
            assert (found["status"]["partitions"], found["status"]["replicationFactor"]) == (count, 1)
        assert admin.partitions(["there", "new"]) == {"there": 3, "new": 4}


def test_the_policy_delete_deletes(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin
) -> None:
    namespace.apply(topic("kept", deletionPolicy="Delete"))
    namespace.apply(topic("dropped", deletionPolicy="Delete"))
    namespace.wait_condition(KIND, "kept")
    namespace.wait_condition(KIND, "dropped")
    assert namespace.get(KIND, "kept")["metadata"]["finalizers"] == ["millstream.dev/delete"]
    namespace.apply(topic("kept", deletionPolicy="Retain"))
    until("the finalizer gone", lambda: "finalizers" not in namespace.get(KIND, "kept")["metadata"])
    gone(namespace, "dropped")
    gone(namespace, "kept")
    assert admin.partitions(["kept", "dropped"]) == {"kept": 1}


def test_a_dangling_reference_heals_when_the_cluster_appears(namespace: Namespace) -> None:
    namespace.apply(topic("early", deletionPolicy="Delete"))
    problem = namespace.wait_condition(KIND, "early", status="False", reason="ClusterNotFound")
    assert problem["status"]["observedGeneration"] == 1
    namespace.apply(cluster())
    namespace.wait_condition(KIND, "early", reason="TopicReady")
    namespace.kubectl("delete", "cluster", "default")
    namespace.wait_condition(KIND, "early", status="False", reason="ClusterNotFound")
    gone(namespace, "early")  # although nobody can delete the topic


def test_the_oldest_of_two_that_name_one_topic_wins(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin
) -> None:
    namespace.apply(topic("first", topicName="shared", partitions=2, deletionPolicy="Delete"))
    namespace.wait_condition(KIND, "first", reason="TopicReady")
    namespace.apply(topic("second", topicName="shared", partitions=5))
    namespace.wait_condition(KIND, "second", status="False", reason="ConflictingTopic")
    assert (
        f"older Topic first in namespace {namespace.name}" in namespace.condition(KIND, "second")["message"]
    )
    assert admin.partitions(["shared"]) == {"shared": 2}
    gone(namespace, "first")
    namespace.wait_condition(KIND, "second", reason="TopicReady")
    assert admin.partitions(["shared"]) == {"shared": 5}


def test_configuration_that_the_broker_refuses(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin
) -> None:
    namespace.apply(topic("typo", config={"retention.mss": "1"}))
    namespace.wait_condition(KIND, "typo", status="False", reason="InvalidConfig")
    assert "retention.mss" in namespace.condition(KIND, "typo")["message"]
    assert admin.partitions(["typo"]) == {}
    namespace.apply(topic("typo", config={"retention.ms": "1000"}))
    namespace.wait_condition(KIND, "typo", reason="TopicReady")
    namespace.apply(topic("typo", config={"retention.ms": "soon"}))
    namespace.wait_condition(KIND, "typo", status="False", reason="InvalidConfig")
    assert admin.topics(["typo"])["typo"].config == {"retention.ms": "1000", **owner(namespace, "typo")}
    namespace.apply(topic("wide", replicationFactor=3))
    namespace.wait_condition(KIND, "wide", status="False", reason="InvalidReplicationFactor")


def test_a_paused_topic_is_looked_at_and_left_alone(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin
) -> None:
    namespace.apply(topic("flights", partitions=1))
    namespace.wait_condition(KIND, "flights", reason="TopicReady")
    namespace.kubectl("annotate", KIND, "flights", "millstream.dev/paused=true")
    namespace.wait_condition(KIND, "flights", "Paused", reason="ReconcilePaused")
    paused = topic("flights", partitions=2, config={"retention.ms": "100000"})
    paused["metadata"]["annotations"] = {"millstream.dev/paused": "true"}
    namespace.apply(paused)
    found = namespace.wait_condition(KIND, "flights", "Paused")["status"]
    assert found["partitions"] == 1
    there = admin.topics(["flights"])["flights"]
    owned = owner(namespace, "flights")
    assert (there.partitions, there.config) == (1, owned)

    namespace.kubectl("annotate", KIND, "flights", "millstream.dev/paused-")
    until(
        "what was held back",
        lambda: namespace.get(KIND, "flights")["status"]["partitions"] == 2,
    )
    assert admin.topics(["flights"])["flights"].config == {"retention.ms": "100000", **owned}
    conditions = {one["type"] for one in namespace.get(KIND, "flights")["status"]["conditions"]}
    assert conditions == {"Ready"}


def test_brokers_that_do_not_answer(start_mortal: StartBroker, namespace: Namespace) -> None:
    broker = start_mortal()
    namespace.apply(cluster("mortal"))
    namespace.apply(on_mortal("before"))
    namespace.wait_condition(KIND, "before", reason="TopicReady")
    broker.kill()
    namespace.apply(on_mortal("during", deletionPolicy="Delete"))
    namespace.wait_condition(KIND, "during", status="False", reason="ClusterNotReady")
    # a namespace goes with a Cluster that does not respond: nothing hangs
    run("kubectl", "delete", "namespace", namespace.name, "--wait=false")
    there = ("kubectl", "get", "namespace", namespace.name, "--ignore-not-found")
    until("the namespace gone", lambda: not run(*there), 300)


def test_it_heals_when_the_brokers_come_back(start_mortal: StartBroker, namespace: Namespace) -> None:
    broker = start_mortal()
    namespace.apply(cluster("mortal"))
    namespace.apply(on_mortal("flights"))
    namespace.wait_condition(KIND, "flights", reason="TopicReady")
    broker.kill()
    namespace.apply(on_mortal("flights", partitions=2))
    namespace.wait_condition(KIND, "flights", status="False", reason="ClusterNotReady")
    broker.start()
    assert namespace.wait_condition(KIND, "flights", reason="TopicReady")["status"]["partitions"] == 2


def test_a_deletion_waits_for_the_brokers_or_for_its_user_to_give_up(
    start_mortal: StartBroker, namespace: Namespace
) -> None:
    broker = start_mortal()
    namespace.apply(cluster("mortal"))
    for name in ("doomed", "kept"):
        namespace.apply(on_mortal(name, deletionPolicy="Delete"))
        namespace.wait_condition(KIND, name, reason="TopicReady")
    broker.kill()
    for name in ("doomed", "kept"):
        namespace.kubectl("delete", KIND, name, "--wait=false")
        namespace.wait_condition(KIND, name, status="False", reason="Deleting")
    told = (
        "events",
        "--field-selector=reason=WaitingForDeletion",
        "-o=jsonpath={.items[*].involvedObject.name}",
    )
    until("an Event for each", lambda: sorted(namespace.kubectl("get", *told).split()) == ["doomed", "kept"])
    namespace.kubectl("annotate", KIND, "kept", "millstream.dev/skip-deletion=true")
    there = ("get", KIND, "-o", "name")
    until("one that was given up gone", lambda: "kept" not in namespace.kubectl(*there))
    assert "doomed" in namespace.kubectl(*there)
    broker.start()
    until("the other one gone", lambda: not namespace.kubectl(*there))
    with closing(KafkaAdmin(broker.bootstrap)) as admin:
        assert admin.partitions(["doomed", "kept"]) == {"kept": 1}


def test_other_namespaces_only_where_the_cluster_allows_them(
    namespace: Namespace, new_watched_namespace: NewNamespace
) -> None:
    other = new_watched_namespace()
    namespace.apply(cluster())
    reference = {"name": "default", "namespace": namespace.name}
    other.apply(topic("far", clusterRef=reference))
    far = other.wait_condition(KIND, "far", status="False", reason="NamespaceNotAllowed")
    created = datetime.fromisoformat(far["metadata"]["creationTimestamp"])
    until("another second", lambda: datetime.now(UTC) - created > timedelta(seconds=1), every=0.1)
    namespace.apply(topic("near", topicName="far"))
    namespace.wait_condition(KIND, "near", reason="TopicReady")
    namespace.apply(cluster(allowedNamespaces=[other.name]))
    namespace.wait_condition(KIND, "near", status="False", reason="ConflictingTopic")
    other.wait_condition(KIND, "far", reason="TopicReady")


def test_an_operator_that_is_killed_goes_on_where_it_was(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin
) -> None:
    names = [f"t-{number}" for number in range(60)]
    manifest = {"apiVersion": "v1", "kind": "List", "items": [topic(name, partitions=2) for name in names]}
    namespace.apply(manifest)
    until("some topics", lambda: admin.partitions(names), every=0.02)
    operator.kill()
    operator.start()

    def all_ready() -> bool:
        topics = namespace.list(KIND)
        conditions = [c for one in topics for c in one.get("status", {}).get("conditions", ())]
        return [c["status"] for c in conditions if c["type"] == "Ready"] == ["True"] * len(names)

    until("all topics ready", all_ready)
    assert admin.partitions(names) == dict.fromkeys(names, 2)


def test_a_finalizer_that_a_restored_copy_brought_along_goes_too(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    """Its field manager is the restored copy's, not the operator."""
    copy = topic("flights", deletionPolicy="Delete")
    namespace.apply({**copy, "metadata": {**copy["metadata"], "finalizers": [FINALIZER, "example.com/kept"]}})
    namespace.wait_condition(KIND, "flights", reason="TopicReady")
    namespace.kubectl("delete", KIND, "flights", "--wait=false")
    until(
        "the finalizer off",
        lambda: namespace.get("topic", "flights")["metadata"]["finalizers"] == ["example.com/kept"],
    )
    patch = '{"metadata": {"finalizers": null}}'
    namespace.kubectl("patch", KIND, "flights", "--type=merge", "--patch", patch)

"""ConsumerGroups through the real API server, a running operator and a real broker with real consumers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer

from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kube import CommandFailed, Json, Namespace, until
from millstream_harness.manifests import cluster, group
from millstream_harness.operator import OperatorProcess
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import NewTopic, Partition

pytestmark = pytest.mark.soak

KIND = "consumergroup.millstream.dev"


@pytest.fixture(scope="module")
def cluster_addresses(module_broker: InProcessBroker) -> dict[str, str]:
    return {"default": module_broker.bootstrap}


@pytest.fixture
def broker(empty_broker: InProcessBroker) -> InProcessBroker:
    return empty_broker


@pytest.fixture
def admin(broker: InProcessBroker) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(broker.bootstrap)
    admin.create_topics([NewTopic("flights", 3, 1, {})])
    yield admin
    admin.close()


@pytest.fixture
def namespace(broker: InProcessBroker, watched_namespace: Namespace) -> Namespace:
    return watched_namespace


@pytest.fixture
def operator(admin: KafkaAdmin, namespace: Namespace, shared_operator: OperatorProcess) -> OperatorProcess:
    namespace.apply(cluster())
    return shared_operator


def produce(broker: InProcessBroker, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce("flights", str(number), partition=number % 3)
    assert producer.flush(60) == 0


@contextmanager
def consuming(broker: InProcessBroker, group_id: str) -> Iterator[None]:
    """A member of the group that polls and commits until the block ends."""
    config = {"group.id": group_id, "client.id": "c-1", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "auto.commit.interval.ms": 200, **config})
    consumer.subscribe(["flights"])
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            consumer.poll(0.1)
        consumer.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def status_when(namespace: Namespace, name: str, what: str, check: Callable[[Json], bool]) -> Json:
    def look() -> Json | None:
        status: Json = namespace.get(KIND, name).get("status", {})
        return status if status and check(status) else None

    return until(what, look)


def test_a_group_from_its_start_to_its_end(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker, admin: KafkaAdmin
) -> None:
    produce(broker, 30)
    namespace.apply(group("watch", topics=["flights"], startAt="Earliest", maxLag={"records": 20}))
    namespace.wait_condition(KIND, "watch", "Lagging", reason="AboveMaxLag")
    status = namespace.get(KIND, "watch")["status"]
    assert (status["state"], status["lag"]["records"], status["memberCount"]) == ("Empty", 30, 0)
    (topic,) = status["topics"]
    assert (topic["topic"], topic["partitions"], topic["lag"]) == ("flights", 3, 30)
    assert topic["topicId"] == admin.identities(["flights"])["flights"].topic_id
    assert admin.committed(["watch"]) == {"watch": {Partition("flights", p): 0 for p in range(3)}}

    with consuming(broker, "watch"):
        status = status_when(
            namespace, "watch", "all consumed", lambda s: s["state"] == "Stable" and s["lag"]["records"] == 0
        )
        (member,) = status["members"]
        assert (member["clientId"], member["host"]) == ("c-1", "127.0.0.1")
        assert member["partitions"] == ["flights-0", "flights-1", "flights-2"]
        assert namespace.condition(KIND, "watch", "Lagging")["status"] == "False"
    status = status_when(namespace, "watch", "nobody left", lambda s: s["state"] == "Empty")
    assert status["members"] == []
    namespace.kubectl("delete", KIND, "watch")
    assert admin.committed(["watch"])["watch"], "the policy is Retain by default"


def test_latest_a_missing_topic_and_deletion(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker, admin: KafkaAdmin
) -> None:
    produce(broker, 9)
    namespace.apply(group("late", topics=["flights", "nowhere"], startAt="Latest", deletionPolicy="Delete"))
    namespace.wait_condition(KIND, "late", status="False", reason="TopicNotFound")
    assert namespace.condition(KIND, "late")["message"] == "there is no topic nowhere"
    assert admin.committed(["late"]) == {"late": {Partition("flights", p): 3 for p in range(3)}}
    admin.create_topics([NewTopic("nowhere", 1, 1, {})])
    namespace.wait_condition(KIND, "late", reason="GroupObserved")
    namespace.apply(group("late-too", groupId="late"))
    namespace.wait_condition(KIND, "late-too", status="False", reason="ConflictingGroup")
    namespace.kubectl("delete", KIND, "late-too")
    namespace.kubectl("delete", KIND, "late")
    assert admin.committed(["late"]) == {"late": {}}


def test_a_group_that_nobody_changes_is_not_written(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker
) -> None:
    namespace.apply(group("idle", topics=["flights"], startAt="Earliest"))
    namespace.wait_condition(KIND, "idle", reason="GroupObserved")
    before = namespace.get(KIND, "idle")
    operator.stop()
    operator.start()
    operator.has_looked_at(f"ConsumerGroup {namespace.name}/idle")
    assert namespace.get(KIND, "idle") == before


def test_offsets_are_deleted_when_the_last_member_has_left(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker, admin: KafkaAdmin
) -> None:
    produce(broker, 3)
    with consuming(broker, "busy"):
        namespace.apply(group("busy", topics=["flights"], deletionPolicy="Delete"))
        status_when(namespace, "busy", "the member", lambda s: s["state"] == "Stable")
        until("a commit", lambda: admin.committed(["busy"])["busy"])
        namespace.kubectl("delete", KIND, "busy", "--wait=false")
        namespace.wait_condition(KIND, "busy", status="False", reason="Deleting")
        assert "has members: stop its consumers" in namespace.condition(KIND, "busy")["message"]
        assert admin.groups(["busy"])["busy"].state == "Stable"
        assert admin.committed(["busy"])["busy"]
    there = ("get", KIND, "-o", "name")
    until("the resource gone", lambda: not namespace.kubectl(*there))
    assert admin.committed(["busy"]) == {"busy": {}}


def test_a_reset_waits_for_its_members_and_runs_once(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker, admin: KafkaAdmin
) -> None:
    produce(broker, 9)
    reset = {"requestId": "again", "to": "Earliest"}
    with consuming(broker, "watch"):
        namespace.apply(group("watch", topics=["flights"]))
        read = {Partition("flights", p): 3 for p in range(3)}
        until("all consumed", lambda: admin.committed(["watch"])["watch"] == read)
        namespace.patch(KIND, "watch", {"spec": {"reset": reset}})
        namespace.wait_condition(KIND, "watch", "Reset", status="False", reason="WaitingForMembers")
        assert "stop c-1 (127.0.0.1)" in namespace.condition(KIND, "watch", "Reset")["message"]
    namespace.wait_condition(KIND, "watch", "Reset", reason="ResetDone")
    (shown,) = namespace.get(KIND, "watch")["status"]["lastReset"]["topics"]
    assert (shown["before"], shown["after"]) == ([3, 3, 3], [0, 0, 0])
    moved = {Partition("flights", 0): 2}
    assert admin.commit("watch", moved) is None
    operator.stop()
    operator.start()
    operator.has_looked_at(f"ConsumerGroup {namespace.name}/watch")
    assert admin.committed(["watch"])["watch"] == {Partition("flights", p): 0 for p in range(3)} | moved


def test_restored_status_or_resource_resets_no_group_again(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin, broker: InProcessBroker
) -> None:
    """From a backup by `kubectl get`: a status alone, and then the whole resource, with an older request."""
    produce(broker, 9)

    def reset(request: str) -> None:
        namespace.patch(KIND, "watch", {"spec": {"reset": {"requestId": request, "to": "Earliest"}}})

    def is_done(words: str) -> bool:
        found = namespace.condition(KIND, "watch", "Reset")
        return found.get("reason") == "ResetDone" and found["message"].startswith(words)

    moved = {Partition("flights", p): 3 for p in range(3)}
    assert admin.commit("watch", moved) is None
    namespace.apply(group("watch", topics=["flights"]))
    reset("first")
    until("the first reset", lambda: is_done("request first: 3 positions set"))
    backup = namespace.get(KIND, "watch")
    reset("second")
    until("the second reset", lambda: is_done("request second: 3 positions set"))
    assert admin.commit("watch", moved) is None

    older = json.dumps({"status": backup["status"]})
    namespace.kubectl("patch", KIND, "watch", "--subresource=status", "--type=merge", "--patch", older)
    until("the older status", lambda: is_done("request second: done before"))
    assert admin.committed(["watch"])["watch"] == moved

    namespace.kubectl("delete", KIND, "watch")
    namespace.apply(
        {key: backup[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "watch"}}
    )
    until("the older resource", lambda: is_done("request first: done before"))
    assert admin.committed(["watch"])["watch"] == moved


def test_a_workload_from_its_start_to_its_end(
    operator: OperatorProcess, namespace: Namespace, broker: InProcessBroker, admin: KafkaAdmin
) -> None:
    """Its pods are never scheduled: only Kubernetes decides about them."""
    nowhere = {"millstream.dev/test": "no-such-node"}
    template = {"spec": {"nodeSelector": nowhere, "containers": [{"name": "c", "image": "ours"}]}}
    wanted = {"topics": ["flights"], "startAt": "Earliest", "deletionPolicy": "Delete"}
    namespace.apply(group("work", **wanted, workload={"template": template}))
    namespace.wait_condition(KIND, "work", "WorkloadReady", status="False", reason="WorkloadStarting")
    until("the Deployment", lambda: namespace.kubectl("get", "deployment", "work-consumers", "-o", "name"))
    namespace.kubectl("scale", KIND, "work", "--replicas=3")
    until("three", lambda: namespace.get("deployment", "work-consumers")["spec"]["replicas"] == 3)
    namespace.kubectl("scale", "deployment", "work-consumers", "--replicas=5")  # the resource decides
    until("three again", lambda: namespace.get("deployment", "work-consumers")["spec"]["replicas"] == 3)
    scaling = {"min": 0, "max": 2, "targetLag": 1}
    namespace.patch(KIND, "work", {"spec": {"workload": {"replicas": None, "scaling": scaling}}})
    until("two at most", lambda: namespace.get("deployment", "work-consumers")["spec"]["replicas"] == 2)
    with pytest.raises(CommandFailed, match="replicas are not allowed with scaling, which chooses them"):
        namespace.kubectl("scale", KIND, "work", "--replicas=1")
    assert "millstream-consumers" in namespace.get(KIND, "work")["status"]["selector"]
    namespace.kubectl("delete", KIND, "work")
    assert not namespace.kubectl("get", "deployment", "-o", "name")
    assert admin.committed(["work"]) == {"work": {}}

"""docs/how-to/secure.md: an open Cluster is closed, while producers move from listener to listener and nothing fails.

Then, Clusters that state nothing: a new one is secure where the operator is set up so, and one from before stays open.
"""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

from millstream_harness.chart import CLIENT, install
from millstream_harness.kube import CommandFailed, Json, Namespace, kubeconfig, until
from millstream_harness.kubernetes_pages import (
    CLOSED,
    OPEN_CLUSTER,
    RETURNED,
    SECOND_LISTENER,
    USERS,
)
from millstream_harness.rolls import (
    CLUSTER,
    KIND,
    PARTITIONS,
    TOPIC,
    TOPIC_KIND,
    Paced,
    measured,
    resource,
    started,
)

USER = "app"
READ = """
import json, sys
from confluent_kafka import Consumer, TopicPartition
config = {**json.loads(sys.argv[2]), "group.id": "check", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
consumer = Consumer(config)
partitions = int(sys.argv[3])
consumer.assign([TopicPartition(sys.argv[1], partition, 0) for partition in range(partitions)])
ended = set()
while len(ended) < partitions:
    message = consumer.poll(20)
    assert message is not None
    if message.error():
        ended.add(message.partition())
    else:
        print(message.partition(), message.offset(), message.value().decode().split(":")[1])
"""


@pytest.fixture(scope="module")
def folder(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secure")
    kubeconfig(folder / "kubeconfig", here=namespace.name)
    return folder


@pytest.fixture(scope="module")
def surroundings(namespace: Namespace, folder: Path) -> Json:
    """The page's names here, and the reader's kubeconfig."""
    names = {"--namespace shop": f"--namespace {namespace.name}", "shop": CLUSTER, "orders": TOPIC}
    return {"replace": names, "env": {"KUBECONFIG": str(folder / "kubeconfig")}}


def secret(namespace: Namespace, name: str, key: str) -> str:
    return base64.b64decode(namespace.get("secret", name)["data"][key]).decode()


def login(namespace: Namespace, cluster: str = CLUSTER, user: str = USER) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.pem": secret(namespace, f"{cluster}-cluster-ca-cert", "ca.crt"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": secret(namespace, user, "password"),
    }


def succeeds(namespace: Namespace, before: Paced, after: Paced) -> Paced:
    """The next producer, which runs before the last one stops."""
    started(after)
    before.stop()
    assert before.left == 0
    assert not before.ledger.failed
    return after


def records(namespace: Namespace, address: str, config: Json) -> dict[tuple[int, int], int]:
    """The number in each record, by partition and offset."""
    given = json.dumps({**config, "bootstrap.servers": address})
    command = ("exec", "client", "--", "python3", "-c", READ, TOPIC, given, str(PARTITIONS))
    lines = [list(map(int, line.split())) for line in namespace.kubectl(*command).splitlines()]
    return {(partition, offset): number for partition, offset, number in lines}


@pytest.mark.timeout(900)
def test_an_open_cluster_is_closed_without_an_outage(
    namespace: Namespace, folder: Path, surroundings: Json
) -> None:
    OPEN_CLUSTER.run(folder, **surroundings)
    first = paced = started(Paced(namespace, pod="first"))
    since = time.time()
    USERS.run(folder, **surroundings)
    SECOND_LISTENER.run(folder, **surroundings)
    measured(paced, "a second listener", since)
    config = login(namespace)
    second = paced = succeeds(
        namespace, paced, Paced(namespace, f"{CLUSTER}-change-all", 9094, pod="second", config=config)
    )
    since = time.time()
    CLOSED.run(folder, **surroundings)
    measured(paced, "closed", since)
    third = paced = succeeds(namespace, paced, Paced(namespace, pod="third", config=config))
    since = time.time()
    RETURNED.run(folder, **surroundings)
    measured(paced, "one listener again", since)
    paced.stop()
    assert paced.left == 0
    assert not paced.ledger.failed
    found = records(namespace, f"{CLUSTER}-bootstrap:9092", config)
    for one in (first, second, third):
        for partition, acknowledged in one.ledger.acknowledged.items():
            assert {number: found.get((partition, offset)) for number, offset in acknowledged.items()} == {
                number: number for number in acknowledged
            }
    assert sum(one.ledger.count for one in (first, second, third)) == len(found)
    conditions = {one["type"] for one in namespace.get(KIND, CLUSTER)["status"]["conditions"]}
    assert "OpenListeners" not in conditions
    namespace.kubectl("delete", KIND, CLUSTER)


def ready(namespace: Namespace, name: str) -> Json:
    return namespace.wait_condition(KIND, name, timeout=240)


def annotation(namespace: Namespace, name: str) -> str | None:
    found: Json = namespace.get(KIND, name)["metadata"].get("annotations") or {}
    return found.get("millstream.dev/unstated-listeners")


def test_clusters_that_state_nothing(namespace: Namespace) -> None:
    """The operator restarts with the other setting in between."""
    install(default_cluster=False, settings="operator.newClusters=Open")
    namespace.apply(resource("Cluster", "before", {"brokers": {"storage": {"size": "1Gi"}}}))
    ready(namespace, "before")
    assert namespace.condition(KIND, "before", "OpenListeners")["reason"] == "NotStated"
    install(default_cluster=False)
    try:
        namespace.apply(resource("Cluster", "after", {"brokers": {"storage": {"size": "1Gi"}}}))
        (listener,) = ready(namespace, "after")["status"]["listeners"]
        assert (listener["name"], listener["protocol"]) == ("internal", "SASL_SSL")
        until("the decisions", lambda: annotation(namespace, "before") == "Open")
        assert annotation(namespace, "after") == "Secure"
        reference = {"clusterRef": {"name": "after"}}
        namespace.apply(resource("Topic", "later", {**reference, "partitions": 1}))
        namespace.wait_condition(TOPIC_KIND, "later", timeout=120)
        namespace.apply(resource("User", "late", {**reference, "authentication": {"type": "ScramSha512"}}))
        namespace.wait_condition("user.millstream.dev", "late", timeout=120)
        lists("before", namespace, {})
        lists("after", namespace, login(namespace, "after", "late"))
        with pytest.raises(CommandFailed):
            lists("after", namespace, {})
        install(default_cluster=False, settings="operator.newClusters=Open")
        namespace.kubectl("annotate", KIND, "after", "millstream.dev/unstated-listeners-")
        until("the lost annotation", lambda: annotation(namespace, "after") == "Secure")
        lists("after", namespace, login(namespace, "after", "late"))
    finally:
        install(default_cluster=False)
    assert namespace.condition(KIND, "before", "OpenListeners")["reason"] == "NotStated"


def lists(cluster: str, namespace: Namespace, config: Json) -> None:
    """A client inside Kubernetes reads the Cluster's metadata."""
    code = "import json, sys; from confluent_kafka.admin import AdminClient;"
    code += " AdminClient(json.loads(sys.argv[1])).list_topics(timeout=20)"
    given = json.dumps({**config, "bootstrap.servers": f"{cluster}-bootstrap:9092"})
    namespace.client("python3", "-c", code, given, image=CLIENT)

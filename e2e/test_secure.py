"""docs/how-to/secure.md: an open Cluster is closed, while producers move from listener to listener and nothing fails.

Then, Clusters that state nothing: a new one is secure where the operator is set up so, and one from before stays open.
A pod of the secure one connects by the Secret of a User, and follows it through a rotation.
"""

from __future__ import annotations

import base64
import hashlib
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

USER_KIND = "user.millstream.dev"
MOUNTED = "/run/millstream/user"
CONNECT = f"""
import hashlib, time
from pathlib import Path
from confluent_kafka.admin import AdminClient
while True:
    names = {{}}
    exec(Path("{MOUNTED}/client_config.py").read_text(), names)
    which = hashlib.sha256(names["config"]["sasl.password"].encode()).hexdigest()
    try:
        AdminClient(names["config"]).list_topics(timeout=10)
        print("connected", which, flush=True)
    except Exception as error:
        print("failed", which, error, flush=True)
    time.sleep(0.5)
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
        namespace.wait_condition(USER_KIND, "late", timeout=120)
        lists("before", namespace, {})
        lists("after", namespace, login(namespace, "after", "late"))
        with pytest.raises(CommandFailed):
            lists("after", namespace, {})
        install(default_cluster=False, settings="operator.newClusters=Open")
        namespace.kubectl("annotate", KIND, "after", "millstream.dev/unstated-listeners-")
        until("the lost annotation", lambda: annotation(namespace, "after") == "Secure")
        lists("after", namespace, login(namespace, "after", "late"))
        follows_its_secret("after", namespace, "late", "later")
        leaves_no_password(namespace, "late")
    finally:
        install(default_cluster=False)
    assert namespace.condition(KIND, "before", "OpenListeners")["reason"] == "NotStated"


def follows_its_secret(cluster: str, namespace: Namespace, user: str, topic: str) -> None:
    """A pod connects again and again as its mounted Secret says, while the User's password is replaced."""
    pod = f"{user}-client"
    mount = {"name": "user", "mountPath": MOUNTED, "readOnly": True}
    container = {
        "name": "client",
        "image": CLIENT,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", CONNECT],
        "env": [{"name": "MILLSTREAM_CONFIG", "value": f"{MOUNTED}/client.properties"}],
        "volumeMounts": [mount],
    }
    volume = {"name": "user", "secret": {"secretName": f"{user}-user-client"}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 1}
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec})

    def connected() -> bool:
        return f"connected {password_of(namespace, user)}" in namespace.kubectl("logs", pod)

    until("a connection by the mounted Secret", connected)
    namespace.kubectl("exec", "--stdin", pod, "--", "millstream", "produce", topic, stdin=b"one\n")
    assert namespace.kubectl("exec", pod, "--", "millstream", "consume", topic).splitlines() == ["one"]
    former, first = login(namespace, cluster, user), password_of(namespace, user)
    namespace.patch(USER_KIND, user, {"spec": {"rotate": {"requestId": "1", "previousValidSeconds": 30}}})
    namespace.wait_condition(USER_KIND, user)
    assert password_of(namespace, user) != first
    lists(cluster, namespace, former)
    namespace.kubectl("annotate", "pod", pod, "looked=again")  # so that kubelet brings the Secret at once
    until("a connection by the new password", connected)

    def is_refused() -> bool:
        try:
            lists(cluster, namespace, former, timeout=5)
        except CommandFailed:
            return True
        return False

    until("the end of the former password", is_refused)
    lines = namespace.kubectl("logs", pod).splitlines()
    assert [line for line in lines if not line.startswith("connected ")] == []
    assert list(dict.fromkeys(line.split()[1] for line in lines)) == [
        first,
        password_of(namespace, user),
    ]
    namespace.kubectl("delete", "pod", pod, "--wait=false")


def password_of(namespace: Namespace, user: str) -> str:
    """Says which password a User has."""
    return hashlib.sha256(secret(namespace, user, "password").encode()).hexdigest()


def leaves_no_password(namespace: Namespace, user: str) -> None:
    """Its Secrets are empty when it has no authentication any more, a value that a hand has written included."""
    change = {"data": {"password": base64.b64encode(b"edited-by-hand").decode()}}
    namespace.patch("secret", user, change)
    namespace.patch(USER_KIND, user, {"spec": {"authentication": None, "rotate": None}})
    namespace.wait_condition(USER_KIND, user)
    for name in (user, f"{user}-user-client"):
        assert not namespace.get("secret", name).get("data"), name


def lists(cluster: str, namespace: Namespace, config: Json, timeout: int = 20) -> None:
    """A client inside Kubernetes reads the Cluster's metadata."""
    code = "import json, sys; from confluent_kafka.admin import AdminClient;"
    code += f" AdminClient(json.loads(sys.argv[1])).list_topics(timeout={timeout})"
    given = json.dumps({**config, "bootstrap.servers": f"{cluster}-bootstrap:9092"})
    namespace.client("python3", "-c", code, given, image=CLIENT)

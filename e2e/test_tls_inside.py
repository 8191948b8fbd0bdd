"""TLS inside Kubernetes: an open Cluster gets it under load; clients with mounted Secrets; another authority."""

from __future__ import annotations

import json
import time

from millstream_harness.chart import CLIENT
from millstream_harness.kube import Json, Namespace, until
from millstream_harness.rolls import (
    CLUSTER,
    KIND,
    TOPIC_KIND,
    measured,
    nothing_is_lost,
    resource,
    settled,
    under_load,
)

CLIENT_POD, TOPIC = "client", "secured"
TRUST = f"{CLUSTER}-cluster-ca-cert"
EXTERNAL = {"name": "external", "type": "NodePort", "port": 9094, "allowPlaintext": True}
CHANGED_S = 420
MOUNTED_S = 150
"""Kubelet brings a new or changed Secret to a running pod within two minutes."""
CODE = """
import json, sys, uuid
from confluent_kafka import Consumer, Producer, TopicPartition
config = {"bootstrap.servers": sys.argv[1]}
for key, value in json.loads(sys.argv[3]).items():
    config[key] = open(value[1:]).read() if value.startswith("@") else value
mark, errors = uuid.uuid4().hex, []
producer = Producer({**config, "acks": "all", "message.timeout.ms": 15000})
for number in range(100):
    producer.produce(sys.argv[2], f"{mark}:{number}", on_delivery=lambda error, _: error and errors.append(str(error)))
assert producer.flush(20) == 0 and not errors, errors[:1]
consumer = Consumer({**config, "group.id": mark, "auto.offset.reset": "earliest"})
consumer.assign([TopicPartition(sys.argv[2], 0, 0)])
found = set()
while len(found) < 100:
    message = consumer.poll(15)
    assert message is not None and not message.error(), message and message.error()
    if message.value().decode().startswith(mark):
        found.add(message.value())
print("read", len(found))
"""
PASSWORD = {
    "security.protocol": "SASL_SSL",
    "ssl.ca.location": "/trust/ca.crt",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": "@/alice/password",
}
CERTIFICATE = {
    "security.protocol": "SSL",
    "ssl.ca.location": "/trust/ca.crt",
    "ssl.certificate.location": "/bob/user.crt",
    "ssl.key.location": "/bob/user.key",
}


def start_client(namespace: Namespace) -> None:
    """A pod that mounts Secrets, which may come later."""
    mounts = {"trust": TRUST, "alice": "alice", "bob": "bob"}
    container = {
        "name": CLIENT_POD,
        "image": CLIENT,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", "import time; time.sleep(3600)"],
        "volumeMounts": [{"name": name, "mountPath": f"/{name}", "readOnly": True} for name in mounts],
    }
    volumes = [
        {"name": name, "secret": {"secretName": secret, "optional": True}} for name, secret in mounts.items()
    ]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": CLIENT_POD}, "spec": spec})
    namespace.kubectl("wait", "--for=condition=Ready", f"pod/{CLIENT_POD}", "--timeout=60s")


def user(namespace: Namespace, name: str, kind: str) -> None:
    namespace.apply(
        resource("User", name, {"clusterRef": {"name": CLUSTER}, "authentication": {"type": kind}})
    )
    namespace.wait_condition("user.millstream.dev", name, timeout=120)


def reads_and_writes(namespace: Namespace, config: Json) -> None:
    """As soon as the Secrets are mounted."""
    address = f"{CLUSTER}-bootstrap.{namespace.name}.svc:9092"
    command = ["exec", CLIENT_POD, "--", "python3", "-c", CODE, address, TOPIC, json.dumps(config)]

    def works() -> bool:
        return "read 100" in namespace.kubectl(*command)

    until("a client that reads what it has written", works, timeout=MOUNTED_S)


def listens(namespace: Namespace, authentication: str) -> None:
    """Change the Internal listener, and wait until every broker has the change."""
    internal = {
        "name": "internal",
        "type": "Internal",
        "port": 9092,
        "tls": "Enabled",
        "authentication": {"type": authentication},
    }
    namespace.patch(KIND, CLUSTER, {"spec": {"listeners": [internal, EXTERNAL]}})

    def changed() -> bool:
        platform = namespace.get(KIND, CLUSTER)["status"].get("platform") or {}
        return platform.get("internal") == "Closed" and settled(namespace)

    until(f"TLS and {authentication}", changed, timeout=CHANGED_S)


def protocols(namespace: Namespace) -> set[str]:
    text = namespace.get("configmap", f"{CLUSTER}-brokers")["data"]["server.properties"]
    (line,) = (one for one in text.splitlines() if one.startswith("listener.security.protocol.map="))
    return set(line.partition("=")[2].split(","))


def topic(namespace: Namespace, name: str) -> None:
    """Created by the operator, over TLS."""
    namespace.apply(resource("Topic", name, {"clusterRef": {"name": CLUSTER}, "partitions": 1}))
    namespace.wait_condition(TOPIC_KIND, name, timeout=60)


def test_an_open_cluster_gets_tls_under_load_and_clients_use_mounted_secrets(namespace: Namespace) -> None:
    paced = under_load(namespace, outside=True)
    start_client(namespace)
    since = time.time()
    listens(namespace, "ScramSha512")
    measured(paced, "two rolls to TLS", since)
    assert {"INTERNAL:SASL_SSL", "REPLICATION-9091:SSL", "PLATFORM-9090:SASL_SSL"} <= protocols(namespace)
    assert namespace.get(KIND, CLUSTER)["status"]["platform"]["caSecret"] == TRUST
    topic(namespace, TOPIC)
    user(namespace, "alice", "ScramSha512")
    reads_and_writes(namespace, PASSWORD)
    listens(namespace, "Tls")
    user(namespace, "bob", "Tls")
    reads_and_writes(namespace, CERTIFICATE)

    namespace.patch(KIND, CLUSTER, {"spec": {"certificateAuthority": {"rotate": {"requestId": "a"}}}})
    count = ["exec", CLIENT_POD, "--", "grep", "-c", "BEGIN CERTIFICATE", "/trust/ca.crt"]
    until(
        "both authorities in the client's pod",
        lambda: namespace.kubectl(*count).strip() == "2",
        timeout=MOUNTED_S,
    )
    trusted = {"type_": "CertificatesReady", "status": "True", "reason": "AuthorityBothTrusted"}
    namespace.wait_condition(KIND, CLUSTER, timeout=60, **trusted)
    topic(namespace, "later")
    reads_and_writes(namespace, CERTIFICATE)
    assert settled(namespace)
    nothing_is_lost(namespace, paced)

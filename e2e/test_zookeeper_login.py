"""The ZooKeeper servers that the operator runs: an open ensemble is secured under load, step by step.

The operator has no right to Secrets at first (`operator.users: false`), so the ensemble starts without a login.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream_harness import zookeeper_stranger
from millstream_harness.chart import BROKER, install
from millstream_harness.kube import Json, Namespace, until
from millstream_harness.rolls import (
    ALL,
    BROKERS,
    CLUSTER,
    KIND,
    ZOOKEEPER,
    ids,
    measured,
    nothing_is_lost,
    pods,
    settled,
    under_load,
)

STRANGER = "stranger"
SECURED_S = 600
OPEN_READS = {"read /brokers/ids": "allowed", "read /cluster/id": "allowed"}
SECRETS = ("read /cluster/secret", "read /config/users", "read /config/brokers")
CHANGES = (
    *("create /brokers/ids/7", "create /config/users/mallory", "create /brokers/topics/mallory"),
    "create /anything",
)


@pytest.fixture(scope="module", autouse=True)
def rights(namespace: Namespace) -> Iterator[None]:
    install(default_cluster=False, settings="operator.users=false")
    yield
    install(default_cluster=False)


def as_a_stranger(namespace: Namespace) -> dict[str, str]:
    """What a client without a login may do."""
    server = f"{CLUSTER}-zookeeper1.{namespace.name}.svc:2181"
    container = {
        "name": STRANGER,
        "image": BROKER,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", Path(zookeeper_stranger.__file__).read_text(), server],
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": STRANGER}, "spec": spec})

    def phase() -> str:
        return str(namespace.get("pod", STRANGER)["status"].get("phase"))

    until("the stranger's end", lambda: phase() in ("Succeeded", "Failed"), timeout=90)
    said = namespace.kubectl("logs", STRANGER)
    assert phase() == "Succeeded", said
    namespace.kubectl("delete", "pod", STRANGER)
    found: dict[str, str] = json.loads(said.splitlines()[-1])
    return found


def access(pod: Json) -> str:
    found: dict[str, Any] = pod["metadata"].get("annotations") or {}
    return str(found.get("millstream.dev/zookeeper-access", ""))


def test_an_open_ensemble_is_secured_under_load(namespace: Namespace) -> None:
    paced = under_load(namespace)
    warning = namespace.condition(KIND, CLUSTER, "Warning")
    assert warning["reason"] == "SecretNotReadable"
    assert as_a_stranger(namespace)["read /cluster/secret"] == "allowed"
    before, since = ids(pods(namespace, ALL)), time.time()
    install(default_cluster=False)

    def secured() -> bool:
        brokers = pods(namespace, BROKERS).values()
        return {access(pod) for pod in brokers} == {"Restricted"} and settled(namespace)

    until("every broker restricts the nodes", secured, timeout=SECURED_S)
    assert not ids(pods(namespace, ALL)) & before, "servers and brokers have restarted"
    measured(paced, "secured", since)
    found = as_a_stranger(namespace)
    expected = OPEN_READS | dict.fromkeys((*SECRETS, *CHANGES), "NoAuthError")
    assert found == {**expected, "create /consumers/stranger": "allowed"}
    nothing_is_lost(namespace, paced)


def test_a_lost_secret_and_new_pods(namespace: Namespace) -> None:
    """The pods mount the Secrets again."""
    namespace.kubectl("delete", "secret", f"{CLUSTER}-zookeeper-login")
    before = ids(pods(namespace, ALL))
    namespace.kubectl("delete", "pod", "-l", ALL, "--wait=false")

    def are_back() -> bool:
        found = ids(pods(namespace, ALL))
        return len(found) == 6 and not found & before and settled(namespace)

    until("new pods", are_back, timeout=300)
    assert namespace.get("secret", f"{CLUSTER}-zookeeper-login")["data"].keys() == {
        "password",
        "zookeeper.jaas",
    }
    assert as_a_stranger(namespace)["read /cluster/secret"] == "NoAuthError"
    assert len(pods(namespace, ZOOKEEPER)) == 3


def test_both_secrets_lost(namespace: Namespace) -> None:
    """Servers and brokers restart with another password, without anybody's help."""
    before = ids(pods(namespace, ALL))
    namespace.kubectl("delete", "secret", f"{CLUSTER}-zookeeper-login", f"{CLUSTER}-brokers-zookeeper")

    def are_back() -> bool:
        found = ids(pods(namespace, ALL))
        return len(found) == 6 and not found & before and settled(namespace)

    until("servers and brokers with another password", are_back, timeout=SECURED_S)
    assert as_a_stranger(namespace)["read /cluster/secret"] == "NoAuthError"

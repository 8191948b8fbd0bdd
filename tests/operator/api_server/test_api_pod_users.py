"""Users of pods on the real API server, with a running operator and a broker that checks access rules.

Their Secrets and pods appear, belong to their resource, and go with it. The pods themselves run in e2e. Brokers lose a
user once they are ready, which these are not: their pods are never scheduled.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from millstream_harness.guarded_broker import Guarded, guarded_broker
from millstream_harness.kube import Json, Namespace, until
from millstream_harness.manifests import cluster, group, resource, topic
from millstream_harness.operator import OperatorProcess
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import Acl, AclOperation, ResourceType
from millstream_operator.resources.pod_access import FOLDER

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

INTERNAL = {
    "name": "internal",
    "type": "Internal",
    "port": 9092,
    "tls": "Enabled",
    "authentication": {"type": "ScramSha512"},
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as found:
        yield found


@pytest.fixture(scope="module")
def cluster_addresses(guarded: Guarded) -> dict[str, str]:
    return {"default": guarded.bootstrap}


@pytest.fixture
def admin(guarded: Guarded) -> Iterator[KafkaAdmin]:
    found = KafkaAdmin(guarded.bootstrap)
    yield found
    found.close()


@pytest.fixture
def namespace(shared_operator: OperatorProcess, watched_namespace: Namespace, guarded: Guarded) -> Namespace:
    """With a Cluster that requires a login and has TLS, and a topic with records."""
    watched_namespace.apply(cluster(listeners=[INTERNAL]))
    watched_namespace.apply(topic("flights"))
    watched_namespace.wait_condition("topic.millstream.dev", "flights")
    producer = Producer({"bootstrap.servers": guarded.bootstrap})
    producer.produce("flights", b"{}")
    assert producer.flush(60) == 0
    return watched_namespace


def a_load() -> Json:
    return resource(
        "BatchLoad",
        "daily",
        clusterRef={"name": "default"},
        topics=["flights"],
        value={"format": "JSON", "schema": "carrier STRING"},
        output={"path": "/lake/flights", "volumeClaimName": "lake"},
    )


def a_group() -> Json:
    workload = {"template": {"spec": {"containers": [{"name": "consumer", "image": "ours:1"}]}}}
    return group("watch", topics=["flights"], workload=workload)


def a_mirror() -> Json:
    return resource(
        "MirrorMaker",
        "copy",
        sources=[{"name": "west", "clusterRef": {"name": "default"}}],
        target={"bootstrap": "nowhere:9092"},
        topics={"include": ["flights"]},
    )


@pytest.mark.parametrize(
    ("made", "runner", "secrets", "rights"),
    [
        (
            a_load(),
            "job",
            ["daily-load-user", "daily-load-trust"],
            {"READ on TOPIC flights", "DESCRIBE on GROUP millstream-jobs"},
        ),
        (
            a_group(),
            "deployment",
            ["watch-consumers-user", "watch-consumers-client"],
            {"READ on TOPIC flights", "READ on GROUP watch"},
        ),
        (
            a_mirror(),
            "deployment",
            ["copy-mirror-user", "copy-mirror-trust"],
            {"READ on TOPIC flights", "DESCRIBE_CONFIGS on TOPIC flights"},
        ),
    ],
    ids=["load", "consumers", "mirror"],
)
def test_user_appears_with_its_pods_and_its_secrets_go_with_the_resource(
    namespace: Namespace, admin: KafkaAdmin, made: Json, runner: str, secrets: list[str], rights: set[str]
) -> None:
    name = made["metadata"]["name"]
    namespace.apply(made)
    pod = until("its pods", lambda: namespace.list(runner))[0]["spec"]["template"]["spec"]
    (volume,) = (one for one in pod["volumes"] if "projected" in one)
    assert [one["secret"]["name"] for one in volume["projected"]["sources"]] == secrets
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == volume["name"])
    assert mount["mountPath"] in (FOLDER, "/run/millstream/secrets")
    owner = namespace.get(f"{made['kind'].lower()}.millstream.dev", name)["metadata"]["uid"]
    values: dict[str, str] = {}
    for secret in secrets:
        live = namespace.get("secret", secret)
        assert [one["uid"] for one in live["metadata"]["ownerReferences"]] == [owner]
        values |= {key: base64.b64decode(value).decode() for key, value in live["data"].items()}
    assert any("-----BEGIN CERTIFICATE-----" in one for one in values.values())
    user = f"millstream-pods.{made['kind'].lower()}.{owner}"
    assert values["username"] == user
    assert list(admin.scram_users([user])) == [user]
    assert rights <= {_words(one) for one in admin.rules(f"User:{user}") or ()}
    shown = json.dumps(namespace.list("job,deployment,configmap,pod"))
    assert values["password"] not in shown

    namespace.kubectl("delete", f"{made['kind'].lower()}.millstream.dev", name, "--timeout=60s")
    gone = ("get", "secret", *secrets, "--ignore-not-found")
    until("its Secrets gone", lambda: not namespace.kubectl(*gone))


def _words(rule: Acl) -> str:
    return f"{AclOperation(rule.operation).name} on {ResourceType(rule.resource_type).name} {rule.name}"

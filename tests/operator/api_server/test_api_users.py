"""Users on the real API server, with a running operator and a real broker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from millstream_harness.command import millstream
from millstream_harness.in_process_broker import InProcessBroker
from millstream_harness.kube import CommandFailed, Json, Namespace, until
from millstream_harness.manifests import cluster, resource
from millstream_harness.operator import OperatorProcess
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.records import ScramCredential, ScramMechanism

pytestmark = pytest.mark.soak

KIND = "user.millstream.dev"
SCRAM = {"type": "ScramSha512"}
SHA_512 = ScramMechanism.SCRAM_SHA_512


@pytest.fixture(scope="module")
def cluster_addresses(module_broker: InProcessBroker) -> dict[str, str]:
    return {"default": module_broker.bootstrap}


@pytest.fixture(scope="module")
def interval_s() -> float:
    return 3600.0


@pytest.fixture
def admin(module_broker: InProcessBroker) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(module_broker.bootstrap)
    yield admin
    admin.close()


@pytest.fixture
def namespace(watched_namespace: Namespace) -> Namespace:
    return watched_namespace


@pytest.fixture
def operator(shared_operator: OperatorProcess, namespace: Namespace) -> OperatorProcess:
    """An operator, and a Cluster named default."""
    namespace.apply(cluster())
    return shared_operator


def user(name: str, **spec: Any) -> Json:
    return resource("User", name, **{"clusterRef": {"name": "default"}, **spec})


def password(namespace: Namespace, secret: str) -> str:
    return base64.b64decode(namespace.get("secret", secret)["data"]["password"]).decode()


def test_life_of_a_user(operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin) -> None:
    quotas = {"producerByteRate": 1024}
    namespace.apply(user("app", authentication=SCRAM, quotas=quotas))
    status = namespace.wait_condition(KIND, "app", reason="UserReady")["status"]
    assert (status["username"], status["secret"]) == ("app", "app")
    secret = namespace.get("secret", "app")
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "User"
    assert sorted(secret["data"]) == ["password", "sasl.jaas.config", "username"]
    assert SHA_512 in admin.scram_users(["app"])["app"]
    assert admin.user_quotas()["app"] == {"producer_byte_rate": 1024.0}
    first = password(namespace, "app")
    assert first not in json.dumps(namespace.get(KIND, "app"))
    shown = millstream(
        "user",
        "config",
        "app",
        "-n",
        namespace.name,
        "--address",
        "b:9092",
        "-F",
        "librdkafka",
        bootstrap=None,
    )
    assert f"sasl.password={first}" in shown.stdout.decode().splitlines()

    before = {kind: namespace.get(kind, "app") for kind in (KIND, "secret")}
    operator.stop()
    operator.start()
    operator.has_looked_at(f"User {namespace.name}/app")
    assert {kind: namespace.get(kind, "app") for kind in (KIND, "secret")} == before, (
        "nothing is written again"
    )

    namespace.apply(user("app", authentication=SCRAM, quotas=quotas, rotate={"requestId": "1"}))
    until("a rotation", lambda: namespace.get(KIND, "app")["status"].get("rotatedFor") == "1")
    assert password(namespace, "app") != first

    namespace.kubectl("delete", KIND, "app", "--timeout=60s")
    assert admin.scram_users(["app"]) == {}
    assert "app" not in admin.user_quotas()
    until("the Secret gone", lambda: not namespace.kubectl("get", "secret", "app", "--ignore-not-found"))


def test_new_user_of_a_name_has_a_secret_of_its_own(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin
) -> None:
    namespace.apply(user("again", authentication=SCRAM))
    namespace.wait_condition(KIND, "again", reason="UserReady")
    uid, first = namespace.get("secret", "again")["metadata"]["uid"], password(namespace, "again")
    namespace.kubectl("delete", KIND, "again", "--timeout=60s")
    namespace.apply(user("again", authentication=SCRAM))
    namespace.wait_condition(KIND, "again", reason="UserReady")
    assert namespace.get("secret", "again")["metadata"]["uid"] != uid
    assert password(namespace, "again") != first


def test_own_password_and_a_missing_secret(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin
) -> None:
    reference = {"valueFrom": {"secretKeyRef": {"name": "mine", "key": "word"}}}
    namespace.apply(user("own", authentication={**SCRAM, "password": reference}))
    namespace.wait_condition(KIND, "own", status="False", reason="SecretMissing")
    assert admin.scram_users(["own"]) == {}
    namespace.kubectl("create", "secret", "generic", "mine", "--from-literal=word=open sesame")
    namespace.wait_condition(KIND, "own", reason="UserReady")
    assert SHA_512 in admin.scram_users(["own"])["own"]


def test_credential_set_by_hand_gives_way(
    operator: OperatorProcess, namespace: Namespace, admin: KafkaAdmin
) -> None:
    """As after a restore of the brokers' data."""
    namespace.apply(user("drifted", authentication=SCRAM))
    namespace.wait_condition(KIND, "drifted", reason="UserReady")
    before = admin.scram_users(["drifted"])["drifted"][SHA_512]
    admin.change_scram_users(
        [ScramCredential.of_password("drifted", SHA_512, "other", iterations=16_000)], []
    )
    namespace.kubectl("annotate", KIND, "drifted", "example.com/look=now")
    until("the credential", lambda: admin.scram_users(["drifted"])["drifted"][SHA_512] == before)


def test_user_without_an_authorizer_says_so(operator: OperatorProcess, namespace: Namespace) -> None:
    acls = [{"resource": {"type": "topic", "name": "t"}, "operations": ["Read"]}]
    namespace.apply(user("ruled", authorization={"type": "Simple", "acls": acls}))
    namespace.wait_condition(KIND, "ruled", status="False", reason="NoAuthorizer")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"userName": "a,b"}, "spec.userName"),
        ({"authentication": {"type": "Tls"}, "userName": "a" * 65}, "at most 64 characters are allowed"),
        ({"rotate": {"requestId": "1"}}, "only a generated password can be replaced"),
    ],
)
def test_api_server_refuses(namespace: Namespace, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandFailed, match=said):
        namespace.apply(user("bad", **spec))

"""Users in Apache Kafka and in our broker, with an authorizer: what the operator sets is what clients meet."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from millstream_harness.guarded_broker import Guarded, guarded_broker
from millstream_harness.in_memory import MemoryKube, deleted, stored
from millstream_harness.manifests import cluster, resource
from millstream_harness.on_kubernetes import services_on_kubernetes
from millstream_harness.scenario import eventually, unique
from millstream_harness.secured_kafka import guarded_kafka
from millstream_kafka.admin.client import AdminClient
from millstream_kafka.admin.records import NewTopic
from millstream_kafka.client import AuthenticationFailed, ClusterClient, Credential, Sasl, Security
from millstream_operator.kafka.admin import KafkaAdmin
from millstream_operator.kafka.client_config import ClientConfig
from millstream_operator.kafka.records import Acl, AclOperation, PatternType, PermissionType, ResourceType
from millstream_operator.models import User, decode_as
from millstream_operator.reconcile.user.apply import observe, reconcile_users

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module", params=["kafka", "millstream"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    if request.param == "kafka":
        request.getfixturevalue("kafka_jars")
        with guarded_kafka(folder) as broker:
            yield Guarded(broker.bootstrap, broker.addresses["CLEAR"])
        return
    with guarded_broker(folder) as found:
        yield found


class Operated:
    """One User on the brokers, and the Kubernetes objects around it."""

    def __init__(self, bootstrap: str, **spec: Any) -> None:
        self.name = unique("user")
        manifest = stored(resource("User", self.name, clusterRef={"name": "default"}, **spec))
        self.kube = MemoryKube(stored(cluster("default")), manifest)
        self.services = services_on_kubernetes(self.kube, reach=lambda *_: ClientConfig(bootstrap))
        self.services.store.put(self.kube.objects["Cluster", "default"])
        self.admin: KafkaAdmin = self.services.admins.at(bootstrap)

    @property
    def resource(self) -> dict[str, Any]:
        return self.kube.objects["User", self.name]

    def look(self) -> None:
        self.services.store.put(self.resource)
        reconcile_users(self.services, [decode_as(User, self.resource)])

    def rotate(self, version: str, **rotation: Any) -> None:
        """``version``: of the Secret, as Kubernetes gives one with each write."""
        self.resource["spec"]["rotate"] = rotation
        self.resource["metadata"]["generation"] += 1
        self.kube.objects["Secret", self.name]["metadata"]["resourceVersion"] = version
        self.look()

    @property
    def password(self) -> str:
        return base64.b64decode(self.kube.objects["Secret", self.name]["data"]["password"]).decode()

    def seen(self) -> Any:
        user = decode_as(User, self.resource)
        return observe(self.admin, [user])[user.user_name]

    def ready(self) -> tuple[str, str]:
        ready = self.resource["status"]["conditions"][0]
        return ready["reason"], ready["message"]


async def topics_of(kafka: Guarded, user: str, password: str) -> list[str | None]:
    login = Sasl("SCRAM-SHA-512", Credential("", "", value=user), Credential("", "", value=password))
    async with ClusterClient(kafka.login, security=Security(sasl=login)) as client:
        return [topic.name for topic in (await client.metadata(None)).topics]


def rules(prefix: str, *operations: str) -> dict[str, Any]:
    name = {"type": "topic", "name": prefix, "patternType": "prefix"}
    return {"type": "Simple", "acls": [{"resource": name, "operations": list(operations)}]}


async def test_life_of_a_user(kafka: Guarded) -> None:
    topic = unique("orders")
    async with ClusterClient(kafka.bootstrap) as client:
        await AdminClient(client).create_topics([NewTopic(topic, 1, 1, {})])
    spec = {
        "authentication": {"type": "ScramSha512"},
        "authorization": rules(topic, "Read", "Write"),
        "quotas": {"producerByteRate": 1024, "requestPercentage": 50},
    }
    user = Operated(kafka.bootstrap, **spec)
    user.look()
    assert user.ready() == ("UserReady", f"password in Secret {user.name}, 2 access rules, 2 quotas")
    eventually(user.seen, lambda seen: len(seen.rules) == 2 and seen.iterations is not None, "the user")
    assert await topics_of(kafka, user.name, user.password) == [topic]
    assert user.seen().quotas == {"producer_byte_rate": 1024.0, "request_percentage": 50.0}
    first, written = user.password, len(user.kube.applied)
    user.look()
    assert (user.password, len(user.kube.applied)) == (first, written)

    before = user.seen().iterations
    user.rotate("2", requestId="1", previousValidSeconds=0)
    eventually(user.seen, lambda seen: seen.iterations != before, "another credential")
    assert await topics_of(kafka, user.name, user.password) == [topic]
    with pytest.raises(AuthenticationFailed, match="refused user name or password"):
        await topics_of(kafka, user.name, first)

    of_topic = (ResourceType.TOPIC, topic, PatternType.PREFIXED, f"User:{user.name}", "*")
    read = Acl(*of_topic, AclOperation.READ, PermissionType.ALLOW)
    foreign = Acl(*of_topic, AclOperation.ALTER, PermissionType.ALLOW)
    others = read._replace(principal="User:somebody-else")
    user.admin.delete_rules([read])
    user.admin.create_rules([foreign, others])
    eventually(user.seen, lambda seen: foreign in seen.rules and read not in seen.rules, "drift")
    user.look()
    eventually(user.seen, lambda seen: foreign not in seen.rules and read in seen.rules, "mended rules")
    assert [event.reason for event in user.kube.events][-1] == "DriftMended"

    user.resource["metadata"] |= deleted(1)
    user.look()
    assert user.resource["metadata"]["finalizers"] == []
    gone = eventually(user.seen, lambda seen: seen.iterations is None and not seen.rules, "its removal")
    assert gone.quotas == {}
    assert others in (user.admin.rules() or ())
    with pytest.raises(AuthenticationFailed):
        await topics_of(kafka, user.name, user.password)


@pytest.mark.parametrize("kafka", ["millstream"], indirect=True)
async def test_both_passwords_of_a_rotation_are_valid(kafka: Guarded) -> None:
    user = Operated(
        kafka.bootstrap, authentication={"type": "ScramSha512"}, authorization=rules("orders", "Read")
    )
    user.look()
    first = user.password
    assert await topics_of(kafka, user.name, first) is not None
    user.rotate("1", requestId="1")
    second = user.password
    assert second != first
    for password in (second, first):
        assert await topics_of(kafka, user.name, password) is not None
    with pytest.raises(AuthenticationFailed):
        await topics_of(kafka, user.name, "another")
    user.rotate("2", requestId="2", previousValidSeconds=0)
    for password in (first, second):
        with pytest.raises(AuthenticationFailed):
            await topics_of(kafka, user.name, password)
    assert await topics_of(kafka, user.name, user.password) is not None
